//! Where a request comes from and whom it means: against pages of other sites, and against names that point here.

use std::net::IpAddr;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use lazaret_api::Code;

use crate::app::App;
use crate::fault::{Fault, Result};

/// Names under which the server may be asked.
#[derive(Clone, Debug)]
pub(crate) struct Hosts {
    named: Vec<String>,
    any: bool,
}

impl Hosts {
    /// The names that were configured. Where a token is needed anyway and no names are given, every name is fine.
    pub(crate) fn new(named: &[String], has_tokens: bool) -> Self {
        Self {
            named: named.iter().map(|name| name.to_ascii_lowercase()).collect(),
            any: has_tokens && named.is_empty(),
        }
    }

    /// Whether a request for this authority (`host` or `host:port`) is meant for us.
    fn serve(&self, authority: &str) -> bool {
        let host = host_of(authority).to_ascii_lowercase();
        self.any
            || is_loopback_name(&host)
            || self.named.iter().any(|name| *name == host || name == authority)
    }
}

/// The host of `host:port`, an IPv6 address without its brackets.
fn host_of(authority: &str) -> &str {
    if let Some(rest) = authority.strip_prefix('[') {
        return rest.split_once(']').map_or("", |(host, _)| host);
    }
    authority.rsplit_once(':').map_or(authority, |(host, _)| host)
}

fn is_loopback_name(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Refuses requests that mean another host (a name that somebody else lets point here), and changes that a page of another
/// site sends.
pub(crate) async fn check_origin(State(app): State<App>, request: Request, next: Next) -> Response {
    match check(&app.hosts, request.method(), request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(fault) => fault.into_response(),
    }
}

fn check(hosts: &Hosts, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<()> {
    let authority = match uri.authority() {
        Some(authority) => Some(authority.as_str()),
        None => headers.get(header::HOST).and_then(|host| host.to_str().ok()),
    };
    let several = headers.get_all(header::HOST).iter().count() > 1;
    let served = authority.filter(|authority| !several && hosts.serve(authority));
    let Some(authority) = served else {
        let detail = format!("asked for {:?}", authority.unwrap_or("no host"));
        return Err(Fault::new(Code::HostNotAllowed, detail));
    };
    if method.is_safe() || same_site(headers, authority) {
        Ok(())
    } else {
        Err(Fault::new(Code::CrossSite, "the browser says that a page of another site sent it"))
    }
}

/// Whether a browser says that one of our own pages sent it. Whoever is no browser says nothing, and is believed.
fn same_site(headers: &HeaderMap, authority: &str) -> bool {
    let fetched = headers.get("sec-fetch-site").map(|site| site.as_bytes());
    if fetched.is_some_and(|site| site != b"same-origin" && site != b"none") {
        return false;
    }
    let Some(origin) = headers.get(header::ORIGIN) else { return true };
    let host = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, host)| host);
    host.is_some_and(|host| host.eq_ignore_ascii_case(authority))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(hosts: &Hosts, method: Method, pairs: &[(&'static str, &str)]) -> Option<Code> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        check(hosts, &method, &Uri::from_static("/v1/status"), &headers).err().map(|fault| fault.problem.code)
    }

    #[test]
    fn only_names_of_this_machine_and_configured_ones_are_served() {
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
        ] {
            let refused = Some(Code::HostNotAllowed);
            assert_eq!(verdict(&hosts, Method::GET, &[("host", host)]), refused, "{host}");
        }
        assert_eq!(verdict(&hosts, Method::GET, &[]), Some(Code::HostNotAllowed));
        let two = [("host", "localhost"), ("host", "evil.com")];
        assert_eq!(verdict(&hosts, Method::GET, &two), Some(Code::HostNotAllowed));
    }

    #[test]
    fn with_tokens_and_no_names_every_name_is_served() {
        let any = Hosts::new(&[], true);
        assert_eq!(verdict(&any, Method::GET, &[("host", "10.1.2.3:7117")]), None);
        let named = Hosts::new(&["a.example".into()], true);
        assert_eq!(verdict(&named, Method::GET, &[("host", "10.1.2.3:7117")]), Some(Code::HostNotAllowed));
    }

    #[test]
    fn changes_from_pages_of_other_sites_are_refused() {
        let hosts = Hosts::new(&[], false);
        let host = ("host", "localhost:7117");
        for good in [
            vec![host],
            vec![host, ("origin", "http://localhost:7117")],
            vec![host, ("origin", "http://localhost:7117"), ("sec-fetch-site", "same-origin")],
            vec![host, ("sec-fetch-site", "none")],
        ] {
            assert_eq!(verdict(&hosts, Method::POST, &good), None, "{good:?}");
        }
        for bad in [
            vec![host, ("origin", "http://evil.com")],
            vec![host, ("origin", "null")],
            vec![host, ("origin", "http://localhost:8080")],
            vec![host, ("sec-fetch-site", "cross-site")],
            vec![host, ("sec-fetch-site", "same-site")],
        ] {
            assert_eq!(verdict(&hosts, Method::POST, &bad), Some(Code::CrossSite), "{bad:?}");
            assert_eq!(
                verdict(&hosts, Method::GET, &bad),
                None,
                "reading changes nothing, and no page may see it"
            );
        }
    }
}
