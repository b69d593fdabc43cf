//! A dead letter of another framework, in Lazaret's terms.

use lazaret_core::letter::Diagnostics;
use lazaret_core::{Failure, Message, Timestamp};

/// A dead letter of another framework: the message as it was, and what the framework recorded about its failure.
///
/// ```
/// use lazaret_adopt::ForeignLetter;
/// use lazaret_core::{Failure, Message, Position, Reason};
///
/// let message = Message::new("evt-1", "orders", Position::new(0, 7));
/// let cause = Failure::new(Reason::TIMEOUT, "java.net.SocketTimeoutException", "Read timed out");
/// let letter = ForeignLetter { attempts: 3, ..ForeignLetter::new("spring", message, cause) };
/// assert!(letter.warnings.is_empty());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ForeignLetter {
    /// The framework that wrote it, as it is named in diagnostics.
    pub framework: &'static str,
    /// The original message: id, stream, position, key, payload, headers, time.
    pub message: Message,
    /// Why it failed; `None` if it never did: it waits behind one of its sequence that did.
    pub cause: Option<Failure>,
    /// Attempts, at least one if it failed.
    pub attempts: u32,
    /// Attempts that ended with a crash of the process.
    pub crash_attempts: u32,
    /// When it first failed, if known.
    pub first_failed_at: Option<Timestamp>,
    /// When it last failed, if known.
    pub last_failed_at: Option<Timestamp>,
    /// The consumer group whose handler failed, if known.
    pub group: Option<String>,
    /// When the framework wrote the dead letter, if known.
    pub written_at: Option<Timestamp>,
    /// When the framework would delete it, if it would.
    pub expires_at: Option<Timestamp>,
    /// The framework's own description of the failure, in readable form.
    pub context: Diagnostics,
    /// Which parts could not be read.
    pub warnings: Vec<String>,
    /// The payload was rebuilt from what the framework kept, and is not byte for byte that of the source. So it is not compared
    /// with the payload of a message that a source delivered.
    pub payload_is_rebuilt: bool,
}

impl ForeignLetter {
    /// Creates a dead letter after one attempt, with nothing else known.
    pub fn new(framework: &'static str, message: Message, cause: Failure) -> Self {
        Self { cause: Some(cause), attempts: 1, ..Self::waiting(framework, message) }
    }

    /// Creates a dead letter that never failed: it waits behind one of its sequence that did.
    pub fn waiting(framework: &'static str, message: Message) -> Self {
        Self {
            framework,
            message,
            cause: None,
            attempts: 0,
            crash_attempts: 0,
            first_failed_at: None,
            last_failed_at: None,
            group: None,
            written_at: None,
            expires_at: None,
            context: Diagnostics::new(),
            warnings: Vec::new(),
            payload_is_rebuilt: false,
        }
    }
}
