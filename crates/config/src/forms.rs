//! The forms that a text may have to have: addresses, stores, patterns, schedules, names.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use croner::Cron;
use croner::parser::{CronParser, Seconds};
use jiff::civil::date;
use jiff::tz::TimeZone;
use lazaret_core::policy::{Comparison, Glob};
use lazaret_core::{Fingerprint, Reason};
use regex::Regex;

use crate::code::Code;
use crate::own;
use crate::suggest::nearest;
use crate::table::Form;
use crate::value::Value;

/// Why a text does not have its form.
pub(crate) struct BadForm {
    pub(crate) code: Code,
    pub(crate) why: String,
    pub(crate) hint: Option<String>,
}

pub(crate) fn bad(code: Code, why: impl Into<String>, hint: &str) -> BadForm {
    let hint = (!hint.is_empty()).then(|| hint.to_owned());
    BadForm { code, why: why.into(), hint }
}

/// Reads a text of some form. What is wrong with it is told without its value, which may be a secret.
pub(crate) fn read(form: Form, text: &str) -> Result<Value, BadForm> {
    if text.is_empty() && !matches!(form, Form::Free | Form::HeaderValue) {
        return Err(bad(Code::EmptyValue, "must not be empty", ""));
    }
    let plain = || Value::Text(text.to_owned());
    match form {
        Form::Free | Form::Line => Ok(plain()),
        Form::Path if text.contains('\0') => Err(bad(Code::OutOfRange, "cannot be a path", "")),
        Form::Path => Ok(plain()),
        Form::Name => name(text).map(|()| plain()),
        Form::Url => url(text, &["http", "https"]).map(|()| plain()),
        Form::MongoUri => url(text, &["mongodb", "mongodb+srv"]).map(|()| plain()),
        Form::Address => Address::read(text).map(Value::Address),
        Form::Brokers => brokers(text).map(|()| plain()),
        Form::Host => host(text).map(|()| plain()),
        Form::Store => StoreAt::read(text).map(Value::Store),
        Form::Reason => reason(text).map(Value::Reason),
        Form::Glob => {
            text.parse::<Glob>().map(Value::Glob).map_err(|e| bad(Code::BadPattern, e.to_string(), ""))
        }
        Form::Regex => Regex::new(text).map(Value::Regex).map_err(|error| regex_error(&error)),
        Form::Comparison => {
            let parsed = text.parse::<Comparison>().map(Value::Comparison);
            parsed.map_err(|_| {
                bad(Code::BadPattern, "is not a comparison", "write `>=3`, `>3`, `<2`, `<=2`, `=1` or `3`")
            })
        }
        Form::Cron => cron(text).map(|()| plain()),
        Form::Sequence => SequenceRule::read(text).map(Value::Sequence),
        Form::Fingerprint => {
            let parsed = text.parse::<Fingerprint>().map(Value::Fingerprint);
            parsed.map_err(|_| {
                bad(Code::BadPattern, "is not a fingerprint", "copy it from a letter or a group")
            })
        }
        Form::HeaderName => {
            token(text, "!#$%&'*+-.^_`|~", "cannot be the name of a header")?;
            own::header(text).map(|()| plain())
        }
        Form::HeaderValue => header_value(text).map(|()| plain()),
        Form::EnvName if text.contains(['=', '\0']) => {
            Err(bad(Code::BadName, "cannot be the name of a variable", ""))
        }
        Form::EnvName => Ok(plain()),
        Form::Topic if text.len() > 249 || matches!(text, "." | "..") => Err(bad(
            Code::BadName,
            "cannot be the name of a topic",
            "use 1 to 249 characters, and not dots alone",
        )),
        Form::Topic => token(text, "._-", "cannot be the name of a topic").map(|()| plain()),
        Form::Property => {
            own::property(text)?;
            token(text, "._-", "cannot be the name of a property").map(|()| plain())
        }
        Form::Hash => hash(text).map(|()| plain()),
        Form::Time => text.parse().map(Value::Time).map_err(|_| {
            bad(Code::BadToken, "is not a time", "write it in RFC 3339, as in `2027-01-01T00:00:00Z`")
        }),
    }
}

/// The names that a consumer or a token can have: those that the engine takes.
fn name(text: &str) -> Result<(), BadForm> {
    if text.len() > 200 || text.contains('/') || text.chars().any(char::is_control) {
        return Err(bad(
            Code::BadName,
            "cannot be a name",
            "use 1 to 200 characters, none of them a slash or a control character",
        ));
    }
    Ok(())
}

