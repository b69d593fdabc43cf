//! The data keys of a store: wrapped by the keys of the user, and kept in the store itself.
//!
//! Two instances that open the store at once agree by compare-and-set. An instance that finds a value under a data key that it does not know
//! reads the ring again: another instance may have added one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use lazaret_core::store::{Expect, KeyValue, StoreError, Written};
use lazaret_core::{Clock, SystemClock, Timestamp};
use serde::{Deserialize, Serialize};

use crate::cipher::{KEY_BYTES, NONCE_BYTES, TAG_BYTES, random};
use crate::key::{DATA_KEY_ID_BYTES, DataKey, DataKeyId, EncryptionKey, KeyId};
use crate::withheld::Withheld;

/// Where a store keeps its data keys: the namespace and the name of the value.
pub const KEY_RING_PLACE: (&str, &str) = ("encryption", "keys");

/// The time for which a store without data keys is taken for one before it is asked again.
const PLAIN_FOR: Duration = Duration::from_secs(10);

/// The version of the stored form.
const VERSION: u32 = 1;

/// The data keys of a store cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The store holds encrypted values, and no key was given.
    #[error("the store holds values that are encrypted under {}, and no key is configured", listed(.wrapped_by))]
    NoKey {
        /// The keys that its data keys are wrapped by.
        wrapped_by: Vec<KeyId>,
    },
    /// None of the given keys is the one that wraps a data key of the store.
    #[error("the store holds values that are encrypted under {wrapped_by}, and the configured keys are {}", listed(.given))]
    WrongKey {
        /// The key that is missing.
        wrapped_by: KeyId,
        /// The ids of the given keys.
        given: Vec<KeyId>,
    },
    /// The stored form of the data keys is damaged.
    #[error("the data keys in the store are damaged: {0}")]
    Damaged(String),
    /// The store cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn listed(ids: &[KeyId]) -> String {
    ids.iter().map(KeyId::as_str).collect::<Vec<_>>().join(", ")
}

/// A data key in the store, without its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrappedKey {
    /// Its id, shortened.
    pub id: String,
    /// The key that wraps it.
    pub wrapped_by: KeyId,
    /// When it was made.
    pub created_at: Timestamp,
}

/// The stored form of a ring.
#[derive(Serialize, Deserialize)]
struct StoredRing {
    version: u32,
    /// The last one encrypts.
    keys: Vec<StoredKey>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct StoredKey {
    id: String,
    wrapped_by: String,
    /// Nonce, tag and encrypted key.
    wrapped: String,
    created_at: Timestamp,
}

impl StoredRing {
    fn parse(value: &[u8]) -> Result<Self, KeyError> {
        let damaged = |error: serde_json::Error| KeyError::Damaged(error.to_string());
        let ring: Self = serde_json::from_slice(value).map_err(damaged)?;
        match ring.version {
            VERSION => Ok(ring),
            other => Err(KeyError::Damaged(format!("version {other} is newer than {VERSION}"))),
        }
    }

    fn encode(&self) -> Bytes {
        serde_json::to_vec(self).expect("numbers and texts can be written as JSON").into()
    }

    /// The keys that wrap its data keys, each once.
    fn wrapping(&self) -> Vec<KeyId> {
        let ids: BTreeSet<&str> = self.keys.iter().map(|key| key.wrapped_by.as_str()).collect();
        ids.into_iter().map(KeyId::from_text).collect()
    }

    fn unwrap(&self, keys: &[EncryptionKey]) -> Result<DataKeys, KeyError> {
        let mut found = DataKeys::default();
        for stored in &self.keys {
            found.add(stored.unwrap(keys)?);
        }
        Ok(found)
    }

