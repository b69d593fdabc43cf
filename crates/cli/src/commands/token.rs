//! `token`: creates a token with its configuration, or hashes an existing one.

use std::collections::HashMap;
use std::io::Read;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use jiff::{SignedDuration, Timestamp};
use lazaret_api::Scope;
use lazaret_api::values::lifetime;
use lazaret_server::{TokenHash, generate_token};
use serde::Serialize;

use super::Run;
use crate::client::user;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::output::{Format, Line, Tone, csv_header, csv_row};

/// The least entropy of a token. Random tokens of 128 bits have more in any encoding.
const MIN_TOKEN_BITS: f64 = 90.0;

/// Create an API token.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Token {
    #[command(subcommand)]
    verb: Option<Verb>,

    #[command(flatten)]
    new: NewArgs,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Create a token; it is shown once
    New(NewArgs),
    /// Hash a token from standard input
    Hash,
}

/// The properties of a new token.
#[derive(Debug, Args)]
struct NewArgs {
    /// Name the owner, as shown in the audit log; default: your user name
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Grant these scopes
    #[arg(long = "scope", value_name = "SCOPE", value_delimiter = ',', default_value = "read", value_parser = scope())]
    scopes: Vec<Scope>,

    /// Expire after this duration, such as 90d; default: never
    #[arg(long, value_name = "DURATION", value_parser = lifetime)]
    expires: Option<SignedDuration>,
}

fn scope() -> impl TypedValueParser<Value = Scope> {
    PossibleValuesParser::new(Scope::ALL.map(Scope::as_str)).try_map(|word| word.parse::<Scope>())
}

/// A new token, printed once.
#[derive(Serialize)]
struct NewToken {
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
            Some(Verb::New(new)) => new.create(context),
            None => self.new.create(context),
        }
    }
}

impl NewArgs {
    fn create(self, context: &Context) -> Result<Exit> {
        let name = self.name.or_else(user).unwrap_or_else(|| "operator".to_owned());
        let is_valid = |c: char| c.is_ascii_alphanumeric() || "._-@".contains(c);
        if name.is_empty() || name.len() > 100 || !name.chars().all(is_valid) {
            let hint = "use up to 100 letters, digits, and . _ - @";
            return Err(Error::usage_hint(format!("invalid token name {name:?}"), hint));
        }
        let expires = self.expires.map(expiry).transpose()?;
        let (token, hash) =
            generate_token().map_err(|error| Error::io("cannot read random bytes from the system", error))?;
        let new = NewToken { token, name, hash: hash.to_string(), scopes: self.scopes, expires };
        print(context, &new)?;
        Ok(Exit::Ok)
    }
}

/// Returns the expiry of a token with this lifetime, rounded up to the second.
fn expiry(lifetime: SignedDuration) -> Result<Timestamp> {
    let end = Timestamp::now().checked_add(lifetime);
    let end = end.and_then(|end| Timestamp::from_second(end.as_second() + 1));
    end.map_err(|error| Error::usage(format!("the lifetime is too long: {error}")))
}

fn print(context: &Context, new: &NewToken) -> Result<()> {
    let screen = &context.screen;
    match context.format() {
        Format::Json | Format::Jsonl => return screen.json_line(new),
        Format::Csv => {
            const PATHS: [&str; 5] = ["token", "name", "hash", "scopes", "expires"];
            let row = csv_row(&PATHS, &serde_json::to_value(new).unwrap_or_default());
            return screen.raw(format!("{}\n{row}\n", csv_header(&PATHS)).as_bytes());
        }
        Format::Table => {}
    }
    screen.info("token (shown only once):");
    screen.line(&Line::new().add(&new.token, Tone::Strong))?;
    screen.info("add to the configuration:");
    for line in configuration(new) {
        screen.line(&Line::of(line))?;
    }
    screen.info("clients pass the token with LAZARET_TOKEN or --token-file");
    screen.next_command("lazaret status");
    Ok(())
}

fn configuration(new: &NewToken) -> Vec<String> {
    let scopes: Vec<&str> = new.scopes.iter().map(|scope| scope.as_str()).collect();
    let mut lines = vec![
        "auth:".to_owned(),
        "  tokens:".to_owned(),
        format!("    - name: {:?}", new.name),
        format!("      hash: {:?}", new.hash),
        format!("      scopes: [{}]", scopes.join(", ")),
    ];
    lines.extend(new.expires.map(|expires| format!("      expires: \"{expires}\"")));
    lines
}

fn hash(context: &Context) -> Result<Exit> {
    let mut token = String::new();
    std::io::stdin()
        .lock()
        .take(64 * 1024)
        .read_to_string(&mut token)
        .map_err(|error| Error::io("cannot read the token from standard input", error))?;
    let token = token.trim();
    if token.is_empty() {
        return Err(Error::usage_hint("no token on standard input", "lazaret token hash < FILE"));
    }
    let bits = entropy_bits(token);
    if bits < MIN_TOKEN_BITS {
        let strength = format!("at most {bits:.0} bits of entropy, at least {MIN_TOKEN_BITS:.0} required");
        context.screen.warn(&format!("weak token: {strength}; create one with `lazaret token new`"));
    }
    let hash = TokenHash::of(token).to_string();
    match context.format() {
        Format::Json | Format::Jsonl => context.screen.json_line(&serde_json::json!({ "hash": hash }))?,
        Format::Csv => context.screen.raw(format!("hash\n{hash}\n").as_bytes())?,
        Format::Table => {
            context.screen.line(&Line::of(&hash))?;
            context.screen.next_command("lazaret check -c lazaret.yaml");
        }
    }
    Ok(Exit::Ok)
}

/// Returns the Shannon entropy of the token's characters, an upper bound of its strength. A random token has about as much, any
/// other has less.
fn entropy_bits(token: &str) -> f64 {
    let mut times: HashMap<char, f64> = HashMap::new();
    token.chars().for_each(|c| *times.entry(c).or_default() += 1.0);
    let length: f64 = times.values().sum();
    times.values().map(|times| times * (length / times).log2()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weak_tokens_are_told_from_random_ones() {
        for weak in ["a", "mytoken", "correct horse battery", &"ab".repeat(40)] {
            assert!(entropy_bits(weak) < MIN_TOKEN_BITS, "{weak}");
        }
        // A generated token, and 128 random bits in other encodings.
        let (ours, _) = generate_token().unwrap();
        for strong in [&*ours, "9f86d081884c7d659a2feaa0c55ad015", "6fa459ea-ee8a-4ca4-894e-db77e160355e"] {
            assert!(entropy_bits(strong) >= MIN_TOKEN_BITS, "{strong}");
        }
    }
}
