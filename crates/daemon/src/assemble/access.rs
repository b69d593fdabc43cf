//! Builds tokens and request limits of the API.

use std::path::Path;

use lazaret_api::{Scope, UnknownValue};
use lazaret_config::{Config, ProcessEnv, RequestLimits, check, diff};
use lazaret_core::store::DraftLimits;
use lazaret_server::{InvalidTokenHash, Limits, Token, Tokens};

use crate::error::Error;

/// Completes a tokens file to a configuration.
const REST: &str = "consumers: {}\n";
/// The prefix of tokens that `lazaret token` creates.
const TOKEN: &str = "lz_";

/// Returns the tokens of the configuration and of its tokens file. Without `auth` the API is unauthenticated; with it there
/// must be a token, so that an empty file does not let everybody in.
pub(crate) fn tokens(config: &Config) -> Result<Tokens, Error> {
    let Some(auth) = &config.auth else { return Ok(Tokens::default()) };
    let in_file = in_tokens_file(config)?;
    for unknown in unknown_consumers(config, &in_file) {
        tracing::warn!("{unknown}");
    }
    let tokens = auth.tokens.iter().chain(&in_file).map(token).collect::<Result<Vec<_>, _>>()?;
    Ok(Tokens::new(tokens)?)
}

/// Returns what is likely a mistake in the tokens file. The tokens of the configuration are checked with it.
pub(crate) fn remarks_on_tokens_file(config: &Config) -> Result<Vec<String>, Error> {
    Ok(unknown_consumers(config, &in_tokens_file(config)?))
}

fn unknown_consumers(config: &Config, tokens: &[lazaret_config::Token]) -> Vec<String> {
    let is_known = |name: &String| config.consumers.iter().any(|consumer| consumer.name == *name);
    let of_token = |token: &lazaret_config::Token| {
        let name = token.name.clone();
        let unknown = token.consumers.iter().filter(|&consumer| !is_known(consumer)).cloned();
        unknown
            .map(move |consumer| {
                format!("token {name} of the tokens file names the unknown consumer {consumer}")
            })
            .collect::<Vec<_>>()
    };
    tokens.iter().flat_map(of_token).collect()
}

/// Returns the tokens of the tokens file, if one is configured.
fn in_tokens_file(config: &Config) -> Result<Vec<lazaret_config::Token>, Error> {
    let Some(path) = config.auth.as_ref().and_then(|auth| auth.tokens_file.as_ref()) else {
        return Ok(Vec::new());
    };
    let tokens = in_file(path)?;
    if tokens.is_empty() {
        let why = "it contains no tokens; add one with `lazaret token`, or remove the key `auth.tokens-file`";
        return Err(Error::TokensFile { path: path.clone(), why: why.to_owned() });
    }
    Ok(tokens)
}

/// Reads a tokens file, which has the lines that `lazaret token` prints: a configuration with `auth` and `tokens` only.
fn in_file(path: &Path) -> Result<Vec<lazaret_config::Token>, Error> {
    let wrong = |why: String| Error::TokensFile { path: path.to_owned(), why };
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let read = |name: &str, text: String| check(name, text.as_bytes(), &ProcessEnv);
    let checked = read(&path.display().to_string(), format!("{}\n{REST}", text.trim_end()));
    let Some(config) = checked.config else {
        return Err(wrong(with_advice(checked.diagnostics.plain(), &text)));
    };
    if let Some(nothing) = read("", REST.to_owned()).config {
        let others = diff(&nothing, &config).changes;
        if let Some(other) = others.iter().find(|change| !is_token(&change.path)) {
            return Err(wrong(format!(
                "unexpected key {}: a tokens file may contain only `auth.tokens`",
                other.path
            )));
        }
    }
    Ok(config.auth.map(|auth| auth.tokens).unwrap_or_default())
}

/// Says what to remove if a file that cannot be read contains a token: the complete output of `lazaret token` does. Diagnostics mask
/// tokens, since they are logged.
fn with_advice(diagnostics: String, file: &str) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let mut words = file.split(|c: char| !is_part(c));
    match words.any(|word| word.strip_prefix(TOKEN).is_some_and(|rest| !rest.is_empty())) {
        true => {
            diagnostics
                + "\nremove the token itself from the file: it may contain only the lines below the token"
        }
        false => diagnostics,
    }
}

fn is_token(path: &str) -> bool {
    path == "auth" || path == "auth.tokens"
}

fn token(configured: &lazaret_config::Token) -> Result<Token, Error> {
    let wrong = |why: String| Error::Token { name: configured.name.clone(), why };
    let scopes = configured.scopes.iter().map(|word| word.parse::<Scope>()).collect::<Result<_, _>>();
    Ok(Token {
        name: configured.name.clone(),
        hash: configured.hash.parse().map_err(|error: InvalidTokenHash| wrong(error.to_string()))?,
        scopes: scopes.map_err(|error: UnknownValue| wrong(error.to_string()))?,
        expires_at: configured.expires,
        person: configured.person.clone(),
        consumers: configured.consumers.clone(),
    })
}