fn token(text: &str, also: &str, why: &str) -> Result<(), BadForm> {
    let fits = text.chars().all(|c| c.is_ascii_alphanumeric() || also.contains(c));
    if fits {
        Ok(())
    } else {
        Err(bad(Code::BadName, why, "use letters, digits, dots, dashes and underscores"))
    }
}

fn url(text: &str, schemes: &[&str]) -> Result<(), BadForm> {
    let example =
        if schemes[0] == "http" { "http://127.0.0.1:8080/events" } else { "mongodb://127.0.0.1:27017" };
    let hint = format!("write it as in `{example}`");
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err(bad(Code::BadAddress, "is not a URL: it has no scheme", &hint));
    };
    if !schemes.contains(&scheme) {
        return Err(bad(Code::BadAddress, format!("is not a URL with {}", schemes.join(" or ")), &hint));
    }
    let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    let hosts = authority.rsplit_once('@').map_or(authority, |(_, hosts)| hosts);
    if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(bad(Code::BadAddress, "is not a URL: it has white space in it", &hint));
    }
    // Only MongoDB knows several hosts.
    let hosts: Vec<_> = if scheme.starts_with("mongodb") { hosts.split(',').collect() } else { vec![hosts] };
    if hosts.iter().any(|host| host_and_port(host, false).is_none()) {
        return Err(bad(Code::BadAddress, "is not a URL: its host or port cannot be read", &hint));
    }
    Ok(())
}

fn host(text: &str) -> Result<(), BadForm> {
    if host_and_port(text, false).is_some() || text.parse::<Ipv6Addr>().is_ok() {
        return Ok(());
    }
    let hint = if text.contains("://") {
        "leave out the scheme and the path"
    } else {
        "write it as in `lazaret.example.com`"
    };
    Err(bad(Code::BadAddress, "is not the name of a host", hint))
}

fn brokers(text: &str) -> Result<(), BadForm> {
    let broken = text.split(',').any(|broker| {
        let broker = broker.trim();
        let broker = broker.split_once("://").map_or(broker, |(_, rest)| rest);
        host_and_port(broker, false).is_none()
    });
    if broken {
        return Err(bad(
            Code::BadAddress,
            "is not a list of brokers",
            "write `host:port`, separated by commas",
        ));
    }
    Ok(())
}

/// Splits a host and its port. An IPv6 address stands in brackets.
fn host_and_port(text: &str, needs_port: bool) -> Option<(String, Option<u16>)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']')?;
            host.parse::<Ipv6Addr>().ok()?;
            (host, after.strip_prefix(':').or_else(|| after.is_empty().then_some("")))
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, Some("")),
        },
    };
    let port = port?;
    let has_colon = text.ends_with(':');
    if host.is_empty() || has_colon || (needs_port && port.is_empty()) {
        return None;
    }
    let fits = host.chars().all(|c| c.is_alphanumeric() || ".-_:%*".contains(c));
    let number = if port.is_empty() { None } else { Some(digits(port)?) };
    fits.then(|| (host.to_owned(), number))
}

fn digits(text: &str) -> Option<u16> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

fn reason(text: &str) -> Result<Reason, BadForm> {
    Reason::new(text).map_err(|_| {
        if text == "*" {
            let hint = "there is no `*`: an empty list, or no key at all, stands for every reason";
            return bad(Code::BadReason, "is not a reason code", hint);
        }
        let meant = Reason::from_words(text);
        let hint =
            if meant == Reason::HANDLER_ERROR { String::new() } else { format!("; did you mean `{meant}`?") };
        bad(
            Code::BadReason,
            "is not a reason code",
            &format!("use upper-case letters, digits and underscores{hint}"),
        )
    })
}

/// The message of the regex crate is a drawing of several lines; its last one says what is wrong.
fn regex_error(error: &regex::Error) -> BadForm {
    let text = error.to_string();
    let last = text.lines().last().unwrap_or_default().trim();
    let why = last.strip_prefix("error: ").unwrap_or(last);
    bad(
        Code::BadPattern,
        format!("is not a regular expression: {why}"),
        "put a backslash before a character that is meant as itself",
    )
}

