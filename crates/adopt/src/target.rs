//! The queue that adopted letters belong to. Converts foreign dead letters to letters of that queue.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::redaction::TextRules;
use lazaret_core::store::Limits;
use lazaret_core::{
    Letter, LetterId, LetterState, Message, MessageId, QueueName, SequenceId, Sequencing, Timestamp,
};

use crate::foreign::ForeignLetter;

/// The diagnostic that holds the place where the dead letter was found.
pub const ADOPTED_FROM: &str = "adopted-from";
/// The diagnostic that holds warnings: parts that could not be read, or an id that belongs to a
/// different message.
pub(crate) const WARNINGS: &str = "adopted-warnings";
/// The prefix of separate sequences. No key has it, because keys that begin with `~` are escaped.
const SEPARATE: &str = "~dlt:";
const STORE_TIMEOUT: Duration = Duration::from_secs(60);

/// The queue that adopted letters belong to, and how they are stored there.
///
/// ```
/// use std::time::Duration;
/// use lazaret_adopt::{Expiry, Target};
/// use lazaret_core::QueueName;
///
/// let target = Target {
///     group: Some("billing".to_owned()),
///     owner: Some("billing-team".into()),
///     expiry: Expiry::After(Duration::from_secs(30 * 24 * 3600)),
///     ..Target::new(QueueName::of("billing", "billing"))
/// };
/// ```
#[derive(Clone, Debug)]
pub struct Target {
    /// The queue.
    pub queue: QueueName,
    /// The limits of the queue.
    pub limits: Limits,
    /// The sequencing of the consumer. Default: by key. Letters join the consumer's sequences, so live
    /// messages wait behind the letters adopted into their sequence, as behind any letter (I2).
    pub sequencing: Sequencing,
    /// Whether to put the letters into separate sequences. They keep their order, and no live message
    /// waits behind them.
    pub separate_sequences: bool,
    /// The group whose dead letters are adopted, along with dead letters that name no group. `None`
    /// adopts from all groups.
    pub group: Option<String>,
    /// The owner of the letters.
    pub owner: Option<Arc<str>>,
    /// When the letters expire.
    pub expiry: Expiry,
    /// Whether to keep payloads. A letter without its payload can be inspected and closed, but not replayed.
    pub include_payload: bool,
    /// Whether to keep backtraces.
    pub include_backtrace: bool,
    /// The rules that redact texts of errors before they are stored.
    pub redact: TextRules,
    /// How long a temporary failure of the store is retried.
    pub store_timeout: Duration,
}

/// When adopted letters expire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expiry {
    /// Never.
    #[default]
    Never,
    /// After this time, counted from the adoption.
    After(Duration),
    /// When the framework would delete the dead letter, or never if that time has passed.
    Theirs,
}

impl Target {
    /// Creates a target with the defaults: no filter, no owner, no expiry, whole letters, and a store
    /// timeout of one minute.
    pub fn new(queue: QueueName) -> Self {
        Self {
            queue,
            limits: Limits::default(),
            sequencing: Sequencing::default(),
            separate_sequences: false,
            group: None,
            owner: None,
            expiry: Expiry::default(),
            include_payload: true,
            include_backtrace: true,
            redact: TextRules::default(),
            store_timeout: STORE_TIMEOUT,
        }
    }

    /// Returns `true` if a dead letter belongs to another group.
    pub(crate) fn is_foreign(&self, letter: &ForeignLetter) -> bool {
        matches!((&self.group, &letter.group), (Some(wanted), Some(group)) if wanted != group)
    }

