//! `token`: makes a token and the lines for the configuration, or hashes one that is there.

use std::io::Read;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use jiff::{SignedDuration, Timestamp};
use lazaret_api::Scope;
use lazaret_server::{TokenHash, generate_token};
use serde::Serialize;

use super::Run;
use crate::client::user;
use crate::conduct::duration;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::output::{Format, Line, Tone, csv_header, csv_row};

/// Make a token.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Token {
    #[command(subcommand)]
    verb: Option<Verb>,

    #[command(flatten)]
    new: New,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Make a token; it is shown once
    New(New),
    /// Hash a token that is read from standard input
    Hash,
}

/// What the token is for.
#[derive(Debug, Args)]
struct New {
    /// Who it is for, as it stands in the audit; you unless said otherwise
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// What it may do
    #[arg(long = "scope", value_name = "SCOPE", value_delimiter = ',', default_value = "read", value_parser = scope())]
    scopes: Vec<Scope>,

    /// How long it is good: 90d; for ever unless said otherwise
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    expires: Option<SignedDuration>,
}

fn scope() -> impl TypedValueParser<Value = Scope> {
    PossibleValuesParser::new(Scope::ALL.map(Scope::as_str)).try_map(|word| word.parse::<Scope>())
}

/// What is printed, once.
#[derive(Serialize)]
struct Made {
    token: String,
    name: String,
    hash: String,
    scopes: Vec<Scope>,
    expires: Option<Timestamp>,
}

impl Run for Token {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        match self.verb {
            Some(Verb::Hash) => hash(context),
            Some(Verb::New(new)) => new.make(context),
            None => self.new.make(context),
        }
    }
}

impl New {
    fn make(self, context: &Context) -> Result<Exit> {
        let name = self.name.or_else(user).unwrap_or_else(|| "operator".to_owned());
        let is_fine = |c: char| c.is_ascii_alphanumeric() || "._-@".contains(c);
        if name.is_empty() || name.len() > 100 || !name.chars().all(is_fine) {
            let hint = "names have up to 100 letters, digits, and . _ - @";
            return Err(Error::usage_hint(format!("{name:?} is no name for a token"), hint));
        }
        let expires = self.expires.map(end).transpose()?;
        let (token, hash) =
            generate_token().map_err(|error| Error::io("the system has no random numbers", error))?;
        let made = Made { token, name, hash: hash.to_string(), scopes: self.scopes, expires };
        print(context, &made)?;
        Ok(Exit::Ok)
    }
}

/// When a token ends that is good for so long. Whole seconds are enough.
fn end(wait: SignedDuration) -> Result<Timestamp> {
    let end = Timestamp::now().checked_add(wait).and_then(|end| Timestamp::from_second(end.as_second()));
    end.map_err(|error| Error::usage(format!("that is too long: {error}")))
}

fn print(context: &Context, made: &Made) -> Result<()> {
    let screen = &context.screen;
    match context.format() {
        Format::Json | Format::Jsonl => return screen.json_line(made),
        Format::Csv => {
            const PATHS: [&str; 5] = ["token", "name", "hash", "scopes", "expires"];
            let row = csv_row(&PATHS, &serde_json::to_value(made).unwrap_or_default());
            return screen.raw(format!("{}\n{row}\n", csv_header(&PATHS)).as_bytes());
        }
        Format::Table => {}
    }
    screen.say("the token, shown this once:");
    screen.line(&Line::new().add(&made.token, Tone::Strong))?;
    screen.say("in the configuration:");
    for line in configuration(made) {
        screen.line(&Line::of(line))?;
    }
    screen.say("whoever has it puts it into LAZARET_TOKEN, or into a file for --token-file");
    screen.next("lazaret status");
    Ok(())
}

fn configuration(made: &Made) -> Vec<String> {
    let scopes: Vec<&str> = made.scopes.iter().map(|scope| scope.as_str()).collect();
    let mut lines = vec![
        "auth:".to_owned(),
        "  tokens:".to_owned(),
        format!("    - name: {:?}", made.name),
        format!("      hash: {:?}", made.hash),
        format!("      scopes: [{}]", scopes.join(", ")),
    ];
    lines.extend(made.expires.map(|expires| format!("      expires: \"{expires}\"")));
    lines
}

fn hash(context: &Context) -> Result<Exit> {
    let mut token = String::new();
    std::io::stdin()
        .lock()
        .take(64 * 1024)
        .read_to_string(&mut token)
        .map_err(|error| Error::io("the token cannot be read", error))?;
    let token = token.trim();
    if token.is_empty() {
        return Err(Error::usage_hint("there is no token on standard input", "lazaret token hash < FILE"));
    }
    let hash = TokenHash::of(token).to_string();
    match context.format() {
        Format::Json | Format::Jsonl => context.screen.json_line(&serde_json::json!({ "hash": hash }))?,
        Format::Csv => context.screen.raw(format!("hash\n{hash}\n").as_bytes())?,
        Format::Table => context.screen.line(&Line::of(&hash))?,
    }
    Ok(Exit::Ok)
}
