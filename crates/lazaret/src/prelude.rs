//! What most consumers need, in one line: `use lazaret::prelude::*;`.
//!
//! ```
//! use lazaret::prelude::*;
//!
//! async fn on_event(Text(text): Text, context: Context) -> Result<(), HandlerError> {
//!     if text.is_empty() {
//!         context.send_to_dlq("nothing to read").await?;
//!     }
//!     Ok(())
//! }
//!
//! let options = Options {
//!     retry: RetryPolicy { max_attempts: 5, ..RetryPolicy::default() },
//!     classifier: Classifier::default().no_retry_on::<std::num::ParseIntError>(),
//!     ..Options::default()
//! };
//! assert!(options.validate().is_ok());
//! let builder = Consumer::builder("audit").handler(on_event).options(options);
//! assert!(matches!(builder.build(), Err(BuildError::NoSource)));
//! ```

pub use lazaret_core::handler::{
    Attempt, Context, EventType, FromDelivery, Json, Key, Payload, Router, StoredLetter, Text, handler,
};
pub use lazaret_core::policy::{Classifier, RetryPolicy, Strategy};
pub use lazaret_core::store::{Act, Actor, Audit, LetterStore, PauseScope, Store};
pub use lazaret_core::{
    Failure, HandlerError, Headers, Letter, LetterId, LetterState, Message, MessageId, Operation, Partition,
    Phase, Position, QueueName, Reason, SequenceId, Sequencing, Source, Timestamp, Verdict,
};
pub use lazaret_engine::{
    BuildError, Builder, Consumer, DeadLetterOptions, Error, Event, Handle, Observer, Options, ReplayReport,
    Replayer, Stats,
};
pub use tokio_util::sync::CancellationToken;
