//! Explains errors of MongoDB: invalid URIs, servers that do not answer, failed logins.

use lazaret_source_mongodb::describe;
use lazaret_store_mongodb::{Layout, StoreUri};
use mongodb::error::{Error, ErrorKind};
use mongodb::options::ConnectionString;

/// What failed, and what a person can do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Explained {
    pub(crate) why: String,
    pub(crate) advice: &'static str,
}

/// Explains an error of the driver.
pub(crate) fn explain(error: &Error) -> Explained {
    let why = describe(error);
    let code = match &*error.kind {
        ErrorKind::Command(command) => Some(command.code),
        _ => None,
    };
    match (&*error.kind, code) {
        (ErrorKind::Authentication { .. }, _) | (_, Some(11 | 18 | 8000)) => Explained {
            why: format!("login failed: {why}"),
            advice: "correct the user and the password in the URI; a user of another database needs `authSource`",
        },
        (_, Some(13)) => Explained {
            why: format!("not permitted: {why}"),
            advice: "grant the user `readWrite` on the database of a store, `find` and `changeStream` on what a source watches",
        },
        (ErrorKind::DnsResolve { .. }, _) => {
            Explained { why, advice: "correct the host in the URI, or the DNS" }
        }
        (ErrorKind::InvalidArgument { .. } | ErrorKind::InvalidTlsConfig { .. }, _) => {
            Explained { why, advice: "correct the URI" }
        }
        (ErrorKind::IncompatibleServer { .. }, _) => Explained { why, advice: "use MongoDB 4.4 or later" },
        _ if why.contains("replicaSet") => Explained {
            why,
            advice: "correct `replicaSet` in the URI; `rs.status().set` on the server shows the name",
        },
        _ if why.contains("has no primary") => {
            Explained { why, advice: "wait for the election of a primary, or start the missing members" }
        }
        _ => Explained { why, advice: "start the server, or correct the address in the URI" },
    }
}

const NOT_ENCODED: &str =
    "invalid user, password or host; special characters in the user and the password must be percent-encoded";

/// Checks a URI without a connection. The error does not contain the user and the password.
pub(crate) fn check_uri(uri: &str) -> Result<(), String> {
    let (scheme, rest) = uri.split_once("://").unwrap_or(("mongodb", uri));
    let authority_end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, options) = rest.split_at(authority_end);
    // What follows the authority is a part of the password then, and the driver takes it for a host or an option, which it quotes.
    if authority.matches('@').count() > 1 || options.contains('@') {
        return Err(NOT_ENCODED.to_owned());
    }
    let Err(error) = ConnectionString::parse(uri) else { return Ok(()) };
    // The driver quotes parts of the URI. The options are checked apart, behind a host and a user that are no secrets.
    let user = if authority.contains('@') { "user:password@" } else { "" };
    match ConnectionString::parse(format!("{scheme}://{user}host.example.com{options}")) {
        Err(wrong) => Err(describe(&wrong)),
        Ok(_) if user.is_empty() && !rest.contains('@') => Err(describe(&error)),
        Ok(_) => Err(NOT_ENCODED.to_owned()),
    }
}

/// Checks the URI of a store, which may name the collection and the layout of the letters.
pub(crate) fn check_store_uri(uri: &str) -> Result<(), String> {
    let StoreUri { driver, layout, .. } = StoreUri::parse(uri);
    check_uri(&driver)?;
    let layout = layout.map_or(Ok(Layout::default()), |name| name.parse::<Layout>());
    layout.map(drop).map_err(|unknown| unknown.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_the_driver_rejects_are_named() {
        assert_eq!(
            check_uri("mongodb://a:secret@127.0.0.1:27017/shop?replicaSet=rs0&authSource=admin"),
            Ok(())
        );
        assert_eq!(check_uri("mongodb+srv://cluster.example.com/shop"), Ok(()));
        let own = "mongodb://h/shop?collection=orders_dlq";
        assert_eq!(check_store_uri(own), Ok(()));
        assert_eq!(check_store_uri("mongodb://h/shop?layout=flowwarden&replicaSet=rs0"), Ok(()));
        assert!(check_store_uri("mongodb://h/shop?layout=flat").unwrap_err().contains("no layout \"flat\""));
        assert!(check_uri(own).unwrap_err().contains("collection"), "it is for stores");
        for (uri, word) in [
            ("mongodb://a:secret@h/shop?replicaset=rs0&maxPoolSize=many", "maxpoolsize"),
            ("mongodb://a:secret@h/shop?readPreference=nearby", "nearby"),
            ("mongodb://h/?directConnection=maybe", "directconnection"),
        ] {
            let why = check_uri(uri).unwrap_err();
            assert!(why.to_lowercase().contains(&word.to_lowercase()), "{uri}: {why}");
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        for uri in [
            "mongodb://a:sec/ret@h/shop",
            "mongodb://a:sec?ret@h/shop",
            "mongodb://a:sec?ret=x@h/shop",
            "mongodb://a:x@sec:ret@h/shop",
            "mongodb://a:sec#ret@h/shop",
            "mongodb://a:sec@ret@h/shop",
            "mongodb://a:secret@h:port/shop",
            "mongodb://a:s%zzecret@h/shop",
        ] {
            let why = check_uri(uri).unwrap_err();
            assert!(!why.contains("sec") && !why.contains("ret@"), "{uri}: {why}");
        }
    }

    #[test]
    fn advice_depends_on_the_cause() {
        let refused = Error::from(std::io::Error::from(std::io::ErrorKind::ConnectionRefused));
        assert!(explain(&refused).advice.contains("start the server"));
    }
}
