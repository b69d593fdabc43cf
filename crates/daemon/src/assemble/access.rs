//! Who may use the API, and how much of it at once.

use lazaret_api::Scope;
use lazaret_config::{Config, RequestLimits};
use lazaret_server::{Limits, Token, Tokens};

use crate::error::Error;

/// The tokens of the configuration. None at all when nobody is asked.
pub(crate) fn tokens(config: &Config) -> Result<Tokens, Error> {
    let wanted = config.auth.iter().flat_map(|auth| &auth.tokens);
    let tokens = wanted.map(token).collect::<Result<Vec<_>, _>>()?;
    Ok(Tokens::new(tokens)?)
}

fn token(wanted: &lazaret_config::Token) -> Result<Token, Error> {
    let wrong = |why: String| Error::Token { name: wanted.name.clone(), why };
    let scopes = wanted.scopes.iter().map(|word| word.parse::<Scope>()).collect::<Result<_, _>>();
    Ok(Token {
        name: wanted.name.clone(),
        hash: wanted.hash.parse().map_err(wrong)?,
        scopes: scopes.map_err(wrong)?,
        expires_at: wanted.expires,
    })
}

/// How large requests may be, within the server's other limits.
pub(crate) fn limits(wanted: &RequestLimits) -> Limits {
    let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    Limits {
        message_bytes: size(wanted.body),
        // Requests that carry no message keep the server's own limit, unless a larger one is allowed for all.
        json_bytes: size(wanted.body).max(Limits::default().json_bytes),
        batch_bytes: size(wanted.batch),
        header_bytes: size(wanted.headers),
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
    fn every_word_for_a_scope_in_the_schema_is_known_to_the_api() {
        let schema = lazaret_config::schema().to_string();
        let (_, scopes) = schema.split_once("\"scopes\":").expect("the key");
        let scopes = scopes.split_once(']').expect("its words").0;
        let words: Vec<&str> =
            scopes.split("\"const\":\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert_eq!(words.len(), Scope::ALL.len(), "{scopes}");
        for word in words {
            assert!(word.parse::<Scope>().is_ok(), "{word}");
        }
    }
}
