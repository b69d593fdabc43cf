//! Bearer tokens: random, hashed, named, with scopes and an expiry.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use lazaret_api::Scope;
use lazaret_core::person::{InvalidName, is_same_person, person_name};
use sha2::{Digest, Sha256};

use super::latest_rights::Rights;
use crate::error::Error;

/// The prefix of every token, so that secret scanners find leaked ones.
const PREFIX: &str = "lz_";
/// The number of random bytes in a token. That many cannot be guessed, so a plain hash suffices.
const RANDOM_BYTES: usize = 32;
/// The longest accepted token.
const MAX_BYTES: usize = 256;

/// The SHA-256 of a token, written as `sha256:` and hexadecimal digits.
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
    /// Hashes a token.
    pub fn of(token: &str) -> Self {
        Self(Sha256::digest(token.as_bytes()).into())
    }

    /// Compares in constant time.
    fn equals(&self, other: &Self) -> bool {
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

/// A text that is not a token hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected sha256: and 64 hexadecimal digits, as printed by lazaret token")]
pub struct InvalidTokenHash;

impl FromStr for TokenHash {
    type Err = InvalidTokenHash;

    fn from_str(text: &str) -> Result<Self, InvalidTokenHash> {
        let digits =
            text.strip_prefix("sha256:").filter(|digits| digits.len() == 64).ok_or(InvalidTokenHash)?;
        let mut hash = [0; 32];
        for (byte, pair) in hash.iter_mut().zip(digits.as_bytes().chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| InvalidTokenHash)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| InvalidTokenHash)?;
        }
        Ok(Self(hash))
    }
}

/// Generates a token. The configuration keeps only its hash.
///
/// # Errors
/// When the system's random number generator fails.
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

/// A configured token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Its name.
    pub name: String,
    /// The hash of the token.
    pub hash: TokenHash,
    /// The scopes.
    pub scopes: Vec<Scope>,
    /// When it expires; `None` for never.
    pub expires_at: Option<Timestamp>,
    /// The person recorded in the audit; `None` for a person of the token's name. A person who rotates a token keeps the
    /// person, and so does not become a second person.
    pub person: Option<String>,
    /// The consumers that the token is limited to; empty for all.
    pub consumers: Vec<String>,
}

impl Token {
    /// Creates a token for all consumers that does not expire.
    pub fn new(name: impl Into<String>, hash: TokenHash, scopes: &[Scope]) -> Self {
        Self {
            name: name.into(),
            hash,
            scopes: scopes.to_vec(),
            expires_at: None,
            person: None,
            consumers: Vec::new(),
        }
    }

    /// Returns `true` once the token has expired.
    pub(crate) fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|end| end <= now)
    }

    /// The rights of the token.
    pub(crate) fn rights(&self) -> Rights {
        Rights::new(&self.scopes, &self.consumers)
    }

    /// The person recorded in the audit.
    pub fn person(&self) -> &str {
        self.person.as_deref().unwrap_or(&self.name)
    }
}

/// The configured tokens. The default has none: the API is unauthenticated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokens(Vec<Token>);

impl Tokens {
    /// Validates the tokens: there is at least one, names and hashes are unique, and each token has scopes. Names of tokens and
    /// persons are kept in their [normalized form](lazaret_core::person::person_name). An unauthenticated API has [`Tokens::default`].
    ///
    /// # Errors
    /// When there is no token, or one is invalid.
    pub fn new(mut tokens: Vec<Token>) -> Result<Self, Error> {
        if tokens.is_empty() {
            return Err(Error::NoTokens);
        }
        for token in &mut tokens {
            let name = token.name.clone();
            let invalid =
                |why: InvalidName| Error::InvalidToken { name: name.clone(), why: why.as_str().to_owned() };
            token.name = person_name(&token.name).map_err(invalid)?;
            if let Some(person) = &mut token.person {
                *person = person_name(person).map_err(invalid)?;
            }
        }
        for (index, token) in tokens.iter().enumerate() {
            let invalid =
                |why: &str| Err(Error::InvalidToken { name: token.name.clone(), why: why.to_owned() });
            if token.scopes.is_empty() {
                return invalid("no scopes");
            }
            let before = &tokens[..index];
            if before.iter().any(|other| is_same_person(&other.name, &token.name)) {
                return invalid("duplicate name: approval by a second person needs distinct names");
            }
            if before.iter().any(|other| other.hash == token.hash) {
                return invalid("duplicate hash");
            }
        }
        Ok(Self(tokens))
    }

    /// The number of tokens.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The tokens, in their order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Token> {
        self.0.iter()
    }

    /// Returns `true` without tokens.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns `true` if this token is among them, unchanged.
    pub(crate) fn contains(&self, token: &Token) -> bool {
        self.0.contains(token)
    }

    /// Finds a token by its secret. Compares with all of them, in constant time.
    pub(crate) fn find(&self, secret: &str) -> Option<&Token> {
        if secret.len() > MAX_BYTES {
            return None;
        }
        let hash = TokenHash::of(secret);
        let mut found = None;
        for token in &self.0 {
            if token.hash.equals(&hash) {
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
        Token::new(name, TokenHash::of(secret), &[Scope::Read])
    }

    #[test]
    fn generated_tokens_are_unique_and_found_by_their_secret() {
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
    fn names_are_kept_in_one_form() {
        let given = Token { person: Some(" Olga  P\u{a0}".to_owned()), ..token("ｏlga ", "1") };
        let tokens = Tokens::new(vec![given]).unwrap();
        let kept = tokens.find("1").unwrap();
        assert_eq!((kept.name.as_str(), kept.person()), ("olga", "Olga P"));
    }

    #[test]
    fn debug_output_hides_the_secret_and_its_hash() {
        let shown = format!("{:?}", token("ada", "lz_secret"));
        assert!(
            !shown.contains("lz_secret") && !shown.contains(&TokenHash::of("lz_secret").to_string()),
            "{shown}"
        );
    }

    #[test]
    fn ambiguous_and_useless_tokens_are_rejected() {
        let refused = |tokens: Vec<Token>| Tokens::new(tokens).unwrap_err().to_string();
        assert!(refused(vec![]).contains("no tokens"));
        assert!(refused(vec![token("a", "1"), token("a", "2")]).contains("duplicate name"));
        for same in ["A", " a", "\u{430}", "ａ"] {
            assert!(refused(vec![token("a", "1"), token(same, "2")]).contains("duplicate name"), "{same:?}");
        }
        assert!(refused(vec![token("o\u{200b}lga", "1")]).contains("invisible"));
        assert!(refused(vec![token("\u{43e}lga", "1")]).contains("several scripts"));
        assert!(refused(vec![token("a", "1"), token("b", "1")]).contains("duplicate hash"));
        assert!(refused(vec![token(" ", "1")]).contains("printable characters"));
        assert!(refused(vec![token("lazaret", "1")]).contains("reserved"));
        assert!(
            refused(vec![Token { person: Some("lazaret".into()), ..token("a", "1") }]).contains("reserved")
        );
        assert!(refused(vec![Token { scopes: vec![], ..token("a", "1") }]).contains("no scopes"));
    }
}
