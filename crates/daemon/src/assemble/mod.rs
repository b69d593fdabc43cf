//! Builds a consumer from its configuration, one file per part.

mod access;
#[cfg(feature = "kafka")]
mod adoption;
mod consumer;
#[cfg(feature = "mongodb")]
mod copies;
mod encryption;
mod handler;
#[cfg(feature = "kafka")]
mod kafka;
mod listener;
#[cfg(feature = "kafka")]
mod member;
#[cfg(feature = "mongodb")]
mod mongodb;
#[cfg(feature = "mongodb")]
mod mongodb_errors;
mod options;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "postgres")]
mod postgres_outbox;
mod recorder;
mod sign_in;
mod source;
mod store;

pub(crate) use access::{limits, remarks_on_tokens_file, tokens};
#[cfg(feature = "kafka")]
pub(crate) use adoption::{Selection, adoption};
pub(crate) use consumer::{Shared, adopt_to_end, background, background_done, consumer};
pub(crate) use encryption::{
    is_readable_by_all, key as encryption_key, notice as encryption_notice, shown as shown_key_source,
};
pub(crate) use handler::{handler, handler_address, http_options};
#[cfg(feature = "kafka")]
pub(crate) use kafka::check_property as check_kafka_property;
pub(crate) use listener::{socket, tls};
#[cfg(feature = "mongodb")]
pub(crate) use mongodb::{
    SERVER_TIMEOUT as MONGODB_TIMEOUT, Server as MongodbServer, check_pipeline,
    check_watch as check_mongodb_watch, explain_store as explain_mongodb_store, options as mongodb_options,
    review_pipeline,
};
#[cfg(feature = "mongodb")]
pub(crate) use mongodb_errors::{
    Explained as ExplainedMongodb, check_store_uri as check_mongodb_store_uri,
    check_uri as check_mongodb_uri, explain as explain_mongodb,
};
#[cfg(feature = "postgres")]
pub(crate) use postgres::NO_PRIMARY as NO_POSTGRES_PRIMARY;
#[cfg(feature = "postgres")]
pub(crate) use postgres_outbox::options as outbox_options;
pub(crate) use recorder::open as open_recorder;
pub(crate) use sign_in::{console, proxy, sessions};
pub(crate) use store::{Stores, store_capabilities};
