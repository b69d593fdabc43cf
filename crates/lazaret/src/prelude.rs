//! The names that most consumers need, in one import: `use lazaret::prelude::*;`.
//!
//! ```
//! use lazaret::prelude::*;
//!
//! async fn on_event(Text(text): Text, context: Context) -> Result<(), HandlerError> {
//!     if text.is_empty() {
//!         context.send_to_dlq("an empty text").await?;
//!     }
//!     Ok(())
//! }
//!
//! let builder = Consumer::builder("audit")
//!     .handler(on_event)
//!     .retry(RetryPolicy { max_attempts: 5, ..RetryPolicy::default() })
//!     .classifier(Classifier::default().no_retry_on::<std::num::ParseIntError>());
//! assert!(matches!(builder.build(), Err(BuildError::NoSource)));
//! ```
//!
//! The prelude omits names that programs often define themselves. Use the paths `lazaret::Error`,
//! `lazaret::Event`, `lazaret::Options`, `lazaret::Handle`, `lazaret::Builder` and `lazaret::Stats` for
//! these. The methods `layer` and `with_state` of [`Handler`](crate::handler::Handler) are in scope, but
//! its name is not.

pub use lazaret_core::handler::{
    Attempt, Context, EventType, FromDelivery, Handler as _, Json, Key, Payload, Router, State, StoredLetter,
    Text, handler,
};
pub use lazaret_core::policy::{Classifier, RetryPolicy, Strategy};
pub use lazaret_core::store::{Act, Actor, Audit, LetterStore, PauseScope, Store};
pub use lazaret_core::{
    Failure, HandlerError, Headers, Letter, LetterId, LetterState, Message, MessageId, Operation, Partition,
    Phase, Position, QueueName, Reason, SequenceId, Sequencing, Source, Timestamp, Verdict,
};
pub use lazaret_engine::{BuildError, Consumer, DeadLetterOptions, Observer, ReplayReport, Replayer};
pub use tokio_util::sync::CancellationToken;
