//! Reverse proxies in front of the server: which ones are trusted, and what they say about a client.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderName};
use ipnet::IpNet;
use lazaret_core::person::person_name;

use super::roles::{Role, RoleError, person_in_groups};
use super::session::Person;
use crate::listener::{Peer, Transport};

/// A reverse proxy whose headers are trusted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustedProxy {
    /// The networks of its addresses. Clients of the Unix socket are trusted as well: only the user of the process may connect.
    pub networks: Vec<IpNet>,
    /// How the proxy names the person whom it has authenticated; `None` if it authenticates nobody.
    pub persons: Option<ProxyPersons>,
}

/// The headers that name an authenticated person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyPersons {
    /// The header with the name of the person.
    pub user_header: HeaderName,
    /// The header with the groups, separated by commas.
    pub groups_header: HeaderName,
    /// The rights of the groups.
    pub roles: Vec<Role>,
}

/// What the proxy says about who sent a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Forwarded {
    /// Nothing, or the peer is no trusted proxy.
    Nobody,
    Person(Person),
    /// Somebody with this name in groups without a role.
    WithoutRole(String),
    /// Somebody with an invalid or ambiguous name.
    Refused,
}

impl TrustedProxy {
    fn trusts(&self, peer: Peer) -> bool {
        match (peer.transport, peer.address) {
            (Transport::Unix, _) => true,
            (_, Some(address)) => self.contains(address),
            (_, None) => false,
        }
    }

    fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.networks.iter().any(|network| network.contains(&address))
    }
}

/// Returns `true` if the client uses TLS, up to this server or up to a trusted proxy.
pub(crate) fn is_secure(proxy: Option<&TrustedProxy>, peer: Peer, headers: &HeaderMap) -> bool {
    if peer.transport == Transport::Tls {
        return true;
    }
    let is_trusted = proxy.is_some_and(|proxy| proxy.trusts(peer));
    is_trusted
        && single(headers, "x-forwarded-proto").is_some_and(|proto| proto.eq_ignore_ascii_case("https"))
}

/// The address of the client: the last one in `X-Forwarded-For` that is not a trusted proxy itself. Earlier ones are claims of the
/// client.
pub(crate) fn client_address(
    proxy: Option<&TrustedProxy>,
    peer: Peer,
    headers: &HeaderMap,
) -> Option<IpAddr> {
    let Some(proxy) = proxy.filter(|proxy| proxy.trusts(peer)) else { return peer.address };
    let lines: Vec<&str> =
        headers.get_all("x-forwarded-for").iter().filter_map(|line| line.to_str().ok()).collect();
    let mut hops =
        lines.iter().rev().flat_map(|line| line.rsplit(',')).map(|hop| hop.trim().parse::<IpAddr>());
    let client = hops.find(|hop| hop.as_ref().map_or(true, |address| !proxy.contains(*address)));
    client.and_then(Result::ok).or(peer.address)
}

/// Returns the person whom a trusted proxy names. Headers of other peers are ignored.
pub(crate) fn forwarded(proxy: Option<&TrustedProxy>, peer: Peer, headers: &HeaderMap) -> Forwarded {
    let Some(proxy) = proxy.filter(|proxy| proxy.trusts(peer)) else { return Forwarded::Nobody };
    let Some(ProxyPersons { user_header, groups_header, roles }) = &proxy.persons else {
        return Forwarded::Nobody;
    };
    if !headers.contains_key(user_header) {
        return Forwarded::Nobody;
    }
    // Two values: the proxy has added one to that of the client, and nobody knows which is which.
    let Some(name) = single(headers, user_header.as_str()) else { return Forwarded::Refused };
    // Several lines of one header may arrive as one, joined by a comma.
    if name.contains(',') {
        return Forwarded::Refused;
    }
    let groups = match headers.contains_key(groups_header) {
        true => single(headers, groups_header.as_str()),
        false => Some(""),
    };
    let Some(groups) = groups else { return Forwarded::Refused };
    let groups: Vec<&str> = groups.split(',').map(str::trim).collect();
    match person_in_groups(name.trim(), &groups, roles) {
        Ok(person) => Forwarded::Person(person),
        Err(error) => {
            tracing::debug!(%error, "person of the proxy refused");
            match (error, person_name(name)) {
                (RoleError::NoRole, Ok(name)) => Forwarded::WithoutRole(name),
                _ => Forwarded::Refused,
            }
        }
    }
}

/// The value of a header that occurs once.
fn single<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    value.to_str().ok()
}

#[cfg(test)]
mod tests {
    use lazaret_api::Scope;

    use super::*;