fn cron(text: &str) -> Result<(), BadForm> {
    let parsed = CronParser::builder().seconds(Seconds::Optional).build().parse(text);
    let parsed = parsed.map_err(|error| {
        let why = match text.split_whitespace().count() {
            5 | 6 => format!("is not a schedule: {}", error.to_string().trim_end_matches('.').to_lowercase()),
            count => format!("is not a schedule: it has {count} fields, not five or six"),
        };
        bad(
            Code::BadSchedule,
            why,
            "write five or six fields, as in `0 */15 * * * *`: second, minute, hour, day, month, weekday",
        )
    })?;
    if comes(&parsed) {
        return Ok(());
    }
    let hint = "look at the day and the month: the 30th of February never comes";
    Err(bad(Code::BadSchedule, "is a schedule whose time never comes", hint))
}

/// Whether a schedule has a time at all after the beginning of 2026. Which one does not matter, so no clock is asked.
fn comes(schedule: &Cron) -> bool {
    let from = date(2026, 1, 1).to_zoned(TimeZone::UTC);
    from.is_ok_and(|from| schedule.find_next_occurrence(&from, true).is_ok())
}

/// What a header can carry: one line without control characters.
fn header_value(text: &str) -> Result<(), BadForm> {
    if text.bytes().all(|byte| byte == b'\t' || !byte.is_ascii_control()) {
        return Ok(());
    }
    let hint = "write it on one line, without control characters; a secret that came from a file may end with a line break";
    Err(bad(Code::OutOfRange, "cannot be sent in a header", hint))
}

fn hash(text: &str) -> Result<(), BadForm> {
    let digits = text.strip_prefix("sha256:");
    if digits.is_some_and(|digits| digits.len() == 64 && digits.bytes().all(|b| b.is_ascii_hexdigit())) {
        return Ok(());
    }
    Err(bad(
        Code::BadToken,
        "is not the hash of a token",
        "write `sha256:` and 64 hexadecimal digits; `lazaret token` makes one",
    ))
}

/// Where a server listens.
///
/// ```
/// let text = "listen: '[::1]:7117'\nconsumers: {}";
/// let config = lazaret_config::check("lazaret.yaml", text.as_bytes(), &lazaret_config::NoEnv).config.unwrap();
/// assert!(config.listen.is_loopback());
/// assert_eq!(config.listen.to_string(), "[::1]:7117");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// A name or an address, without brackets.
    pub host: String,
    /// The port; 0 takes any that is free.
    pub port: u16,
}

impl Address {
    /// Whether only this machine can reach it.
    pub fn is_loopback(&self) -> bool {
        match self.host.parse::<IpAddr>() {
            Ok(address) => address.is_loopback(),
            Err(_) => self.host.eq_ignore_ascii_case("localhost"),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl Address {
    pub(crate) fn read(text: &str) -> Result<Self, BadForm> {
        let hint = if text.starts_with(':') {
            format!("write `127.0.0.1{text}`")
        } else {
            "write `127.0.0.1:7117`".to_owned()
        };
        match host_and_port(text, true) {
            Some((host, Some(port))) => Ok(Self { host, port }),
            _ => Err(bad(Code::BadAddress, "is not an address with a port", &hint)),
        }
    }
}

/// Where letters and positions are kept.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum StoreAt {
    /// In memory: gone when the process ends.
    Memory,
    /// In a SQLite file.
    Sqlite(String),
    /// In PostgreSQL, at this URL.
    Postgres(String),
    /// In MongoDB, at this URL.
    Mongodb(String),
}

impl StoreAt {
    /// What it is, in one word.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Sqlite(_) => "sqlite",
            Self::Postgres(_) => "postgres",
            Self::Mongodb(_) => "mongodb",
        }
    }
}

/// Without the URL, which may hold a password.
impl fmt::Debug for StoreAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "sqlite:{path}"),
            other => write!(f, "{}:…", other.kind()),
        }
    }
}

impl StoreAt {
    pub(crate) fn read(text: &str) -> Result<Self, BadForm> {
        let wrong = |why: &str, hint: &str| Err(bad(Code::BadStore, why, hint));
        let Some((scheme, rest)) = text.split_once(':') else {
            let hint = match nearest(text, ["memory", "sqlite"]) {
                Some("memory") => IN_MEMORY,
                _ => "write `store: sqlite:PATH` or, in quotes, `store: \"memory:\"`",
            };
            return wrong("is not a store", hint);
        };
        match scheme {
            "memory" if rest.is_empty() => Ok(Self::Memory),
            "memory" => wrong("has nothing behind `memory:`", IN_MEMORY),
            "sqlite" if rest.is_empty() => wrong("names no file", "write `sqlite:lazaret.db`"),
            "sqlite" => Ok(Self::Sqlite(rest.strip_prefix("//").unwrap_or(rest).to_owned())),
            "postgres" | "postgresql" => database(text, rest).map(Self::Postgres),
            "mongodb" | "mongodb+srv" => database(text, rest).map(Self::Mongodb),
            other => {
                let known = nearest(other, ["memory", "sqlite", "postgres", "mongodb"]);
                let hint = match known {
                    Some("memory") => IN_MEMORY.to_owned(),
                    Some(known) => format!("did you mean `{known}:`?"),
                    None => "a store is `sqlite:PATH` or, in quotes, `\"memory:\"`".to_owned(),
                };
                wrong("is not a store", &hint)
            }
        }
    }
}

