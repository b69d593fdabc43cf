//! The classifier: maps a failure to a verdict.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;

use regex::Regex;

use super::{Comparison, ErrorTypePattern, Glob, StatusPattern, taxonomy};
use crate::failure::{Failure, Phase, Reason, causes};
use crate::fingerprint::Fingerprint;
use crate::message::Message;
use crate::verdict::Verdict;

/// The input of the classifier.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The failure as a value.
    pub failure: &'a Failure,
    /// The error itself, where there is one, for rules that match its type.
    pub error: Option<&'a (dyn StdError + 'static)>,
    /// The message that failed.
    pub message: &'a Message,
    /// The number of the attempt, 1-based.
    pub attempt: u32,
    /// The verdict that the handler set.
    pub asked: Option<Verdict>,
    /// The verdict that replaces the taxonomy's; rules and lists still apply.
    pub suggested: Option<Verdict>,
}

/// The output of the classifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Classification {
    /// The verdict on the message.
    pub verdict: Verdict,
    /// The reason: the failure's own, unless a rule replaced it.
    pub reason: Reason,
    /// What decided: `handler`, `rule 2`, `no-retry-on`, `retry-on`, `suggestion` or `taxonomy: …`.
    pub by: Cow<'static, str>,
}

/// One rule of the user: the first that matches decides.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Its conditions.
    pub when: When,
    /// The verdict when they hold.
    pub then: Verdict,
    /// The reason to record in place of the failure's own.
    pub reason: Option<Reason>,
}

/// The conditions of a rule. All that are given must hold; none given holds always.
#[derive(Clone, Debug, Default)]
pub struct When {
    /// The reason code.
    pub reason: Option<Reason>,
    /// The status or exit code.
    pub status: Option<StatusPattern>,
    /// The type of the event. A message without one fits no pattern.
    pub event_type: Option<Glob>,
    /// The phase that the attempt had reached.
    pub phase: Option<Phase>,
    /// The number of the attempt.
    pub attempt: Option<Comparison>,
    /// Found somewhere in the type or the message of the error or of one underneath it.
    pub error: Option<Regex>,
    /// The type of the error, or of one underneath it.
    pub error_type: Option<Glob>,
    /// The fingerprint of the failure.
    pub fingerprint: Option<Fingerprint>,
}

impl When {
    /// Returns whether all conditions hold. The cheap ones are evaluated first.
    pub fn holds(&self, subject: &Subject<'_>) -> bool {
        let failure = subject.failure;
        let event_type = subject.message.event_type.as_deref();
        self.reason.as_ref().is_none_or(|reason| *reason == failure.reason)
            && self.status.is_none_or(|pattern| failure.status.is_some_and(|status| pattern.matches(status)))
            && self.phase.is_none_or(|phase| phase == failure.phase)
            && self.attempt.is_none_or(|attempt| attempt.holds(subject.attempt))
            && self.fingerprint.is_none_or(|fingerprint| fingerprint == failure.fingerprint)
            && self.event_type.as_ref().is_none_or(|glob| event_type.is_some_and(|t| glob.matches(t)))
            && self.error_type.as_ref().is_none_or(|glob| types(failure).any(|t| glob.matches(t)))
            && self
                .error
                .as_ref()
                .is_none_or(|regex| types(failure).chain(messages(failure)).any(|text| regex.is_match(text)))
    }
}

fn types(failure: &Failure) -> impl Iterator<Item = &str> {
    let chain = failure.chain.iter().filter_map(|link| link.error_type.as_deref());
    std::iter::once(&*failure.error_type).chain(chain)
}

fn messages(failure: &Failure) -> impl Iterator<Item = &str> {
    std::iter::once(&*failure.message).chain(failure.chain.iter().map(|link| &*link.message))
}

