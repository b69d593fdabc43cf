//! `token`: makes a token and the lines for the configuration, or hashes one that is there.

use std::collections::HashMap;
use std::io::Read;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use jiff::{SignedDuration, Timestamp};
use lazaret_api::Scope;
use lazaret_server::{TokenHash, generate_token};
use serde::Serialize;

use super::Run;
use crate::client::user;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::output::{Format, Line, Tone, csv_header, csv_row};
use crate::rollout::duration;

/// A token with less than this can be guessed. Random ones of 128 bits have more, whatever they are written in.
const ENOUGH_BITS: f64 = 90.0;

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
    #[arg(long, value_name = "DURATION", value_parser = lifetime)]
    expires: Option<SignedDuration>,
}

fn scope() -> impl TypedValueParser<Value = Scope> {
    PossibleValuesParser::new(Scope::ALL.map(Scope::as_str)).try_map(|word| word.parse::<Scope>())
}

/// How long a token is good. One that has ended when it is made is good for nothing.
fn lifetime(text: &str) -> std::result::Result<SignedDuration, String> {
    let lifetime = duration(text)?;
    if lifetime < SignedDuration::from_secs(1) {
        return Err("such a token has ended before it can be used: write it as 12h or 90d".to_owned());
    }
    Ok(lifetime)
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

/// When a token ends that is good for so long, to the next whole second.
fn end(wait: SignedDuration) -> Result<Timestamp> {
    let end = Timestamp::now().checked_add(wait).and_then(|end| Timestamp::from_second(end.as_second() + 1));
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
    let bits = most_bits(token);
    if bits < ENOUGH_BITS {
        let strength = format!("it has {bits:.0} bits at most, and {ENOUGH_BITS:.0} are the least");
        context.screen.warn(&format!("this token can be guessed: {strength}; `lazaret token new` makes one"));
    }
    let hash = TokenHash::of(token).to_string();
    match context.format() {
        Format::Json | Format::Jsonl => context.screen.json_line(&serde_json::json!({ "hash": hash }))?,
        Format::Csv => context.screen.raw(format!("hash\n{hash}\n").as_bytes())?,
        Format::Table => {
            context.screen.line(&Line::of(&hash))?;
            context.screen.next("lazaret check -c lazaret.yaml");
        }
    }
    Ok(Exit::Ok)
}

/// How much somebody who knows which characters stand in a token, and how often, has to guess: Shannon's entropy. A token that
/// was drawn at random has about as much, any other has less.
fn most_bits(token: &str) -> f64 {
    let mut times: HashMap<char, f64> = HashMap::new();
    token.chars().for_each(|c| *times.entry(c).or_default() += 1.0);
    let length: f64 = times.values().sum();
    times.values().map(|times| times * (length / times).log2()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_guessed_is_told_from_what_was_drawn() {
        for weak in ["a", "mytoken", "correct horse battery", &"ab".repeat(40)] {
            assert!(most_bits(weak) < ENOUGH_BITS, "{weak}");
        }
        // Ours, and 128 bits as others write them.
        let (ours, _) = generate_token().unwrap();
        for strong in [&*ours, "9f86d081884c7d659a2feaa0c55ad015", "6fa459ea-ee8a-4ca4-894e-db77e160355e"] {
            assert!(most_bits(strong) >= ENOUGH_BITS, "{strong}");
        }
    }
}