    /// Builds the letter that the consumer itself would have written, but under an id that no source
    /// message finds. The writer of the dead letter chose the message id, and this queue has not seen
    /// the message (I1).
    pub(crate) fn letter(&self, foreign: ForeignLetter, address: String, now: Timestamp) -> Letter {
        let sequence = self.sequence(&foreign.message);
        let mut letter = Letter::new(self.queue.clone(), sequence, Arc::new(foreign.message), now);
        letter.id = LetterId::of_import(&self.queue, &letter.message.id);
        (letter.state, letter.attempts) = match &foreign.cause {
            Some(_) => (LetterState::Dead, foreign.attempts.max(1)),
            None => (LetterState::Waiting, 0),
        };
        letter.cause = foreign.cause;
        letter.crash_attempts = foreign.crash_attempts;
        (letter.first_failed_at, letter.last_failed_at) = (foreign.first_failed_at, foreign.last_failed_at);
        letter.owner.clone_from(&self.owner);
        letter.expires_at = match self.expiry {
            Expiry::Never => None,
            Expiry::After(ttl) => now.checked_add(ttl).ok(),
            // A letter that should be gone is still adopted, and must not expire at once.
            Expiry::Theirs => foreign.expires_at.filter(|at| *at > now),
        };
        // A waiting letter has not failed. Its time starts when it does.
        letter.expires_at = letter.expires_at.filter(|_| letter.state != LetterState::Waiting);
        if !self.include_payload {
            letter.message = Arc::new(Message { payload: None, ..(*letter.message).clone() });
            letter.payload_left_out = true;
        }
        if let Some(cause) = letter.cause.as_mut().filter(|_| !self.include_backtrace) {
            cause.backtrace = None;
        }
        self.redact.apply_to_message(&mut letter.message);
        if let Some(cause) = &mut letter.cause {
            self.redact.apply_to_failure(cause);
        }
        letter.context = foreign.context;
        self.redact.apply_to_context(&mut letter.context);
        let written_at = foreign.written_at.map(|time| time.to_string());
        let mut warnings = Some(foreign.warnings.join("; ")).filter(|warnings| !warnings.is_empty());
        warnings.iter_mut().for_each(|warnings| {
            self.redact.apply(warnings);
        });
        let diagnostics = [
            (ADOPTED_FROM, Some(address)),
            ("adopted-family", Some(foreign.framework.to_owned())),
            ("adopted-group", foreign.group),
            ("adopted-written-at", written_at),
            (WARNINGS, warnings),
        ];
        for (name, value) in diagnostics {
            if let Some(value) = value {
                letter.diagnostics.insert(name.to_owned(), value);
            }
        }
        letter
    }

    /// Returns the letter with a new message id, and a warning that names the old one.
    pub(crate) fn with_id(&self, mut letter: Letter, id: MessageId) -> Letter {
        let warning = format!("another message has its id {}", letter.message.id);
        letter.id = LetterId::of_import(&self.queue, &id);
        letter.message = Arc::new(Message { id, ..(*letter.message).clone() });
        // The consumer's rule may read the payload. Without it, the letter keeps its sequence.
        if !letter.payload_left_out {
            letter.sequence = self.sequence(&letter.message);
        }
        let warnings = letter.diagnostics.entry(WARNINGS.to_owned()).or_default();
        *warnings = if warnings.is_empty() { warning } else { format!("{warnings}; {warning}") };
        letter
    }

    /// Returns the sequence of the consumer for a message. A custom rule that panics falls back to the
    /// key (I10).
    fn sequence(&self, message: &Message) -> SequenceId {
        let sequence = catch_unwind(AssertUnwindSafe(|| self.sequencing.id(message)));
        let sequence = sequence.unwrap_or_else(|_| SequenceId::by_key(message));
        if self.separate_sequences { SequenceId::new(format!("{SEPARATE}{sequence}")) } else { sequence }
    }
}

#[cfg(test)]
mod tests {
    use lazaret_core::redaction::TextSet;
    use lazaret_core::{Failure, Position, Reason};

    use super::*;

    fn target() -> Target {
        Target::new(QueueName::of("billing", "billing"))
    }

    fn foreign() -> ForeignLetter {
        let message = Message::new("orders/1/9", "orders", Position::new(1, 9)).with_key("k");
        ForeignLetter::new("spring", message, Failure::new(Reason::TIMEOUT, "E", "no"))
    }

