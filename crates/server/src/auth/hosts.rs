//! Checks Host and Origin: against DNS rebinding and cross-site requests.

use std::net::{IpAddr, Ipv6Addr};

use axum::http::{HeaderMap, Method, Uri, header};
use lazaret_api::Code;

use crate::api_error::{ApiError, Result};

/// The longest name of a host, in bytes.
const MAX_HOST_BYTES: usize = 253;

/// The host names that the server accepts.
#[derive(Clone, Debug)]
pub(crate) struct Hosts {
    named: Vec<String>,
    any: bool,
}

impl Hosts {
    /// The configured names. With tokens and without names, every name is accepted.
    pub(crate) fn new(named: &[String], has_tokens: bool) -> Self {
        Self {
            named: named.iter().map(|name| name.to_ascii_lowercase()).collect(),
            any: has_tokens && named.is_empty(),
        }
    }

    /// Returns `true` if the authority (`host` or `host:port`) is accepted.
    fn accepts(&self, authority: &str) -> bool {
        self.names(authority) || (self.any && host_of(authority).is_some())
    }

    /// Returns `true` if the authority is a configured one, or this machine. Others may be accepted as well, but a client chose them.
    pub(crate) fn names(&self, authority: &str) -> bool {
        let Some(host) = host_of(authority).map(str::to_ascii_lowercase) else { return false };
        is_loopback_name(&host) || self.named.iter().any(|name| *name == host || name == authority)
    }

    /// Rejects requests for another host, and changes that a page of another site sends.
    pub(crate) fn check(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<()> {
        let authority = authority_of(uri, headers);
        let several = headers.get_all(header::HOST).iter().count() > 1;
        let accepted = authority.filter(|authority| !several && self.accepts(authority));
        let Some(authority) = accepted else {
            let detail = format!("host {:?}", authority.unwrap_or("missing"));
            return Err(ApiError::new(Code::HostNotAllowed, detail));
        };
        if method.is_safe() || same_site(headers, authority) {
            Ok(())
        } else {
            Err(ApiError::new(Code::CrossSite, "the browser reports a request from another site"))
        }
    }
}

/// The host and port that a request names.
pub(crate) fn authority_of<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a str> {
    match uri.authority() {
        Some(authority) => Some(authority.as_str()),
        None => headers.get(header::HOST).and_then(|host| host.to_str().ok()),
    }
}

/// Returns `true` if the authority (`host` or `host:port`) names this machine.
pub(crate) fn is_loopback(authority: &str) -> bool {
    host_of(authority).is_some_and(|host| is_loopback_name(&host.to_ascii_lowercase()))
}

/// The host of `host` or `host:port`, an IPv6 address without its brackets. `None` for everything else, such as `user@host`, in which
/// others would see another host.
fn host_of(authority: &str) -> Option<&str> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']')?;
            host.parse::<Ipv6Addr>().ok()?;
            (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (plain(host)?, Some(port)),
            None => (plain(authority)?, None),
        },
    };
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok();
    port.is_none_or(is_port).then_some(host)
}

/// A name or an IPv4 address.
fn plain(host: &str) -> Option<&str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    let fits = !host.is_empty() && host.len() <= MAX_HOST_BYTES && host.bytes().all(is_plain);
    fits.then_some(host)
}

fn is_loopback_name(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Returns `true` unless the browser reports another origin. Clients without a browser send neither header.
fn same_site(headers: &HeaderMap, authority: &str) -> bool {
    let fetched = headers.get("sec-fetch-site").map(|site| site.as_bytes());
    if fetched.is_some_and(|site| site != b"same-origin" && site != b"none") {
        return false;
    }
    let Some(origin) = headers.get(header::ORIGIN) else { return true };
    // A page that sends no referrer, as all of ours, has no origin either. Then the other header tells.
    if origin.as_bytes() == b"null" && fetched == Some(b"same-origin") {
        return true;
    }
    let host = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, host)| host);
    host.is_some_and(|host| host.eq_ignore_ascii_case(authority))
}

