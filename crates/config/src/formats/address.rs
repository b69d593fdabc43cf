//! Parses hosts, ports, addresses, brokers and URLs.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use super::error::{FormatError, bad};
use crate::code::Code;

/// The address that a server listens on.
///
/// ```
/// let text = "listen: '[::1]:7117'\nconsumers: {}";
/// let config = lazaret_config::check("lazaret.yaml", text.as_bytes(), &lazaret_config::NoEnv).config.unwrap();
/// assert!(config.listen.is_loopback());
/// assert_eq!(config.listen.to_string(), "[::1]:7117");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// The host name or IP address, without brackets.
    pub host: String,
    /// The port. 0 picks a free port.
    pub port: u16,
}

impl Address {
    /// Returns `true` if the address is reachable only from this machine.
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
    pub(crate) fn parse(text: &str) -> Result<Self, FormatError> {
        let hint = if text.starts_with(':') {
            format!("write `127.0.0.1{text}`")
        } else {
            "write `127.0.0.1:7117`".to_owned()
        };
        match host_and_port(text, true) {
            Some((host, Some(port))) => Ok(Self { host, port }),
            _ => Err(bad(Code::InvalidAddress, "is not a host and a port", &hint)),
        }
    }
}

/// Checks that the end of a URL's credentials is unambiguous. `rest` is the text after the scheme. A
/// driver would mistake the rest of a password for the host.
pub(crate) fn credentials(rest: &str, is_database: bool, code: Code) -> Result<(), FormatError> {
    let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    let in_authority = authority.matches('@').count();
    let is_clear = match in_authority {
        // A database URL has no other `@`. Elsewhere an `@` may be part of the path, unless the text
        // before it is not a host.
        0 if is_database => !rest.contains('@'),
        0 => !rest.contains('@') || host_and_port(authority, false).is_some(),
        1 => !is_database || rest.matches('@').count() == 1,
        _ => false,
    };
    if is_clear && !authority.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Ok(());
    }
    let hint = "write `@` as `%40`, `:` as `%3A`, `/` as `%2F`, `?` as `%3F`, `#` as `%23`, `%` as `%25` and a space as `%20`";
    Err(bad(code, "has special characters in the user or the password, which must be percent-encoded", hint))
}

/// Checks a URL that must have one of the schemes.
pub(crate) fn url(text: &str, schemes: &[&str]) -> Result<(), FormatError> {
    let example = match schemes[0] {
        "http" => "http://127.0.0.1:8080/events",
        "postgres" => "postgres://user@127.0.0.1:5432/database",
        _ => "mongodb://127.0.0.1:27017",
    };
    let hint = format!("write a URL such as `{example}`");
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err(bad(Code::InvalidAddress, "is not a URL: the scheme is missing", &hint));
    };
    if !schemes.contains(&scheme) {
        return Err(bad(
            Code::InvalidAddress,
            format!("is not a URL with the scheme {}", schemes.join(" or ")),
            &hint,
        ));
    }
    credentials(rest, !scheme.starts_with("http"), Code::InvalidAddress)?;
    let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    let hosts = authority.rsplit_once('@').map_or(authority, |(_, hosts)| hosts);
    if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(bad(Code::InvalidAddress, "is not a URL: it contains white space", &hint));
    }
    // Only database URLs have several hosts.
    let hosts: Vec<_> = if scheme.starts_with("http") { vec![hosts] } else { hosts.split(',').collect() };
    if hosts.iter().any(|host| host_and_port(host, false).is_none()) {
        return Err(bad(Code::InvalidAddress, "is not a URL: invalid host or port", &hint));
    }
    Ok(())
}

/// Checks a host name, with or without a port.
pub(crate) fn host(text: &str) -> Result<(), FormatError> {
    if host_and_port(text, false).is_some() || text.parse::<Ipv6Addr>().is_ok() {
        return Ok(());
    }
    let hint = if text.contains("://") {
        "remove the scheme and the path"
    } else {
        "write a host name such as `lazaret.example.com`"
    };
    Err(bad(Code::InvalidAddress, "is not a host name", hint))
}

/// Checks a comma-separated list of brokers.
pub(crate) fn brokers(text: &str) -> Result<(), FormatError> {
    let broken = text.split(',').any(|broker| {
        let broker = broker.trim();
        let broker = broker.split_once("://").map_or(broker, |(_, rest)| rest);
        host_and_port(broker, false).is_none()
    });
    if broken {
        return Err(bad(
            Code::InvalidAddress,
            "is not a list of brokers",
            "write `host:port`, separated by commas",
        ));
    }
    Ok(())
}

/// Splits a host from its port. An IPv6 address is in brackets.
pub(crate) fn host_and_port(text: &str, needs_port: bool) -> Option<(String, Option<u16>)> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_addresses_are_recognised() {
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
            let address = Address::parse(text).ok();
            assert_eq!(address.as_ref().map(Address::is_loopback), expected, "{text}");
            assert!(address.is_none_or(|address| address.to_string() == text), "{text}");
        }
    }
}
