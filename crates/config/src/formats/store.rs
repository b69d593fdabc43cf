//! Parses the location of the store.

use std::fmt;

use super::address::{credentials, host_and_port};
use super::error::{FormatError, bad};
use crate::code::Code;
use crate::suggest::nearest;

/// The location of the store for letters and positions.
#[derive(Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreLocation {
    /// In memory. It is lost when the process exits.
    Memory,
    /// In a SQLite file.
    Sqlite(String),
    /// In PostgreSQL, at this URL.
    Postgres(String),
    /// In MongoDB, at this URL.
    Mongodb(String),
}

impl StoreLocation {
    /// Returns the kind of the store: `memory`, `sqlite`, `postgres` or `mongodb`.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Sqlite(_) => "sqlite",
            Self::Postgres(_) => "postgres",
            Self::Mongodb(_) => "mongodb",
        }
    }
}

/// Omits the URL, which may contain a password.
impl fmt::Debug for StoreLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "sqlite:{path}"),
            other => write!(f, "{}:…", other.kind()),
        }
    }
}

impl StoreLocation {
    pub(crate) fn parse(text: &str) -> Result<Self, FormatError> {
        let wrong = |why: &str, hint: &str| Err(bad(Code::InvalidStore, why, hint));
        let Some((scheme, rest)) = text.split_once(':') else {
            let hint = match nearest(text, ["memory", "sqlite"]) {
                Some("memory") => IN_MEMORY,
                _ => "write `store: sqlite:PATH` or, in quotes, `store: \"memory:\"`",
            };
            return wrong("is not a store", hint);
        };
        match scheme {
            "memory" if rest.is_empty() => Ok(Self::Memory),
            "memory" => wrong("has text after `memory:`", IN_MEMORY),
            "sqlite" if rest.is_empty() => wrong("has no file name", "write `sqlite:lazaret.db`"),
            "sqlite" => Ok(Self::Sqlite(rest.strip_prefix("//").unwrap_or(rest).to_owned())),
            "postgres" | "postgresql" => {
                database(text, rest, "postgres://user@host:5432/database").map(Self::Postgres)
            }
            "mongodb" | "mongodb+srv" => {
                database(text, rest, "mongodb://host:27017/database").map(Self::Mongodb)
            }
            other => {
                let known = nearest(other, ["memory", "sqlite", "postgres", "mongodb"]);
                let hint = match known {
                    Some("memory") => IN_MEMORY.to_owned(),
                    Some(known) => format!("did you mean `{known}:`?"),
                    None => "write `sqlite:PATH` or, in quotes, `\"memory:\"`".to_owned(),
                };
                wrong("is not a store", &hint)
            }
        }
    }
}

/// The hint for an unquoted store in memory. Without quotes, YAML parses the colon as the end of a key.
const IN_MEMORY: &str = "quote it: `store: \"memory:\"`";

/// Checks the host of a database URL. The driver parses the rest.
fn database(text: &str, rest: &str, example: &str) -> Result<String, FormatError> {
    let hint = format!("write a URL such as `{example}`");
    if let Some(rest) = rest.strip_prefix("//") {
        credentials(rest, true, Code::InvalidStore)?;
    }
    let authority = rest.strip_prefix("//").map(|rest| &rest[..rest.find(['/', '?']).unwrap_or(rest.len())]);
    let hosts = authority.map(|authority| authority.rsplit_once('@').map_or(authority, |(_, hosts)| hosts));
    let fits = hosts.is_some_and(|hosts| hosts.split(',').all(|host| host_and_port(host, false).is_some()));
    if fits { Ok(text.to_owned()) } else { Err(bad(Code::InvalidStore, "is not a database URL", &hint)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_are_parsed_and_never_show_a_password() {
        let table = [
            ("memory:", Some("memory:…")),
            ("sqlite:a/b.db", Some("sqlite:a/b.db")),
            ("sqlite:///var/x.db", Some("sqlite:/var/x.db")),
            ("postgres://u:hunter2@h:5432/db", Some("postgres:…")),
            ("postgresql://h/db", Some("postgres:…")),
            ("postgres://u@a.example,b.example/db?target_session_attrs=read-write", Some("postgres:…")),
            ("mongodb://a:1,b:2/db", Some("mongodb:…")),
            ("mongodb+srv://x.example.com", Some("mongodb:…")),
            ("memory", None),
            ("sqlite:", None),
            ("postgres:db", None),
            ("postgres://", None),
            ("mongodb://", None),
            ("mongodb+srv:x", None),
            ("mysql://h/db", None),
            ("postgres://u:hunter2@et9@127.0.0.1/db", None),
            ("postgres://u:hun%40ter2@h/db", Some("postgres:…")),
        ];
        for (text, expected) in table {
            let store = StoreLocation::parse(text).ok();
            assert_eq!(store.map(|store| format!("{store:?}")).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn special_characters_in_a_password_are_named_as_the_cause() {
        for special in ["@", "/", "?", "#", " "] {
            for scheme in ["postgres", "mongodb"] {
                let text = format!("{scheme}://u:hun{special}ter2@127.0.0.1:5432/db");
                let error = StoreLocation::parse(&text).err().unwrap();
                assert!(error.why.contains("percent-encoded"), "{text}: {}", error.why);
                let hint = error.hint.unwrap();
                assert!(hint.contains("`@` as `%40`"), "{hint}");
                assert!(!format!("{} {hint}", error.why).contains("ter2"), "{text}");
            }
        }
    }
}
