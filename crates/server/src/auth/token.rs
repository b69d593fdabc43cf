//! Bearer tokens: random, hashed, scoped, named and ending.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use lazaret_api::Scope;
use sha2::{Digest, Sha256};

use crate::error::Error;

/// How every token begins, so that scanners for secrets find one that got lost.
const PREFIX: &str = "lz_";
/// How many random bytes a token has. That many cannot be guessed, so a plain hash of it is enough.
const RANDOM_BYTES: usize = 32;
/// The longest text that is looked at as a token.
const LONGEST: usize = 256;

/// What is kept of a token: its SHA-256. Written `sha256:` and hexadecimal digits.
///
/// ```
/// use lazaret_server::TokenHash;
/// let hash = TokenHash::of("lz_example");
/// assert_eq!(hash.to_string().parse::<TokenHash>().unwrap(), hash);
/// assert!("lz_example".parse::<TokenHash>().is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TokenHash([u8; 32]);

impl TokenHash {
    /// The hash of a token.
    pub fn of(token: &str) -> Self {
        Self(Sha256::digest(token.as_bytes()).into())
    }

    /// Whether they are the same, in a time that does not depend on where they differ.
    fn is(&self, other: &Self) -> bool {
        let differ = self.0.iter().zip(other.0).fold(0_u8, |differ, (a, b)| differ | (a ^ b));
        std::hint::black_box(differ) == 0
    }
}

impl fmt::Display for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:…")
    }
}

impl FromStr for TokenHash {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "expected sha256: and 64 hexadecimal digits, as lazaret token prints them".to_owned();
        let digits = text.strip_prefix("sha256:").filter(|digits| digits.len() == 64).ok_or_else(wrong)?;
        let mut hash = [0; 32];
        for (byte, pair) in hash.iter_mut().zip(digits.as_bytes().chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| wrong())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
        }
        Ok(Self(hash))
    }
}

/// Makes a token. It is shown once; the hash goes into the configuration.
///
/// # Errors
/// When the system has no random numbers.
///
/// ```
/// let (token, hash) = lazaret_server::generate_token().unwrap();
/// assert!(token.starts_with("lz_"));
/// assert_eq!(lazaret_server::TokenHash::of(&token), hash);
/// ```
pub fn generate_token() -> Result<(String, TokenHash), std::io::Error> {
    let mut random = [0; RANDOM_BYTES];
    getrandom::fill(&mut random).map_err(|error| std::io::Error::other(error.to_string()))?;
    let token = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(random));
    let hash = TokenHash::of(&token);
    Ok((token, hash))
}

/// Somebody who may ask, by a token that only they know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// The name that stands in the audit.
    pub name: String,
    /// What is kept of the token.
    pub hash: TokenHash,
    /// What it may be used for.
    pub scopes: Vec<Scope>,
    /// When it ends; `None` for never.
    pub expires_at: Option<Timestamp>,
}

/// All tokens. None at all means that everybody on this machine may do everything.
#[derive(Clone, Debug, Default)]
pub struct Tokens(Vec<Token>);

impl Tokens {
    /// Checks the tokens: each has a name of its own, a secret of its own, and something that it may do.
    ///
    /// # Errors
    /// When one does not.
    pub fn new(tokens: Vec<Token>) -> Result<Self, Error> {
        for (index, token) in tokens.iter().enumerate() {
            let wrong =
                |why: &str| Err(Error::InvalidToken { name: token.name.clone(), why: why.to_owned() });
            if token.name.trim().is_empty()
                || token.name.len() > 100
                || token.name.chars().any(char::is_control)
            {
                return wrong("a name has 1 to 100 characters that can be shown");
            }
            if token.name == "lazaret" {
                return wrong("that name is Lazaret's own in the audit");
            }
            if token.scopes.is_empty() {
                return wrong("it has no scopes, so it may do nothing");
            }
            let before = &tokens[..index];
            if before.iter().any(|other| other.name == token.name) {
                return wrong(
                    "there is another one of that name: a second person must be told from the first",
                );
            }
            if before.iter().any(|other| other.hash == token.hash) {
                return wrong("another one has the same hash");
            }
        }
        Ok(Self(tokens))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The one with this secret. Looks at all of them, so that the time tells nothing.
    pub(crate) fn find(&self, secret: &str) -> Option<&Token> {
        if secret.len() > LONGEST {
            return None;
        }
        let hash = TokenHash::of(secret);
        let mut found = None;
        for token in &self.0 {
            if token.hash.is(&hash) {
                found = Some(token);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(name: &str, secret: &str) -> Token {
        Token { name: name.into(), hash: TokenHash::of(secret), scopes: vec![Scope::Read], expires_at: None }
    }

    #[test]
    fn no_two_generated_tokens_are_the_same_and_each_is_found_by_its_secret() {
        let (one, one_hash) = generate_token().unwrap();
        let (two, _) = generate_token().unwrap();
        assert_ne!(one, two);
        assert_eq!(one.len(), PREFIX.len() + 43);
        let tokens = Tokens::new(vec![token("a", &two), Token { hash: one_hash, ..token("b", "") }]).unwrap();
        assert_eq!(tokens.find(&one).map(|token| token.name.as_str()), Some("b"));
        assert_eq!(tokens.find(&two).map(|token| token.name.as_str()), Some("a"));
        for wrong in ["", "lz_", &one[..one.len() - 1], &one_hash.to_string(), &"x".repeat(10_000)] {
            assert!(tokens.find(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn what_is_kept_does_not_show_the_secret() {
        let shown = format!("{:?}", token("ada", "lz_secret"));
        assert!(
            !shown.contains("lz_secret") && !shown.contains(&TokenHash::of("lz_secret").to_string()),
            "{shown}"
        );
    }

    #[test]
    fn tokens_that_could_be_mistaken_for_each_other_are_refused() {
        let refused = |tokens: Vec<Token>| Tokens::new(tokens).unwrap_err().to_string();
        assert!(refused(vec![token("a", "1"), token("a", "2")]).contains("another one of that name"));
        assert!(refused(vec![token("a", "1"), token("b", "1")]).contains("same hash"));
        assert!(refused(vec![token(" ", "1")]).contains("characters that can be shown"));
        assert!(refused(vec![token("lazaret", "1")]).contains("Lazaret's own"));
        assert!(refused(vec![Token { scopes: vec![], ..token("a", "1") }]).contains("may do nothing"));
    }
}