/// Returns the request limits, within the other limits of the server.
pub(crate) fn limits(configured: &RequestLimits) -> Limits {
    let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    Limits {
        message_bytes: size(configured.body),
        // Requests without a message keep the limit of the server, unless a larger one is configured.
        json_bytes: size(configured.body).max(Limits::default().json_bytes),
        batch_bytes: size(configured.batch),
        header_bytes: size(configured.headers),
        batch_messages: configured.batch_messages,
        connections: configured.connections,
        connections_per_peer: configured.connections_per_peer,
        requests_per_token: configured.requests_per_token,
        drafts: DraftLimits {
            per_person: configured.drafts_per_person,
            total: configured.drafts,
            letters: configured.draft_letters,
        },
        ..Limits::default()
    }
}

#[cfg(test)]
mod tests {
    use lazaret_config::{NoEnv, check};

    use super::*;

    #[test]
    fn every_scope_of_the_configuration_is_one_of_the_api() {
        let scopes: Vec<_> = Scope::ALL.iter().map(|scope| scope.as_str()).collect();
        let hash = "0".repeat(64);
        let text = format!(
            "auth:\n  tokens:\n    - {{ name: ada, hash: 'sha256:{hash}', scopes: [{}] }}\nconsumers: {{}}\n",
            scopes.join(", ")
        );
        let checked = check("lazaret.yaml", text.as_bytes(), &NoEnv);
        let config = checked.config.unwrap_or_else(|| panic!("{}", checked.diagnostics.plain()));
        assert_eq!(token(&config.auth.as_ref().unwrap().tokens[0]).unwrap().scopes, Scope::ALL);
        assert!(!tokens(&config).unwrap().is_empty());
    }

    #[test]
    fn a_tokens_file_contains_only_tokens() {
        let here = tempfile::tempdir().unwrap();
        let path = here.path().join("tokens.yaml");
        let hash = "0".repeat(64);
        let tokens =
            format!("auth:\n  tokens:\n    - name: ada\n      hash: \"sha256:{hash}\"\n      scopes: [read]");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            in_file(&path).map(|tokens| tokens.len()).map_err(|error| error.to_string())
        };
        assert_eq!(read(&tokens), Ok(1));
        assert_eq!(read(""), Ok(0), "refused by `tokens`");
        assert!(
            read(&format!("{tokens}\nlisten: 0.0.0.0:1\n")).unwrap_err().contains("unexpected key listen")
        );
        assert!(read("auth: { tokens-file: other.yaml }\n").unwrap_err().contains("auth.tokens-file"));
        assert!(read("auth: { tokens: 5 }\n").unwrap_err().contains("tokens.yaml:1:"));
        assert!(in_file(&here.path().join("none.yaml")).is_err());
        let with_secret = read(&format!("lz_eEA0IGkuKuC17NWjFFsqw3a-MOk_z\n{tokens}\n")).unwrap_err();
        assert!(!with_secret.contains("eEA0"), "{with_secret}");
        assert!(with_secret.contains("remove the token itself"), "{with_secret}");
        assert!(!read("auth: { tokens: 5 }\n").unwrap_err().contains("remove the token"));
    }

    #[test]
    fn a_token_of_the_file_for_an_unknown_consumer_is_told() {
        let here = tempfile::tempdir().unwrap();
        let path = here.path().join("tokens.yaml");
        let hash = "0".repeat(64);
        let text = format!(
            "auth: {{ tokens: [{{ name: ada, hash: 'sha256:{hash}', scopes: [read], consumers: [orders, order] }}] }}\n"
        );
        std::fs::write(&path, text).unwrap();
        let text = format!(
            "auth: {{ tokens-file: '{}' }}\nconsumers:\n  orders:\n    source: {{ inbox: {{}} }}\n    \
             handler: {{ http: {{ url: 'http://127.0.0.1:9' }} }}\n",
            path.display()
        );
        let checked = check("lazaret.yaml", text.as_bytes(), &NoEnv);
        let config = checked.config.unwrap_or_else(|| panic!("{}", checked.diagnostics.plain()));
        let told = remarks_on_tokens_file(&config).unwrap();
        assert_eq!(told, ["token ada of the tokens file names the unknown consumer order"]);
        assert_eq!(tokens(&config).unwrap().len(), 1, "the token is valid");
    }

    #[test]
    fn every_scope_of_the_schema_is_one_of_the_api() {
        let schema = lazaret_config::schema();
        let scopes = schema["$defs"]["token"]["properties"]["scopes"].to_string();
        let words: Vec<&str> =
            scopes.split("\"const\":\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert_eq!(words.len(), Scope::ALL.len(), "{scopes}");
        for word in words {
            assert!(word.parse::<Scope>().is_ok(), "{word}");
        }
    }
}