    fn letter(target: &Target, foreign: ForeignLetter) -> Letter {
        target.letter(foreign, "dlt/2/7".to_owned(), Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn a_letter_holds_where_it_was_found_and_what_could_not_be_read() {
        let damaged = ForeignLetter {
            attempts: 0,
            group: Some("billing".to_owned()),
            warnings: vec!["a".to_owned(), "b".to_owned()],
            ..foreign()
        };
        let letter = letter(&target(), damaged);
        let diagnostic = |name: &str| letter.diagnostics.get(name).map(String::as_str);
        assert_eq!(
            (diagnostic(ADOPTED_FROM), diagnostic("adopted-family")),
            (Some("dlt/2/7"), Some("spring"))
        );
        assert_eq!(
            (diagnostic("adopted-group"), diagnostic("adopted-warnings")),
            (Some("billing"), Some("a; b"))
        );
        assert_eq!(diagnostic("adopted-written-at"), None);
        assert_eq!((letter.state, letter.attempts, letter.sequence.as_str()), (LetterState::Dead, 1, "k"));
    }

    #[test]
    fn secrets_in_texts_are_redacted_before_they_are_stored() {
        let text = "no user ada@example.org";
        let context = [("kafka_dlt-exception-message".to_owned(), text.to_owned())].into();
        let cause = Some(Failure::new(Reason::TIMEOUT, "E", text));
        let redact = TextRules::new([TextSet::Emails], []);
        let mut message = foreign().message;
        message.undecodable = Some(text.into());
        let foreign = ForeignLetter { context, cause, message, ..foreign() };
        let adopted = letter(&Target { redact, ..target() }, foreign);
        assert_eq!(adopted.message.undecodable.as_deref(), Some("no user [redacted]"));
        assert_eq!(adopted.context["kafka_dlt-exception-message"], "no user [redacted]");
        assert_eq!(adopted.cause.unwrap().message, "no user [redacted]");
    }

    #[test]
    fn a_letter_that_never_failed_waits() {
        let waiting = ForeignLetter::waiting("axon", foreign().message);
        let letter = letter(&target(), waiting);
        assert_eq!((letter.state, letter.attempts, letter.cause), (LetterState::Waiting, 0, None));
    }

    #[test]
    fn a_letter_expires_as_the_target_says() {
        let at = |second| Some(Timestamp::from_second(second).unwrap());
        let theirs = ForeignLetter { expires_at: at(50), ..foreign() };
        let expiry = |expiry| letter(&Target { expiry, ..target() }, theirs.clone()).expires_at;
        assert_eq!(expiry(Expiry::Never), None);
        assert_eq!(expiry(Expiry::After(Duration::from_secs(7))), at(7));
        assert_eq!(expiry(Expiry::Theirs), at(50));
        let past = ForeignLetter { expires_at: at(0), ..foreign() };
        assert_eq!(letter(&Target { expiry: Expiry::Theirs, ..target() }, past).expires_at, None);
    }

    #[test]
    fn a_consumer_that_keeps_no_payloads_and_backtraces_gets_none() {
        let mut whole = foreign();
        whole.message.payload = Some("p".into());
        whole.cause.as_mut().unwrap().backtrace = Some("at x".to_owned());
        let kept = letter(&target(), whole.clone());
        assert!(kept.message.payload.is_some() && kept.cause.unwrap().backtrace.is_some());
        let bare = Target { include_payload: false, include_backtrace: false, ..target() };
        let bare = letter(&bare, whole);
        assert_eq!((&bare.message.payload, bare.payload_left_out), (&None, true));
        assert_eq!((bare.cause.unwrap().backtrace, bare.message.key.as_deref()), (None, Some(&b"k"[..])));
    }

    #[test]
    fn a_rule_that_panics_falls_back_to_the_key() {
        // I10
        let rule = Sequencing::Custom(Arc::new(|_: &Message| panic!("no such order")));
        assert_eq!(letter(&Target { sequencing: rule, ..target() }, foreign()).sequence.as_str(), "k");
        let separate = Target { separate_sequences: true, ..target() };
        assert_eq!(letter(&separate, foreign()).sequence.as_str(), "~dlt:k");
    }

    #[test]
    fn a_letter_of_another_group_is_foreign_and_one_without_a_group_is_not() {
        let of = |group: Option<&str>| ForeignLetter { group: group.map(str::to_owned), ..foreign() };
        let only = Target { group: Some("shipping".to_owned()), ..target() };
        assert!(only.is_foreign(&of(Some("billing"))));
        assert!(!only.is_foreign(&of(Some("shipping"))) && !only.is_foreign(&of(None)));
        assert!(!target().is_foreign(&of(Some("billing"))));
    }
}