/// An error type that a list names.
#[derive(Clone, Copy)]
struct ErrorType {
    name: &'static str,
    is: fn(&(dyn StdError + 'static)) -> bool,
}

/// A list of error types and reasons.
#[derive(Clone, Default)]
struct List {
    types: Vec<ErrorType>,
    /// Types of errors from other systems, of which only the name is known.
    patterns: Vec<ErrorTypePattern>,
    reasons: Vec<Reason>,
}

impl List {
    fn add_type<E: StdError + 'static>(&mut self) {
        self.types.push(ErrorType { name: std::any::type_name::<E>(), is: |error| error.is::<E>() });
    }

    fn is_empty(&self) -> bool {
        self.types.is_empty() && self.patterns.is_empty() && self.reasons.is_empty()
    }

    fn names(&self, subject: &Subject<'_>) -> bool {
        self.reasons.contains(&subject.failure.reason)
            || (!self.patterns.is_empty()
                && types(subject.failure).any(|name| self.patterns.iter().any(|p| p.matches(name))))
            || (!self.types.is_empty()
                && causes(subject.error).any(|error| self.types.iter().any(|t| (t.is)(error))))
    }
}

impl fmt::Debug for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let types = self.types.iter().map(|t| t.name);
        f.debug_list().entries(types).entries(&self.patterns).entries(&self.reasons).finish()
    }
}

/// Maps a failure to a verdict. Without rules it uses the [`taxonomy`].
///
/// In this order, the first that applies decides:
/// 1. the handler, if it set a verdict;
/// 2. the rules, in the order in which they were given;
/// 3. `no-retry-on`: what it names is not retried;
/// 4. `retry-on`: if it names anything, only that is retried;
/// 5. the handler's suggestion, if it made one, or else the taxonomy.
///
/// A failure that 3 and 4 do not retry gets the verdict of 5 (dead letter, parked, duplicate), or dead letter where 5 would
/// retry. A panic is a bug, whatever was suggested.
///
/// ```
/// use lazaret_core::policy::{Classifier, Subject};
/// use lazaret_core::{HandlerError, Message, Position, Verdict};
///
/// let classifier = Classifier::default().no_retry_on::<std::num::ParseIntError>();
/// let error = HandlerError::from("x".parse::<u8>().unwrap_err());
/// let said = classifier.classify(&Subject {
///     failure: &error.failure(),
///     error: error.error(),
///     message: &Message::new("evt-1", "orders", Position::new(0, 0)),
///     attempt: 1,
///     asked: error.asked_verdict(),
///     suggested: error.suggested_verdict(),
/// });
/// assert_eq!(said.verdict, Verdict::DeadLetter);
/// assert_eq!(said.by, "no-retry-on");
/// ```
#[derive(Clone, Debug, Default)]
pub struct Classifier {
    rules: Vec<Rule>,
    retry_on: List,
    no_retry_on: List,
}

impl Classifier {
    /// Adds a rule behind those that are there.
    #[must_use]
    pub fn rule(mut self, rule: Rule) -> Self {
        self.rules.push(rule);
        self
    }

