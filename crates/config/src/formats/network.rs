//! Parses networks of addresses.

use std::net::IpAddr;

use ipnet::IpNet;

use super::error::{FormatError, bad};
use crate::code::Code;

/// Parses a network such as `10.0.0.0/8`, or a single address.
pub(crate) fn network(text: &str) -> Result<IpNet, FormatError> {
    let parsed = text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
    parsed.ok_or_else(|| {
        let hint = "write an address and the length of its prefix, such as `10.1.0.0/16`, or one address";
        bad(Code::InvalidAddress, "is not a network", hint)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_and_addresses_are_parsed() {
        for (text, network_text) in [
            ("10.1.0.0/16", "10.1.0.0/16"),
            ("10.1.2.3", "10.1.2.3/32"),
            ("::1", "::1/128"),
            ("fd00::/8", "fd00::/8"),
        ] {
            assert_eq!(network(text).map(|network| network.to_string()).ok().as_deref(), Some(network_text));
        }
        for text in ["10.1.0.0/33", "10.1", "example.com", "10.1.0.0/", "*", "10.1.0.0/16 "] {
            assert!(network(text).is_err(), "{text}");
        }
    }
}