/// Returns `true` if the browser reports that a page of this server sent the request. A client that reports nothing is none.
pub(crate) fn reports_same_origin(headers: &HeaderMap, authority: &str) -> bool {
    let fetched = headers.get("sec-fetch-site").map(|site| site.as_bytes());
    let reported = match fetched {
        Some(site) => site == b"same-origin",
        // Browsers of before 2023 send the origin alone.
        None => headers.contains_key(header::ORIGIN),
    };
    reported && same_site(headers, authority)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(hosts: &Hosts, method: Method, pairs: &[(&'static str, &str)]) -> Option<Code> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        let uri = Uri::from_static("/v1/status");
        hosts.check(&method, &uri, &headers).err().map(|error| error.problem.code)
    }

    #[test]
    fn only_loopback_and_configured_names_are_accepted() {
        let hosts = Hosts::new(&["Lazaret.example.com".into()], false);
        for host in [
            "localhost",
            "localhost:7117",
            "127.0.0.1:7117",
            "127.9.9.9",
            "[::1]:7117",
            "LOCALHOST:1",
            "lazaret.example.com:443",
        ] {
            assert_eq!(verdict(&hosts, Method::GET, &[("host", host)]), None, "{host}");
        }
        for host in [
            "evil.com",
            "evil.com:7117",
            "localhost.evil.com",
            "127.0.0.1.evil.com",
            "",
            "10.0.0.1",
            "[::2]",
            "[::1",
            "0.0.0.0",
            "localhost@evil.com",
            "localhost:7117@evil.com",
            "evil.com@localhost",
            "localhost:",
            "localhost:x",
            "localhost:99999",
            "localhost:+80",
            "localhost:80:80",
            "localhost/evil.com",
            "localhost evil.com",
            "[::1]evil.com",
            "[::1]:x",
            "[localhost]",
        ] {
            let refused = Some(Code::HostNotAllowed);
            assert_eq!(verdict(&hosts, Method::GET, &[("host", host)]), refused, "{host}");
        }
        assert_eq!(verdict(&hosts, Method::GET, &[]), Some(Code::HostNotAllowed));
        let two = [("host", "localhost"), ("host", "evil.com")];
        assert_eq!(verdict(&hosts, Method::GET, &two), Some(Code::HostNotAllowed));
    }

    #[test]
    fn with_tokens_and_without_names_every_name_is_accepted() {
        let any = Hosts::new(&[], true);
        assert_eq!(verdict(&any, Method::GET, &[("host", "10.1.2.3:7117")]), None);
        for malformed in ["user@10.1.2.3", "a b", "10.1.2.3:port", &"x".repeat(254)] {
            let refused = Some(Code::HostNotAllowed);
            assert_eq!(verdict(&any, Method::GET, &[("host", malformed)]), refused, "{malformed}");
        }
        let named = Hosts::new(&["a.example".into()], true);
        assert_eq!(verdict(&named, Method::GET, &[("host", "10.1.2.3:7117")]), Some(Code::HostNotAllowed));
    }

    #[test]
    fn only_configured_names_and_this_machine_are_known() {
        let any = Hosts::new(&[], true);
        assert!(any.names("localhost:7117") && any.names("[::1]:7117"));
        assert!(!any.names("10.1.2.3:7117") && !any.names("localhost:80@evil.com"), "a client chose it");
        let named = Hosts::new(&["a.example".into(), "b.example:8443".into()], true);
        assert!(named.names("A.example:9") && named.names("b.example:8443"));
        assert!(!named.names("b.example:9") && !named.names("c.example"));
    }

    #[test]
    fn cross_site_changes_are_rejected() {
        let hosts = Hosts::new(&[], false);
        let host = ("host", "localhost:7117");
        for good in [
            vec![host],
            vec![host, ("origin", "http://localhost:7117")],
            vec![host, ("origin", "http://localhost:7117"), ("sec-fetch-site", "same-origin")],
            vec![host, ("origin", "null"), ("sec-fetch-site", "same-origin")],
            vec![host, ("sec-fetch-site", "none")],
        ] {
            assert_eq!(verdict(&hosts, Method::POST, &good), None, "{good:?}");
        }
        for bad in [
            vec![host, ("origin", "http://evil.com")],
            vec![host, ("origin", "null")],
            vec![host, ("origin", "http://localhost:8080")],
            vec![host, ("origin", "null"), ("sec-fetch-site", "none")],
            vec![host, ("origin", "http://evil.com"), ("sec-fetch-site", "same-origin")],
            vec![host, ("sec-fetch-site", "cross-site")],
            vec![host, ("sec-fetch-site", "same-site")],
        ] {
            assert_eq!(verdict(&hosts, Method::POST, &bad), Some(Code::CrossSite), "{bad:?}");
            assert_eq!(
                verdict(&hosts, Method::GET, &bad),
                None,
                "a read changes nothing, and no other page may see it"
            );
        }
    }
}