    /// Retries errors of this type, and no others but those named likewise. It may be anywhere in the cause chain.
    #[must_use]
    pub fn retry_on<E: StdError + 'static>(mut self) -> Self {
        self.retry_on.add_type::<E>();
        self
    }

    /// Never retries errors of this type, wherever it is in the cause chain.
    #[must_use]
    pub fn no_retry_on<E: StdError + 'static>(mut self) -> Self {
        self.no_retry_on.add_type::<E>();
        self
    }

    /// Retries failures with this reason, and no others but those named likewise.
    #[must_use]
    pub fn retry_on_reason(mut self, reason: Reason) -> Self {
        self.retry_on.reasons.push(reason);
        self
    }

    /// Never retries failures with this reason.
    #[must_use]
    pub fn no_retry_on_reason(mut self, reason: Reason) -> Self {
        self.no_retry_on.reasons.push(reason);
        self
    }

    /// Retries errors whose type has a name like this, and no others but those named likewise. For errors from other systems.
    #[must_use]
    pub fn retry_on_error_type(mut self, pattern: ErrorTypePattern) -> Self {
        self.retry_on.patterns.push(pattern);
        self
    }

    /// Never retries errors whose type has a name like this, at the top of the cause chain or below. For errors from other systems.
    ///
    /// ```
    /// use lazaret_core::policy::{Classifier, Subject};
    /// use lazaret_core::{HandlerError, Message, Position, Verdict};
    /// let classifier = Classifier::default().no_retry_on_error_type("NullPointerException".parse().unwrap());
    /// let error = HandlerError::foreign("java.lang.NullPointerException", "no card").suggest(Verdict::Retry);
    /// let said = classifier.classify(&Subject {
    ///     failure: &error.failure(),
    ///     error: None,
    ///     message: &Message::new("evt-1", "orders", Position::new(0, 0)),
    ///     attempt: 1,
    ///     asked: None,
    ///     suggested: error.suggested_verdict(),
    /// });
    /// assert_eq!(said.verdict, Verdict::DeadLetter);
    /// ```
    #[must_use]
    pub fn no_retry_on_error_type(mut self, pattern: ErrorTypePattern) -> Self {
        self.no_retry_on.patterns.push(pattern);
        self
    }

    /// Classifies a failure.
    pub fn classify(&self, subject: &Subject<'_>) -> Classification {
        let failure = subject.failure;
        let says = |verdict, by| Classification { verdict, reason: failure.reason.clone(), by };
        if let Some(verdict) = subject.asked {
            return says(verdict, Cow::Borrowed("handler"));
        }
        let fitting = self.rules.iter().zip(1_u32..).find(|(rule, _)| rule.when.holds(subject));
        if let Some((rule, number)) = fitting {
            let said = says(rule.then, Cow::Owned(format!("rule {number}")));
            return Classification { reason: rule.reason.clone().unwrap_or(said.reason), ..said };
        }
        let (verdict, by) = match subject.suggested.filter(|_| !failure.panicked) {
            Some(verdict) => (verdict, Cow::Borrowed("suggestion")),
            None => {
                let (verdict, kind) = taxonomy(&failure.reason, failure.phase, failure.panicked);
                (verdict, Cow::Owned(format!("taxonomy: {kind}")))
            }
        };
        let unretried = if verdict == Verdict::Retry { Verdict::DeadLetter } else { verdict };
        if self.no_retry_on.names(subject) {
            return says(unretried, Cow::Borrowed("no-retry-on"));
        }
        if !self.retry_on.is_empty() {
            let verdict = if self.retry_on.names(subject) { Verdict::Retry } else { unretried };
            return says(verdict, Cow::Borrowed("retry-on"));
        }
        says(verdict, by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{CauseLink, HandlerError};
    use crate::message::Position;
    use std::io;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] io::Error);

    #[derive(Debug, thiserror::Error)]
    #[error("inner")]
    struct Inner;

    fn failure(reason: Reason) -> Failure {
        Failure::new(reason, "shop::PaymentError", "card declined")
    }

    fn message() -> Message {
        Message::new("m", "s", Position::new(0, 0)).with_type("CaseClosed")
    }

    fn classify(classifier: &Classifier, failure: &Failure, error: Option<&HandlerError>) -> Classification {
        let asked = error.and_then(HandlerError::asked_verdict);
        let suggested = error.and_then(HandlerError::suggested_verdict);
        let error = error.and_then(HandlerError::error);
        classifier.classify(&Subject { failure, error, message: &message(), attempt: 3, asked, suggested })
    }

    fn rule(when: When, then: Verdict) -> Rule {
        Rule { when, then, reason: None }
    }

    #[test]
    fn a_panic_is_not_retried_whatever_its_reason() {
        let panic = HandlerError::panic("boom", None).reason(Reason::TIMEOUT).failure();
        let said = classify(&Classifier::default(), &panic, None);
        assert_eq!((said.verdict, &*said.by), (Verdict::DeadLetter, "taxonomy: a panic is a bug"));
        let user = Classifier::default().rule(rule(When::default(), Verdict::Retry));
        assert_eq!(classify(&user, &panic, None).verdict, Verdict::Retry);
    }

    #[test]
    fn the_handler_comes_first_then_rules_then_lists() {
        let timeout = failure(Reason::TIMEOUT);
        let lists = Classifier::default().retry_on_reason(Reason::TIMEOUT);
        assert_eq!(&*classify(&lists, &timeout, None).by, "retry-on");
        let lists = lists.no_retry_on_reason(Reason::TIMEOUT);
        let said = classify(&lists, &timeout, None);
        assert_eq!((said.verdict, &*said.by), (Verdict::DeadLetter, "no-retry-on"));

        let other = When { reason: Some(Reason::CONFLICT), ..When::default() };
        let teapot = Reason::new("TEAPOT").unwrap();
        let all = lists
            .rule(rule(other, Verdict::Stop))
            .rule(Rule { when: When::default(), then: Verdict::Park, reason: Some(teapot.clone()) })
            .rule(rule(When::default(), Verdict::Skip));
        let said = classify(&all, &timeout, None);
        assert_eq!(said, Classification { verdict: Verdict::Park, reason: teapot, by: "rule 2".into() });

        let asked = HandlerError::msg("x").verdict(Verdict::Quarantine);
        let said = classify(&all, &timeout, Some(&asked));
        let expected =
            Classification { verdict: Verdict::Quarantine, reason: Reason::TIMEOUT, by: "handler".into() };
        assert_eq!(said, expected);
    }

    #[test]
    fn a_suggestion_stands_in_place_of_the_taxonomy_and_gives_way_to_rules_and_lists() {
        let unknown = failure(Reason::new("CARD_DECLINED").unwrap());
        let dead = HandlerError::msg("x").suggest(Verdict::DeadLetter);
        let said = classify(&Classifier::default(), &unknown, Some(&dead));
        assert_eq!((said.verdict, &*said.by), (Verdict::DeadLetter, "suggestion"));
        let retried = Classifier::default().retry_on_reason(unknown.reason.clone());
        assert_eq!(classify(&retried, &unknown, Some(&dead)).verdict, Verdict::Retry);
        let ruled = Classifier::default().rule(rule(When::default(), Verdict::Skip));
        assert_eq!(&*classify(&ruled, &unknown, Some(&dead)).by, "rule 1");
        let parked = HandlerError::msg("x").suggest(Verdict::Park);
        let unretried = Classifier::default().no_retry_on_reason(unknown.reason.clone());
        assert_eq!(classify(&unretried, &unknown, Some(&parked)).verdict, Verdict::Park);
        let asked = HandlerError::msg("x").suggest(Verdict::Park).verdict(Verdict::Stop);
        assert_eq!(&*classify(&unretried, &unknown, Some(&asked)).by, "handler");
        let panic = HandlerError::panic("boom", None).suggest(Verdict::Retry);
        assert_eq!(classify(&retried, &panic.failure(), Some(&panic)).verdict, Verdict::DeadLetter);
    }

    #[test]
    fn error_types_are_found_down_the_chain() {
        let error = HandlerError::from(Outer(io::Error::other(Inner)));
        let retried = failure(Reason::HANDLER_ERROR);
        let table = [
            (Classifier::default().no_retry_on::<Outer>(), Verdict::DeadLetter),
            (Classifier::default().no_retry_on::<io::Error>(), Verdict::DeadLetter),
            (Classifier::default().no_retry_on::<Inner>(), Verdict::DeadLetter),
            (Classifier::default().no_retry_on::<fmt::Error>(), Verdict::Retry),
            (Classifier::default().retry_on::<Inner>(), Verdict::Retry),
            (Classifier::default().retry_on::<fmt::Error>(), Verdict::DeadLetter),
            (
                Classifier::default().retry_on::<fmt::Error>().retry_on_reason(Reason::HANDLER_ERROR),
                Verdict::Retry,
            ),
            (Classifier::default().retry_on::<Inner>().no_retry_on::<Outer>(), Verdict::DeadLetter),
        ];
        for (classifier, expected) in table {
            assert_eq!(classify(&classifier, &retried, Some(&error)).verdict, expected, "{classifier:?}");
        }
    }

    #[test]
    fn error_types_of_other_systems_are_found_by_name_down_the_chain() {
        let pattern = |text: &str| text.parse::<ErrorTypePattern>().unwrap();
        let mut failure = Failure::new(Reason::HANDLER_ERROR, "java.lang.IllegalStateException", "no");
        let verdict =
            |classifier: &Classifier, failure: &Failure| classify(classifier, failure, None).verdict;
        let refused = Classifier::default().no_retry_on_error_type(pattern("ClassCastException"));
        assert_eq!(verdict(&refused, &failure), Verdict::Retry);
        let only = Classifier::default().retry_on_error_type(pattern("IllegalStateException"));
        assert_eq!(verdict(&only, &failure), Verdict::Retry);
        let both = only.clone().no_retry_on_error_type(pattern("java.lang.*"));
        assert_eq!(verdict(&both, &failure), Verdict::DeadLetter);
        let link =
            |error_type: &str| CauseLink { error_type: Some(error_type.into()), message: String::new() };
        failure.chain.push(link("java.lang.ClassCastException"));
        assert_eq!(verdict(&refused, &failure), Verdict::DeadLetter);
        failure.error_type = "shop.Other".into();
        assert_eq!(verdict(&only, &failure), Verdict::DeadLetter);
    }

    #[test]
    fn the_lists_keep_what_the_taxonomy_ends_otherwise() {
        let table = [(Reason::UNKNOWN_EVENT_TYPE, Verdict::Park), (Reason::DUPLICATE, Verdict::Duplicate)];
        for (reason, expected) in table {
            let no_retry = Classifier::default().no_retry_on_reason(reason.clone());
            let retry = Classifier::default().retry_on_reason(Reason::TIMEOUT);
            let named = Classifier::default().retry_on_reason(reason.clone());
            let failure = failure(reason);
            assert_eq!(classify(&no_retry, &failure, None).verdict, expected);
            assert_eq!(classify(&retry, &failure, None).verdict, expected);
            assert_eq!(classify(&named, &failure, None).verdict, Verdict::Retry);
        }
    }

    #[test]
    fn each_condition_of_a_rule_can_hold_and_fail() {
        let mut failed = failure(Reason::TIMEOUT).in_phase(Phase::ExternalCall);
        failed.status = Some(418);
        failed
            .chain
            .push(CauseLink { error_type: Some("pg::Error".into()), message: "Deadlock found".into() });
        let other = failure(Reason::TIMEOUT).with_backtrace("0: shop::main").fingerprint;
        assert_ne!(other, failed.fingerprint);
        let glob = |text: &str| text.parse::<Glob>().ok();
        let regex = |text: &str| Regex::new(text).ok();
        let none = When::default;
        let table = [
            (none(), true),
            (When { reason: Some(Reason::TIMEOUT), ..none() }, true),
            (When { reason: Some(Reason::CONFLICT), ..none() }, false),
            (When { status: Some(418.into()), ..none() }, true),
            (When { status: Some("4xx".parse().unwrap()), ..none() }, true),
            (When { status: Some(500.into()), ..none() }, false),
            (When { status: Some("5xx".parse().unwrap()), ..none() }, false),
            (When { event_type: glob("Case*"), ..none() }, true),
            (When { event_type: glob("Order*"), ..none() }, false),
            (When { phase: Some(Phase::ExternalCall), ..none() }, true),
            (When { phase: Some(Phase::Handle), ..none() }, false),
            (When { attempt: ">=3".parse().ok(), ..none() }, true),
            (When { attempt: "<3".parse().ok(), ..none() }, false),
            (When { error: regex("(?i)DEADLOCK"), ..none() }, true),
            (When { error: regex("PaymentError$"), ..none() }, true),
            (When { error: regex("^card"), ..none() }, true),
            (When { error: regex("deadlock"), ..none() }, false),
            (When { error_type: glob("*PaymentError"), ..none() }, true),
            (When { error_type: glob("pg::*"), ..none() }, true),
            (When { error_type: glob("PaymentError"), ..none() }, false),
            (When { fingerprint: Some(failed.fingerprint), ..none() }, true),
            (When { fingerprint: Some(other), ..none() }, false),
            (When { status: Some(418.into()), reason: Some(Reason::CONFLICT), ..none() }, false),
        ];
        let message = message();
        let subject = Subject {
            failure: &failed,
            error: None,
            message: &message,
            attempt: 3,
            asked: None,
            suggested: None,
        };
        for (when, expected) in table {
            assert_eq!(when.holds(&subject), expected, "{when:?}");
        }
    }

    #[test]
    fn a_message_without_a_type_fits_no_type_pattern() {
        let mut untyped = message();
        untyped.event_type = None;
        let failure = failure(Reason::TIMEOUT);
        let subject = Subject {
            failure: &failure,
            error: None,
            message: &untyped,
            attempt: 1,
            asked: None,
            suggested: None,
        };
        let any = When { event_type: "*".parse().ok(), ..When::default() };
        assert!(!any.holds(&subject));
    }
}
