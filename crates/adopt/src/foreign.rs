//! A dead letter of another framework, in Lazaret's terms.

use lazaret_core::letter::Diagnostics;
use lazaret_core::{Failure, Message, Timestamp};

/// A dead letter of another framework. It holds the original message, and what the framework recorded
/// about its failure.
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
    /// The framework that wrote it, by its name in diagnostics.
    pub framework: &'static str,
    /// The original message: id, stream, position, key, payload, headers and time.
    pub message: Message,
    /// The cause of the failure. `None` if the message never failed, and only waits behind a failed one
    /// of its sequence.
    pub cause: Option<Failure>,
    /// The number of attempts, at least one if the message failed.
    pub attempts: u32,
    /// The number of attempts that ended with a crash of the process.
    pub crash_attempts: u32,
    /// When it first failed, if known.
    pub first_failed_at: Option<Timestamp>,
    /// When it last failed, if known.
    pub last_failed_at: Option<Timestamp>,
    /// The consumer group whose handler failed, if known.
    pub group: Option<String>,
    /// When the framework wrote the dead letter, if known.
    pub written_at: Option<Timestamp>,
    /// When the framework would delete the dead letter, if ever.
    pub expires_at: Option<Timestamp>,
    /// The framework's own description of the failure, in readable form.
    pub context: Diagnostics,
    /// Warnings about parts that could not be read.
    pub warnings: Vec<String>,
    /// Whether the payload was rebuilt from what the framework kept, so that its bytes may differ from
    /// the source's. It is then not compared with the payload of a message that a source delivered.
    pub payload_is_rebuilt: bool,
}

impl ForeignLetter {
    /// Creates a dead letter after one attempt, without further details.
    pub fn new(framework: &'static str, message: Message, cause: Failure) -> Self {
        Self { cause: Some(cause), attempts: 1, ..Self::waiting(framework, message) }
    }

    /// Creates a dead letter that never failed, and waits behind a failed one of its sequence.
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
