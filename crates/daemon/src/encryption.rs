//! Implements `lazaret keys`: new encryption keys, and those of a configuration.

use lazaret_config::Config;
use lazaret_sealing::EncryptionKey;

use crate::assemble::{encryption_key, shown_key_source};
use crate::error::Error;

/// Makes a new key. Returns its text and its id.
///
/// ```
/// let (text, id) = lazaret_daemon::encryption::generate();
/// assert_eq!(text.len(), 64);
/// assert!(id.starts_with("k_"));
/// ```
pub fn generate() -> (String, String) {
    let text = EncryptionKey::generate();
    let key = EncryptionKey::parse(text.as_bytes()).expect("a generated key has the form of a key");
    let id = key.id().to_string();
    (text, id)
}

/// Reads the keys of a configuration. Returns the place of each, and its id; the first one encrypts.
pub async fn configured(config: &Config) -> Vec<(String, Result<String, Error>)> {
    let mut keys = Vec::new();
    for source in config.encryption.iter().flat_map(|encryption| &encryption.keys) {
        let id = encryption_key(source).await.map(|key| key.id().to_string());
        keys.push((shown_key_source(source), id));
    }
    keys
}