    fn proxy() -> TrustedProxy {
        TrustedProxy {
            networks: vec!["10.1.0.0/16".parse().unwrap(), "fd00::/8".parse().unwrap()],
            persons: Some(ProxyPersons {
                user_header: HeaderName::from_static("x-auth-request-email"),
                groups_header: HeaderName::from_static("x-auth-request-groups"),
                roles: vec![Role { group: "ops".into(), scopes: vec![Scope::Read], consumers: vec![] }],
            }),
        }
    }

    fn tcp(address: &str) -> Peer {
        Peer { address: address.parse().ok(), transport: Transport::Tcp }
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    const ADA: [(&str, &str); 2] =
        [("x-auth-request-email", "ada@example.com"), ("x-auth-request-groups", "staff, ops")];

    #[test]
    fn only_trusted_peers_name_a_person() {
        let (proxy, ada) = (proxy(), headers(&ADA));
        let of = |peer| forwarded(Some(&proxy), peer, &ada);
        let unix = Peer { address: None, transport: Transport::Unix };
        for peer in [tcp("10.1.2.3"), tcp("::ffff:10.1.2.3"), tcp("fd00::1"), unix] {
            let Forwarded::Person(person) = of(peer) else { panic!("{peer:?}") };
            assert_eq!((person.name(), person.scopes()), ("ada@example.com", &[Scope::Read][..]));
        }
        let unknown = Peer { address: None, transport: Transport::Tcp };
        for peer in [tcp("10.2.0.1"), tcp("127.0.0.1"), tcp("2001:db8::1"), unknown] {
            assert_eq!(of(peer), Forwarded::Nobody, "{peer:?}");
        }
        assert_eq!(forwarded(None, tcp("10.1.2.3"), &ada), Forwarded::Nobody);
    }

    #[test]
    fn ambiguous_names_and_unknown_groups_are_refused() {
        let proxy = proxy();
        let of = |pairs: &[(&'static str, &str)]| forwarded(Some(&proxy), tcp("10.1.2.3"), &headers(pairs));
        assert_eq!(of(&[]), Forwarded::Nobody, "the proxy lets everybody see the sign-in");
        let without_role = Forwarded::WithoutRole("ada@example.com".to_owned());
        assert_eq!(of(&[ADA[0]]), without_role, "no groups");
        assert_eq!(of(&[ADA[0], ("x-auth-request-groups", "operators")]), without_role);
        let reserved = [("x-auth-request-email", "lazaret"), ("x-auth-request-groups", "operators")];
        assert_eq!(of(&reserved), Forwarded::Refused, "reserved, and without a role");
        assert_eq!(of(&[ADA[0], ADA[1], ("x-auth-request-email", "eve")]), Forwarded::Refused, "two names");
        assert_eq!(of(&[ADA[0], ADA[1], ("x-auth-request-groups", "ops")]), Forwarded::Refused);
        assert_eq!(of(&[("x-auth-request-email", "lazaret"), ADA[1]]), Forwarded::Refused, "reserved");
        assert_eq!(
            of(&[("x-auth-request-email", "eve, ada"), ADA[1]]),
            Forwarded::Refused,
            "two joined names"
        );
    }

    #[test]
    fn the_scheme_and_the_client_are_those_of_a_trusted_proxy() {
        let proxy = proxy();
        let https = headers(&[("x-forwarded-proto", "https")]);
        assert!(is_secure(Some(&proxy), tcp("10.1.0.1"), &https));
        assert!(
            !is_secure(Some(&proxy), tcp("10.2.0.1"), &https) && !is_secure(None, tcp("10.1.0.1"), &https)
        );
        assert!(!is_secure(Some(&proxy), tcp("10.1.0.1"), &headers(&[("x-forwarded-proto", "http")])));
        let tls = Peer { address: None, transport: Transport::Tls };
        assert!(is_secure(None, tls, &HeaderMap::new()));
        let client = |peer, hops: &[&str]| {
            let pairs: Vec<_> = hops.iter().map(|hops| ("x-forwarded-for", *hops)).collect();
            client_address(Some(&proxy), tcp(peer), &headers(&pairs)).map(|address| address.to_string())
        };
        assert_eq!(client("10.1.0.1", &["1.1.1.1, 2.2.2.2, 10.1.9.9"]).as_deref(), Some("2.2.2.2"));
        assert_eq!(client("10.1.0.1", &["1.1.1.1", "3.3.3.3"]).as_deref(), Some("3.3.3.3"));
        assert_eq!(client("10.1.0.1", &["nonsense"]).as_deref(), Some("10.1.0.1"));
        assert_eq!(client("10.2.0.1", &["1.1.1.1"]).as_deref(), Some("10.2.0.1"), "not trusted");
    }
}
