//! Options of a store.

use std::fmt;
use std::sync::Arc;

use lazaret_core::Clock;

use crate::layout::Layout;

/// The collection of the letters, unless the options name another.
pub const DEFAULT_COLLECTION: &str = "lazaret_letters";

/// The default collection of earlier versions.
pub(crate) const FORMER_COLLECTION: &str = "_fw_dlq";

/// The database, if neither the options nor the URI name one.
pub const DEFAULT_DATABASE: &str = "lazaret";

/// The size of a client's pool, unless its options state another.
const DEFAULT_CONNECTIONS: usize = 10;

/// Options of a [`MongoStore`](crate::MongoStore).
///
/// ```
/// use lazaret_store_mongodb::MongoStoreOptions;
/// let options = MongoStoreOptions { database: Some("shop".into()), ..MongoStoreOptions::default() };
/// assert_eq!(options.collection, "lazaret_letters");
/// ```
#[derive(Clone)]
pub struct MongoStoreOptions {
    /// The database. Default: that of the URI, else `lazaret`.
    pub database: Option<String>,
    /// The collection of the letters, unless the URI names one. The names of all other collections begin with it.
    pub collection: String,
    /// The names of the readable fields of letters, unless the URI names a layout.
    pub layout: Layout,
    /// How many calls are made to the server at once: the `max_pool_size` of the client, of which `maxPoolSize` in a URI is the source.
    /// Two of them are kept for positions and the leases of streams.
    pub connections: usize,
    /// The store's clock. Default: that of the server, which all processes of a fleet share. Tests control it with one of their own.
    pub clock: Option<Arc<dyn Clock>>,
}

impl Default for MongoStoreOptions {
    /// The database of the URI, `lazaret_letters`, Lazaret's own layout, the pool size that the driver has by default, the clock of the
    /// server.
    fn default() -> Self {
        Self {
            database: None,
            collection: DEFAULT_COLLECTION.to_owned(),
            layout: Layout::default(),
            connections: DEFAULT_CONNECTIONS,
            clock: None,
        }
    }
}

impl fmt::Debug for MongoStoreOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MongoStoreOptions")
            .field("database", &self.database)
            .field("collection", &self.collection)
            .field("layout", &self.layout)
            .field("connections", &self.connections)
            .finish_non_exhaustive()
    }
}
