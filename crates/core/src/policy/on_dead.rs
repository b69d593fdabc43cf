//! Whether the later messages of a sequence wait behind a dead letter.

use std::fmt;

use super::Glob;
use crate::failure::Reason;
use crate::message::Message;

/// What happens to the sequence of a letter that dies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnDead {
    /// The letter holds it: later messages wait behind it (I2). This is the default.
    #[default]
    Hold,
    /// The letter leaves it, and later messages go on. A replay of the letter is out of order.
    Continue,
}

impl OnDead {
    /// Every value.
    pub const ALL: [Self; 2] = [Self::Hold, Self::Continue];

    /// The name used in configuration and output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hold => "hold",
            Self::Continue => "continue",
        }
    }
}

impl fmt::Display for OnDead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What happens to the sequences of some letters, in place of the consumer's rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnDeadOverride {
    /// The type of the event; `None` for any. A message without one fits no pattern.
    pub event_type: Option<Glob>,
    /// The reason of the last failure; `None` for any.
    pub reason: Option<Reason>,
    /// What happens.
    pub on_dead: OnDead,
}

/// What happens to the sequences of letters that die.
///
/// ```
/// use lazaret_core::policy::{OnDead, OnDeadOverride, OnDeadPolicy};
/// use lazaret_core::{Message, Position, Reason};
/// let invalid = Some(Reason::INVALID_SCHEMA);
/// let over = OnDeadOverride { event_type: None, reason: invalid, on_dead: OnDead::Continue };
/// let policy = OnDeadPolicy { on_dead: OnDead::Hold, overrides: vec![over] };
/// let message = Message::new("e-1", "orders", Position::new(0, 0));
/// assert_eq!(policy.decide(&message, Some(&Reason::INVALID_SCHEMA)), OnDead::Continue);
/// assert_eq!(policy.decide(&message, Some(&Reason::TIMEOUT)), OnDead::Hold);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OnDeadPolicy {
    /// The rule of the consumer.
    pub on_dead: OnDead,
    /// Those for some event types or reasons; the first that applies counts.
    pub overrides: Vec<OnDeadOverride>,
}

impl OnDeadPolicy {
    /// Decides about a message that dies for this reason.
    pub fn decide(&self, message: &Message, reason: Option<&Reason>) -> OnDead {
        let event_type = message.event_type.as_deref();
        let applies = |over: &&OnDeadOverride| {
            over.reason.as_ref().is_none_or(|wanted| reason == Some(wanted))
                && over
                    .event_type
                    .as_ref()
                    .is_none_or(|glob| event_type.is_some_and(|name| glob.matches(name)))
        };
        self.overrides.iter().find(applies).map_or(self.on_dead, |over| over.on_dead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Position;

    #[test]
    fn values_have_the_names_of_the_configuration() {
        assert_eq!(OnDead::ALL.map(|on_dead| on_dead.to_string()), ["hold", "continue"]);
    }

    #[test]
    fn the_first_override_that_applies_counts() {
        let over = |pattern: Option<&str>, reason, on_dead| OnDeadOverride {
            event_type: pattern.map(|pattern| pattern.parse().unwrap()),
            reason,
            on_dead,
        };
        let policy = OnDeadPolicy {
            on_dead: OnDead::Continue,
            overrides: vec![
                over(Some("Order*"), Some(Reason::TIMEOUT), OnDead::Continue),
                over(Some("Order*"), None, OnDead::Hold),
            ],
        };
        let message = Message::new("m", "s", Position::new(0, 0));
        let order = message.clone().with_type("OrderPlaced");
        assert_eq!(policy.decide(&order, Some(&Reason::TIMEOUT)), OnDead::Continue);
        assert_eq!(policy.decide(&order, Some(&Reason::CONFLICT)), OnDead::Hold);
        assert_eq!(policy.decide(&message, Some(&Reason::CONFLICT)), OnDead::Continue);
        assert_eq!(policy.decide(&order, None), OnDead::Hold);
    }
}
