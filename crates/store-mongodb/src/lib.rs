//! The MongoDB store: letters that a fleet shares.

mod acts;
mod audit;
mod clock;
mod commit;
mod contract;
mod database;
mod documents;
mod effects;
mod error;
mod grants;
mod intake;
mod key_values;
mod leases;
mod letters;
mod listing;
mod notes;
mod operations;
mod options;
mod pauses;
mod store;
mod values;

pub use options::{DEFAULT_COLLECTION, DEFAULT_DATABASE, MongoStoreOptions};
pub use store::{FORMAT_VERSION, MongoStore};