    /// Unwraps what these keys wrap, and lists the rest.
    fn unwrap_known(&self, keys: &[EncryptionKey]) -> Result<DataKeys, KeyError> {
        let mut found = DataKeys::default();
        for stored in &self.keys {
            match stored.unwrap(keys) {
                Ok(key) => found.add(key),
                Err(KeyError::WrongKey { wrapped_by, .. }) => {
                    found.locked.insert(stored.id()?, wrapped_by);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }
}

impl StoredKey {
    /// Wraps a data key.
    fn wrap(id: DataKeyId, bytes: &[u8; KEY_BYTES], by: &EncryptionKey, created_at: Timestamp) -> Self {
        let nonce: [u8; NONCE_BYTES] = random();
        let mut text = *bytes;
        let tag = by.cipher.encrypt(&nonce, &bound_to(id), &mut text);
        let wrapped = STANDARD.encode([nonce.as_slice(), &tag, &text].concat());
        Self { id: STANDARD.encode(id.0), wrapped_by: by.id().to_string(), wrapped, created_at }
    }

    fn id(&self) -> Result<DataKeyId, KeyError> {
        let bytes = STANDARD.decode(&self.id).ok();
        let bytes = bytes.and_then(|bytes| <[u8; DATA_KEY_ID_BYTES]>::try_from(bytes).ok());
        bytes.map(DataKeyId).ok_or_else(|| KeyError::Damaged(format!("{:?} is no id of a data key", self.id)))
    }

    fn unwrap_bytes(&self, keys: &[EncryptionKey]) -> Result<(DataKeyId, [u8; KEY_BYTES]), KeyError> {
        let id = self.id()?;
        let Some(by) = keys.iter().find(|key| key.id().as_str() == self.wrapped_by) else {
            let given = keys.iter().map(|key| key.id().clone()).collect();
            return Err(KeyError::WrongKey { wrapped_by: KeyId::from_text(&self.wrapped_by), given });
        };
        let damaged = || KeyError::Damaged(format!("{id} cannot be unwrapped by {}", self.wrapped_by));
        let wrapped = STANDARD.decode(&self.wrapped).map_err(|_| damaged())?;
        let (nonce, rest) = wrapped.split_first_chunk::<NONCE_BYTES>().ok_or_else(damaged)?;
        let (tag, text) = rest.split_first_chunk::<TAG_BYTES>().ok_or_else(damaged)?;
        let mut bytes = <[u8; KEY_BYTES]>::try_from(text).map_err(|_| damaged())?;
        by.cipher.decrypt(nonce, &bound_to(id), &mut bytes, tag).map_err(|_| damaged())?;
        Ok((id, bytes))
    }

    fn unwrap(&self, keys: &[EncryptionKey]) -> Result<DataKey, KeyError> {
        let (id, bytes) = self.unwrap_bytes(keys)?;
        Ok(DataKey::new(id, &bytes))
    }

    fn shown(&self) -> Result<WrappedKey, KeyError> {
        let (id, wrapped_by) = (self.id()?.to_string(), KeyId::from_text(&self.wrapped_by));
        Ok(WrappedKey { id, wrapped_by, created_at: self.created_at })
    }
}

/// A wrapped key is bound to its id.
fn bound_to(id: DataKeyId) -> Vec<u8> {
    [b"lazaret data key 1".as_slice(), &id.0].concat()
}

/// Unwrapped data keys.
#[derive(Default)]
pub(crate) struct DataKeys {
    keys: BTreeMap<DataKeyId, Arc<DataKey>>,
    /// Data keys of the store that are not unwrapped, and the keys that wrap them.
    locked: BTreeMap<DataKeyId, KeyId>,
    /// `None` only for a part of a ring, and without keys.
    active: Option<DataKeyId>,
}

impl DataKeys {
    /// Adds a key, which encrypts from now on.
    fn add(&mut self, key: DataKey) {
        self.active = Some(key.id);
        self.keys.insert(key.id, Arc::new(key));
    }

    /// The key that encrypts.
    pub(crate) fn active(&self) -> &DataKey {
        let active = self.active.and_then(|id| self.keys.get(&id));
        active.expect("a ring that is used for encryption has a key")
    }

    pub(crate) fn get(&self, id: DataKeyId) -> Option<&DataKey> {
        self.keys.get(&id).map(|key| &**key)
    }

    /// The key that wraps a data key which is not unwrapped.
    pub(crate) fn locked_by(&self, id: DataKeyId) -> Option<&KeyId> {
        self.locked.get(&id)
    }

    /// The keys that do not encrypt any more.
    pub(crate) fn earlier(&self) -> impl Iterator<Item = &DataKey> {
        self.keys.values().filter(|key| Some(key.id) != self.active).map(|key| &**key)
    }

    /// The keys that others do not have.
    fn beyond(&self, others: &Self) -> Self {
        let keys = self.keys.iter().filter(|(id, _)| !others.keys.contains_key(*id));
        let locked = self.locked.iter().filter(|(id, _)| !others.keys.contains_key(*id));
        Self {
            keys: keys.map(|(id, key)| (*id, key.clone())).collect(),
            locked: locked.map(|(id, wrapped_by)| (*id, wrapped_by.clone())).collect(),
            active: None,
        }
    }

    /// These keys and those of others. A key that is unwrapped once stays usable, whatever wraps it later.
    fn and(&self, others: &Self) -> Self {
        let keys = self.keys.iter().chain(&others.keys);
        Self {
            keys: keys.map(|(id, key)| (*id, key.clone())).collect(),
            locked: BTreeMap::new(),
            active: others.active.or(self.active),
        }
    }

    /// These keys, and newer ones that were [not known](KeyRing::refresh) with them.
    pub(crate) fn with_newer(&self, newer: &Self) -> Self {
        Self { locked: newer.locked.clone(), ..self.and(newer) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.locked.is_empty()
    }
}

/// The data keys of a store, and the keys that wrap them.
///
/// ```
/// use std::sync::Arc;
/// use lazaret_memory::MemoryStore;
/// use lazaret_sealing::{EncryptionKey, KeyError, KeyRing};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let key = |byte| vec![EncryptionKey::new(&[byte; 32])];
/// let store = Arc::new(MemoryStore::default());
/// KeyRing::open(store.clone(), key(1)).await.unwrap();
/// assert!(matches!(KeyRing::open(store.clone(), key(2)).await, Err(KeyError::WrongKey { .. })));
/// assert!(matches!(KeyRing::require_none(&*store).await, Err(KeyError::NoKey { .. })));
/// # });
/// ```
pub struct KeyRing {
    store: Arc<dyn KeyValue>,
    keys: Vec<EncryptionKey>,
    current: RwLock<Arc<DataKeys>>,
    last_read: Mutex<LastRead>,
    /// The letters that are not executed.
    pub(crate) withheld: Withheld,
}

/// What the last reading of the ring has shown.
#[derive(Default)]
struct LastRead {
    /// When it was; `None` if it was not read since it was opened.
    at: Option<Instant>,
    /// The keys that wrap data keys which this process cannot use.
    missing: BTreeSet<KeyId>,
}

impl KeyRing {
    /// Opens the data keys of a store with these keys. The first one encrypts: data keys that another one wraps are wrapped by it from now
    /// on, and values are encrypted under a data key that no other key has wrapped. The first data key is made here.
    ///
    /// # Errors
    /// `WrongKey` if a data key is wrapped by another key than these, `NoKey` without any; `Damaged` and `Store`.
    pub async fn open(store: Arc<dyn KeyValue>, keys: Vec<EncryptionKey>) -> Result<Self, KeyError> {
        let current = loop {
            let reading = store.read(KEY_RING_PLACE.0, KEY_RING_PLACE.1).await?;
            let found = reading.found.as_ref();
            let ring = found.map(|found| StoredRing::parse(&found.value)).transpose()?;
            let mut ring = ring.unwrap_or(StoredRing { version: VERSION, keys: Vec::new() });
            let Some(first) = keys.first() else {
                return Err(KeyError::NoKey { wrapped_by: ring.wrapping() });
            };
            let current = ring.unwrap(&keys)?;
            let is_first = |stored: &StoredKey| stored.wrapped_by == first.id().as_str();
            if ring.keys.last().is_some_and(is_first) && ring.keys.iter().all(is_first) {
                break current;
            }
            let is_new = !ring.keys.last().is_some_and(is_first);
            for stored in ring.keys.iter_mut().filter(|stored| !is_first(stored)) {
                let (id, bytes) = stored.unwrap_bytes(&keys)?;
                *stored = StoredKey::wrap(id, &bytes, first, stored.created_at);
            }
            if is_new {
                ring.keys.push(StoredKey::wrap(DataKeyId::new(), &random(), first, SystemClock.now()));
            }
            let expect = found.map_or(Expect::Absent, |found| Expect::Version(found.version));
            let (space, name) = KEY_RING_PLACE;
            match store.write(space, name, expect, Some(ring.encode()), None).await? {
                Written::Done => break ring.unwrap(&keys)?,
                Written::Conflict(_) => {}
            }
        };
        Ok(Self::new(store, keys, current))
    }

    /// Watches a store that is opened without keys. It encrypts and decrypts nothing, and recognizes values that other instances encrypt.
    ///
    /// [`require_none`](Self::require_none) shows whether the store holds such values already.
    pub fn without_keys(store: Arc<dyn KeyValue>) -> Self {
        Self::new(store, Vec::new(), DataKeys::default())
    }

    fn new(store: Arc<dyn KeyValue>, keys: Vec<EncryptionKey>, current: DataKeys) -> Self {
        let current = RwLock::new(Arc::new(current));
        Self { store, keys, current, last_read: Mutex::default(), withheld: Withheld::default() }
    }

    /// Why some values cannot be decrypted: another instance has encrypted them under a key that this one lacks. `None` while no such
    /// value was met.
    pub fn missing(&self) -> Option<KeyError> {
        let missing = self.last_read().missing.clone();
        let first = missing.first()?.clone();
        Some(match self.keys.is_empty() {
            true => KeyError::NoKey { wrapped_by: missing.into_iter().collect() },
            false => {
                let given = self.keys.iter().map(|key| key.id().clone()).collect();
                KeyError::WrongKey { wrapped_by: first, given }
            }
        })
    }

    /// Which letters of a consumer are not executed because they cannot be decrypted, and why. `None` without any.
    pub fn withheld(&self, consumer: &str) -> Option<String> {
        self.withheld.describe(consumer)
    }

    pub(crate) fn is_without_keys(&self) -> bool {
        self.keys.is_empty()
    }

    /// Verifies, for a ring without keys, that no other instance encrypts meanwhile: content must not be stored in the clear then.
    pub(crate) async fn require_plain(&self) -> Result<(), KeyError> {
        let is_due = self.last_read().at.is_none_or(|at| at.elapsed() >= PLAIN_FOR);
        if is_due {
            self.refresh(&DataKeys::default()).await?;
        }
        self.missing().map_or(Ok(()), Err)
    }

    /// Verifies that a store that is opened without a key holds no encrypted values.
    ///
    /// # Errors
    /// `NoKey` if it has data keys; `Damaged` and `Store`.
    pub async fn require_none(store: &dyn KeyValue) -> Result<(), KeyError> {
        match Self::stored(store).await?.as_slice() {
            [] => Ok(()),
            keys => {
                let ids: BTreeSet<KeyId> = keys.iter().map(|key| key.wrapped_by.clone()).collect();
                Err(KeyError::NoKey { wrapped_by: ids.into_iter().collect() })
            }
        }
    }

    /// The data keys that a store holds, the one that encrypts last. Needs no key.
    ///
    /// # Errors
    /// `Damaged` and `Store`.
    pub async fn stored(store: &dyn KeyValue) -> Result<Vec<WrappedKey>, KeyError> {
        let reading = store.read(KEY_RING_PLACE.0, KEY_RING_PLACE.1).await?;
        reading.found.map_or(Ok(Vec::new()), |found| Self::shown(&found.value))
    }

    /// The data keys in a value that was read at [`KEY_RING_PLACE`].
    ///
    /// # Errors
    /// `Damaged`.
    pub fn shown(value: &[u8]) -> Result<Vec<WrappedKey>, KeyError> {
        StoredRing::parse(value)?.keys.iter().map(StoredKey::shown).collect()
    }

    /// Verifies that these keys unwrap all data keys in a value that was read at [`KEY_RING_PLACE`]. Returns their number.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn check(value: &[u8], keys: &[EncryptionKey]) -> Result<usize, KeyError> {
        let ring = StoredRing::parse(value)?;
        if keys.is_empty() && !ring.keys.is_empty() {
            return Err(KeyError::NoKey { wrapped_by: ring.wrapping() });
        }
        ring.unwrap(keys)?;
        Ok(ring.keys.len())
    }

    /// The data keys, as this process knows them.
    pub(crate) fn current(&self) -> Arc<DataKeys> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the data keys again. Returns those that were not known; `None` without any.
    pub(crate) async fn refresh(&self, known: &DataKeys) -> Result<Option<Arc<DataKeys>>, KeyError> {
        let reading = self.store.read(KEY_RING_PLACE.0, KEY_RING_PLACE.1).await?;
        let ring = reading.found.map(|found| StoredRing::parse(&found.value)).transpose()?;
        let read = ring.map(|ring| ring.unwrap_known(&self.keys)).transpose()?.unwrap_or_default();
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let locked = read.locked.iter().filter(|(id, _)| current.get(**id).is_none());
        let missing = locked.map(|(_, wrapped_by)| wrapped_by.clone()).collect();
        *self.last_read() = LastRead { at: Some(Instant::now()), missing };
        let new = read.beyond(known);
        *current = Arc::new(current.and(&read));
        Ok((!new.is_empty()).then(|| Arc::new(new)))
    }

    fn last_read(&self) -> MutexGuard<'_, LastRead> {
        self.last_read.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyRing").field("keys", &self.keys).finish_non_exhaustive()
    }
}
