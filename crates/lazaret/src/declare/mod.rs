//! Consumers declared by attributes on an `impl` block.
//!
#![cfg_attr(feature = "memory", doc = "```")]
#![cfg_attr(not(feature = "memory"), doc = "```ignore")]
//! use std::sync::Arc;
//!
//! use lazaret::declare::*;
//! use lazaret::memory::{MemoryLog, MemoryStore};
//! use lazaret::prelude::*;
//!
//! #[derive(Debug, thiserror::Error)]
//! #[error("a negative total")]
//! struct ValidationError;
//!
//! struct Orders {
//!     region: &'static str,
//! }
//!
//! #[change_stream(collection = "orders")]
//! #[retry_policy(max_attempts = 5, no_retry_on(ValidationError))]
//! #[dead_letter_queue(ttl_days = 90)]
//! impl Orders {
//!     #[on_insert]
//!     async fn placed(&self, Json(cents): Json<i64>, context: Context) -> Result<(), HandlerError> {
//!         if cents < 0 {
//!             return Err(ValidationError.into());
//!         }
//!         println!("{cents} in {} on attempt {}", self.region, context.attempt());
//!         Ok(())
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let orders = Orders { region: "eu-1" }.declare().consumer()?;
//! assert_eq!(orders.config().retry.policy.max_attempts, 5);
//!
//! # let log = MemoryLog::new("orders", 1);
//! # log.push_with(0, |message| message.with_key("ada").with_type("insert").with_payload("-1"));
//! # log.close();
//! # let store = Arc::new(MemoryStore::default());
//! let consumer = orders.builder()?.source(log.join()).store(store.clone()).until_idle().build()?;
//! # let queue = consumer.queue().clone();
//! consumer.run(CancellationToken::new()).await?;
//! # assert_eq!(store.counts(&queue).await?.of(LetterState::Dead), 1);
//! # Ok(())
//! # }
//! ```
//!
//! Put `#[change_stream]` or `#[kafka_listener]` on the block. `#[retry_policy]`,
//! `#[dead_letter_queue]`, `#[checkpoint]` and `#[restart_policy]` can be added in any order. Methods
//! with `#[on_insert]`, `#[on_update]`, `#[on_replace]`, `#[on_delete]`, `#[on_change]` or, for Kafka,
//! `#[on_message]` are handlers: their parameters after `&self` are [extractors](crate::handler).
//! `#[filter]` selects the messages to handle. `#[on_error]` decides how to proceed after a failure. The
//! guide `docs/attributes.md` lists all attributes with their defaults.
//!
//! # From a declaration to a consumer
//!
//! [`Declare::declare`] returns a [`Declaration`]: plain data and the handlers, without a driver.
//! [`Declaration::consumer`] resolves it to a [`DeclaredConsumer`]; [`load`] does so for several
//! declarations with a configuration file. The [`builder`](DeclaredConsumer::builder) of a declared
//! consumer contains the options of the engine. A value that no attribute sets comes from the consumer
//! of the same name in the file, then from the `defaults` of the file, then from the built-in defaults.
//! [`DeclaredConsumer::effective`] shows the origin of each value.

#[doc(hidden)]
pub mod __private;
mod consumer;
mod declaration;
mod on_error;

pub use consumer::{ChangeStream, DeclaredConsumer, Loaded, load};
pub use declaration::{DEAD_LETTER_COLLECTION, Declaration, Declare, DeclaredSource, Watch};
pub use lazaret_config::{
    BeforeChange, Checkpoint, Consumer as ConsumerConfig, Diagnostics, Env, FullDocument, HistoryLost,
    MongodbSource, NoEnv, OnInvalidate, Origin, ProcessEnv, Restart, Setting, StartPosition,
};
pub use lazaret_macros::{
    change_stream, checkpoint, dead_letter_queue, filter, kafka_listener, on_change, on_delete, on_error,
    on_insert, on_message, on_replace, on_update, restart_policy, retry_policy,
};
pub use on_error::ErrorAction;
