//! The URI of a store: the parameters that are the store's own, and those of the driver.

/// The URI of a store. The parameter `collection` names the collection of the letters, and `layout` the [layout](crate::Layout) of their
/// readable fields. The driver does not know these, and gets the others.
///
/// ```
/// use lazaret_store_mongodb::StoreUri;
/// let uri = StoreUri::parse("mongodb://db.example/shop?replicaSet=rs0&collection=orders_dlq");
/// assert_eq!(uri.driver, "mongodb://db.example/shop?replicaSet=rs0");
/// assert_eq!(uri.collection.as_deref(), Some("orders_dlq"));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUri {
    /// The URI for the driver. It may contain a password.
    pub driver: String,
    /// The collection of the letters, as it is written.
    pub collection: Option<String>,
    /// The layout of letters, as it is written.
    pub layout: Option<String>,
}

impl StoreUri {
    /// Splits a URI. Whether it is one, the driver says.
    pub fn parse(uri: &str) -> Self {
        let (base, parameters) = uri.split_once('?').unwrap_or((uri, ""));
        let (mut collection, mut layout, mut others) = (None, None, Vec::new());
        for parameter in parameters.split('&') {
            match parameter.split_once('=') {
                Some((name, value)) if name.eq_ignore_ascii_case("collection") => {
                    collection = Some(value.to_owned());
                }
                Some((name, value)) if name.eq_ignore_ascii_case("layout") => layout = Some(value.to_owned()),
                _ => others.push(parameter),
            }
        }
        let driver = match collection.is_some() || layout.is_some() {
            // Nothing to leave out.
            false => uri.to_owned(),
            true if others.is_empty() => base.to_owned(),
            true => format!("{base}?{}", others.join("&")),
        };
        Self { driver, collection, layout }
    }

    /// Returns `true` if it is clear where the credentials end. Otherwise the driver takes the rest of a password for a host or a
    /// parameter, and quotes it in its error.
    pub(crate) fn has_clear_credentials(&self) -> bool {
        let rest = self.driver.split_once("://").map_or(self.driver.as_str(), |(_, rest)| rest);
        let (authority, others) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        authority.matches('@').count() <= 1 && !others.contains('@')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_must_not_end_in_the_middle() {
        for special in ["@", "/", "?", "#", "?a=", "/@"] {
            let uri = StoreUri::parse(&format!("mongodb://u:hun{special}ter2@h/shop?collection=x"));
            assert!(!uri.has_clear_credentials(), "{special}");
        }
        for uri in ["mongodb://h/shop", "mongodb://u:p%40p@a,b/shop?a=1", "mongodb+srv://u@h"] {
            assert!(StoreUri::parse(uri).has_clear_credentials(), "{uri}");
        }
    }

    #[test]
    fn the_driver_gets_all_parameters_but_the_own_ones() {
        for (uri, driver, collection) in [
            ("mongodb://h/shop", "mongodb://h/shop", None),
            ("mongodb://h/?a=1&b=2", "mongodb://h/?a=1&b=2", None),
            ("mongodb://h/shop?collection=x", "mongodb://h/shop", Some("x")),
            ("mongodb://u:p%3F@h/shop?a=1&Collection=x&b=2", "mongodb://u:p%3F@h/shop?a=1&b=2", Some("x")),
            ("mongodb://h/shop?collections=x", "mongodb://h/shop?collections=x", None),
        ] {
            let split = StoreUri::parse(uri);
            assert_eq!((split.driver.as_str(), split.collection.as_deref()), (driver, collection), "{uri}");
        }
        let both = StoreUri::parse("mongodb://h/shop?Layout=flowwarden&a=1&collection=x");
        assert_eq!(
            (both.driver.as_str(), both.layout.as_deref()),
            ("mongodb://h/shop?a=1", Some("flowwarden"))
        );
        assert_eq!(StoreUri::parse("mongodb://h/shop?layout=x").driver, "mongodb://h/shop");
    }
}
