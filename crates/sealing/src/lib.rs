//! Encryption of what stores keep: payloads, headers and the texts of failures.
//!
//! [`SealedStore`] wraps a store: letters are encrypted before the store inside sees them, so no file, log, cache or copy of it holds content
//! in the clear, and every store is encrypted by the same code. [`SealedInbox`] and [`SealedSource`] do the same for inboxes. [`PlainStore`] wraps
//! a store that is used without keys, and keeps what other instances encrypt away from handlers.
//!
//! Values are encrypted with XChaCha20-Poly1305 under a data key. Data keys are random, and kept in the store itself, wrapped by the
//! [`EncryptionKey`] of the user (envelope encryption). So that key can be replaced at once, whatever the number of letters. Each value is bound
//! to its letter and field: a value that is moved elsewhere cannot be decrypted there.
//!
//! # Modules
//!
//! - `key`, `cipher`, `hmac`: keys, and the encryption of one value. `envelope`: its stored form.
//! - `key_ring`: the data keys of a store.
//! - `content`, `headers`: what of a letter is encrypted, and what it is bound to.
//! - `opening`, `withheld`: what is shown and what is executed of what a store returns.
//! - `store`, `search`, `plain`, `inbox`: the wrappers. `error`: what can go wrong in them.

mod cipher;
mod content;
mod envelope;
mod error;
mod headers;
mod hmac;
mod inbox;
mod key;
mod key_ring;
mod opening;
mod plain;
mod search;
mod store;
mod withheld;

pub use inbox::{SealedInbox, SealedSource};
pub use key::{EncryptionKey, InvalidKey, KeyId};
pub use key_ring::{KEY_RING_PLACE, KeyError, KeyRing, WrappedKey};
pub use plain::PlainStore;
pub use store::SealedStore;