/// How a store in memory is written: without quotes, YAML takes the colon for that of a key.
const IN_MEMORY: &str = "write it in quotes: `store: \"memory:\"`";

/// A URL of a database server: its host is read, the rest is the driver's.
fn database(text: &str, rest: &str) -> Result<String, BadForm> {
    let hint = "write it as in `postgres://user@host:5432/database`";
    let authority = rest.strip_prefix("//").map(|rest| &rest[..rest.find(['/', '?']).unwrap_or(rest.len())]);
    let hosts = authority.map(|authority| authority.rsplit_once('@').map_or(authority, |(_, hosts)| hosts));
    let fits = hosts.is_some_and(|hosts| hosts.split(',').all(|host| host_and_port(host, false).is_some()));
    if fits { Ok(text.to_owned()) } else { Err(bad(Code::BadStore, "is not the URL of a database", hint)) }
}

/// What makes messages a sequence.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SequenceRule {
    /// The key.
    Key,
    /// The value of a header.
    Header(String),
    /// What a JSON pointer finds in the payload.
    Json(String),
    /// The partition.
    Partition,
}

impl SequenceRule {
    pub(crate) fn read(text: &str) -> Result<Self, BadForm> {
        let wrong = |why: &str, hint: &str| Err(bad(Code::BadSequence, why, hint));
        match text.split_once(':') {
            None if text == "key" => Ok(Self::Key),
            None if text == "partition" => Ok(Self::Partition),
            Some(("header", "")) => wrong("names no header", "write `header:NAME`"),
            Some(("header", name)) => Ok(Self::Header(name.trim().to_owned())),
            Some(("json", pointer)) if pointer.starts_with('/') => Ok(Self::Json(pointer.to_owned())),
            Some(("json", pointer)) => {
                let hint = format!(
                    "a JSON pointer begins with a slash: write `json:/{}`",
                    pointer.trim_start_matches("$.").replace('.', "/")
                );
                wrong("is not a JSON pointer", &hint)
            }
            _ => {
                wrong("is not a sequence rule", "write `key`, `header:NAME`, `json:/pointer` or `partition`")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_know_whether_others_can_reach_them() {
        let table = [
            ("127.0.0.1:7117", Some(true)),
            ("127.9.9.9:1", Some(true)),
            ("localhost:80", Some(true)),
            ("[::1]:80", Some(true)),
            ("0.0.0.0:80", Some(false)),
            ("[::]:80", Some(false)),
            ("example.com:80", Some(false)),
            ("localhost.example.com:80", Some(false)),
            ("127.0.0.1", None),
            (":7117", None),
            ("127.0.0.1:", None),
            ("127.0.0.1:99999", None),
            ("127.0.0.1:+5", None),
            ("::1:80", None),
            ("[::1", None),
            ("[x]:80", None),
            ("a b:80", None),
        ];
        for (text, expected) in table {
            let address = Address::read(text).ok();
            assert_eq!(address.as_ref().map(Address::is_loopback), expected, "{text}");
            assert!(address.is_none_or(|address| address.to_string() == text), "{text}");
        }
    }

    #[test]
    fn stores_are_read_and_never_show_a_password() {
        let table = [
            ("memory:", Some("memory:…")),
            ("sqlite:a/b.db", Some("sqlite:a/b.db")),
            ("sqlite:///var/x.db", Some("sqlite:/var/x.db")),
            ("postgres://u:hunter2@h:5432/db", Some("postgres:…")),
            ("postgresql://h/db", Some("postgres:…")),
            ("mongodb://a:1,b:2/db", Some("mongodb:…")),
            ("mongodb+srv://x.example.com", Some("mongodb:…")),
            ("memory", None),
            ("sqlite:", None),
            ("postgres:db", None),
            ("postgres://", None),
            ("mysql://h/db", None),
        ];
        for (text, expected) in table {
            let store = StoreAt::read(text).ok();
            assert_eq!(store.map(|store| format!("{store:?}")).as_deref(), expected, "{text}");
        }
    }
}
