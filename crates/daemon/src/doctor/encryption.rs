//! Checks the encryption keys, and that they fit to the store.

use lazaret_config::{Config, KeySource, StoreLocation};
use lazaret_sealing::{EncryptionKey, KeyError, KeyRing};

use super::finding::Finding;
use super::store::{UNREADABLE, stored_value};
use crate::assemble::{encryption_key, is_readable_by_all, shown_key_source};

const SUBJECT: &str = "encryption";

/// Checks each key by itself, and decrypts with them what the store keeps for that.
pub(super) async fn check(config: &Config) -> Vec<Finding> {
    let sources = config.encryption.as_ref().map(|encryption| encryption.keys.as_slice()).unwrap_or_default();
    let (mut found, mut keys) = (Vec::new(), Vec::new());
    for source in sources {
        match encryption_key(source).await {
            Ok(key) => {
                found.push(usable(source, &key));
                keys.push(key);
            }
            Err(error) => {
                let advice = "correct `encryption.keys`, or create a key with `lazaret keys generate`";
                found.push(Finding::fail(SUBJECT, error.to_string(), advice));
            }
        }
    }
    // With a key that cannot be read, more is unknown than wrong.
    if keys.len() == sources.len() {
        found.extend(fits(&config.store, &keys).await);
    }
    found
}

fn usable(source: &KeySource, key: &EncryptionKey) -> Finding {
    let (place, id) = (shown_key_source(source), key.id());
    match source {
        KeySource::File(path) if is_readable_by_all(path) => {
            let detail = format!("key {id} in {place} is readable by every user of this machine");
            Finding::warn(SUBJECT, detail, format!("run `chmod 600 {}`", path.display()))
        }
        _ => Finding::ok(SUBJECT, format!("key {id} from {place} is usable")),
    }
}

/// Decrypts the data keys of the store. Without keys, others may have encrypted it.
async fn fits(store: &StoreLocation, keys: &[EncryptionKey]) -> Option<Finding> {
    let value = match stored_value(store, lazaret_sealing::KEY_RING_PLACE).await {
        Ok(value) => value?,
        Err(why) => {
            let detail = format!("data keys of the store not checked: {why}");
            return Some(match keys.is_empty() {
                true => Finding::warn(SUBJECT, detail, UNREADABLE),
                false => Finding::fail(SUBJECT, detail, UNREADABLE),
            });
        }
    };
    let advice = "name the key that encrypted the store under `encryption.keys`";
    match KeyRing::check(&value, keys) {
        Ok(0) => None,
        Ok(data_keys) => {
            let detail = format!("the keys decrypt the {data_keys} data keys of the store");
            Some(Finding::ok(SUBJECT, detail))
        }
        Err(error @ KeyError::Damaged(_)) => {
            Some(Finding::fail(SUBJECT, error.to_string(), "restore a backup of the store"))
        }
        Err(error) => Some(Finding::fail(SUBJECT, error.to_string(), advice)),
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use super::*;
    use crate::doctor::Health;

    #[tokio::test]
    async fn a_store_that_cannot_be_read_is_a_finding_and_one_that_is_not_there_is_none() {
        let here = tempfile::tempdir().unwrap();
        let path = here.path().join("lazaret.db");
        let store = StoreLocation::Sqlite(path.to_str().unwrap().to_owned());
        let keys = [EncryptionKey::new(&[7; 32])];
        assert_eq!(fits(&store, &keys).await, None);
        std::fs::write(&path, "no database, but much longer than the header of one: ".repeat(100)).unwrap();
        for (keys, health) in [(&keys[..], Health::Fail), (&keys[..0], Health::Warn)] {
            let found = fits(&store, keys).await.unwrap();
            assert_eq!(found.health, health, "{found}");
            assert!(found.detail.starts_with("data keys of the store not checked: "), "{found}");
        }
    }
}
