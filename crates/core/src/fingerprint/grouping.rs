//! Grouping rules: what counts when failures are grouped, and which text does not.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use super::group_pattern::GroupPattern;
use super::normalise::beginning;
use super::{Fingerprint, parts};
use crate::failure::Failure;
use crate::policy::PolicyError;

/// A part of a failure that can count when failures are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GroupPart {
    /// The type of the error.
    ErrorType,
    /// The message of the error, without what varies.
    Message,
    /// The message of the innermost cause, without what varies.
    Cause,
    /// The top frames of the backtrace.
    Backtrace,
    /// The type of the event. It does not count by default.
    EventType,
}

impl GroupPart {
    /// All parts.
    pub const ALL: [Self; 5] =
        [Self::ErrorType, Self::Message, Self::Cause, Self::Backtrace, Self::EventType];

    /// The name in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ErrorType => "error-type",
            Self::Message => "message",
            Self::Cause => "cause",
            Self::Backtrace => "backtrace",
            Self::EventType => "event-type",
        }
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

impl fmt::Display for GroupPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text that names no part of a failure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is none of error-type, message, cause, backtrace and event-type")]
pub struct UnknownGroupPart(pub String);

impl FromStr for GroupPart {
    type Err = UnknownGroupPart;

    fn from_str(text: &str) -> Result<Self, UnknownGroupPart> {
        Self::ALL
            .into_iter()
            .find(|part| part.as_str() == text)
            .ok_or_else(|| UnknownGroupPart(text.to_owned()))
    }
}

/// The grouping rules of a consumer: which failures have the same [`Fingerprint`].
///
/// By default the type of the error, its message, its innermost cause and its top frames count. Groups that are too coarse
/// are split by one more part, the type of the event. Groups that are too fine are joined by patterns for what varies, or by
/// fewer parts. A pattern that matches nothing changes no fingerprint.
///
/// ```
/// use lazaret_core::fingerprint::{GroupPart, Grouping};
/// use lazaret_core::{Failure, Reason};
/// let failure = |message: &str| Failure::new(Reason::TIMEOUT, "ApiError", message);
/// let (acme, globex) = (failure("tenant acme has no route"), failure("tenant globex has no route"));
/// assert_ne!(acme.fingerprint, globex.fingerprint);
///
/// let joined = Grouping::default().replace("tenant ([a-z]+)".parse().unwrap());
/// assert_eq!(joined.fingerprint(&acme, None), joined.fingerprint(&globex, None));
///
/// let split = joined.with(GroupPart::EventType);
/// assert_ne!(split.fingerprint(&acme, Some("Charge")), split.fingerprint(&globex, Some("Refund")));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grouping {
    /// One bit for each part that counts.
    by: u8,
    replace: Vec<GroupPattern>,
}

impl Default for Grouping {
    fn default() -> Self {
        // All but the last.
        Self { by: GroupPart::EventType.bit() - 1, replace: Vec::new() }
    }
}

impl Grouping {
    /// The most patterns that the rules of a consumer may have.
    pub const MAX_PATTERNS: usize = 16;

    /// Rules by which these parts count, and no others.
    pub fn by(parts: impl IntoIterator<Item = GroupPart>) -> Self {
        parts.into_iter().fold(Self { by: 0, replace: Vec::new() }, Self::with)
    }

    /// The same rules, by which this part counts as well.
    #[must_use]
    pub fn with(mut self, part: GroupPart) -> Self {
        self.by |= part.bit();
        self
    }

    /// The same rules with one more pattern. Patterns are applied in the order in which they are added.
    #[must_use]
    pub fn replace(mut self, pattern: GroupPattern) -> Self {
        self.replace.push(pattern);
        self
    }

    /// Refuses rules by which nothing counts, and more than [`MAX_PATTERNS`](Self::MAX_PATTERNS) patterns.
    pub fn validate(&self) -> Result<(), PolicyError> {
        if self.by == 0 {
            return Err(PolicyError::Invalid { field: "by", why: "must name at least one part" });
        }
        if self.replace.len() > Self::MAX_PATTERNS {
            return Err(PolicyError::Invalid { field: "replace", why: "must have at most 16 patterns" });
        }
        Ok(())
    }

    /// The parts that count.
    pub fn parts(&self) -> impl Iterator<Item = GroupPart> + use<> {
        let by = self.by;
        GroupPart::ALL.into_iter().filter(move |part| by & part.bit() != 0)
    }

    /// The patterns, in their order.
    pub fn patterns(&self) -> &[GroupPattern] {
        &self.replace
    }

    pub(super) const fn counts(&self, part: GroupPart) -> bool {
        self.by & part.bit() != 0
    }

    /// A text with what the patterns match replaced. They look at the part that is normalised. A text without a match stays as
    /// it is.
    pub(super) fn replaced<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let looked_at = Cow::Borrowed(beginning(text));
        match self.replace.iter().fold(looked_at, |text, pattern| pattern.replace(text)) {
            Cow::Borrowed(_) => Cow::Borrowed(text),
            changed => changed,
        }
    }

    /// The fingerprint of a failure of an event of this type.
    pub fn fingerprint(&self, failure: &Failure, event_type: Option<&str>) -> Fingerprint {
        Fingerprint::grouped(failure, event_type, self)
    }

    /// The texts that make the fingerprint of a failure, each with the part that it comes from.
    ///
    /// ```
    /// use lazaret_core::fingerprint::{GroupPart, Grouping};
    /// use lazaret_core::{Failure, Reason};
    /// let failure = Failure::new(Reason::TIMEOUT, "ApiError", "order 17 of acme");
    /// let rules = Grouping::by([GroupPart::Message]).replace("of ([a-z]+)".parse().unwrap());
    /// assert_eq!(rules.texts(&failure, None), [(GroupPart::Message, "order # of #".to_owned())]);
    /// ```
    pub fn texts(&self, failure: &Failure, event_type: Option<&str>) -> Vec<(GroupPart, String)> {
        let mut texts = Vec::new();
        parts(failure, event_type, self, |_, part, text| texts.push((part, text.to_owned())));
        texts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{CauseLink, Reason};

    fn rules(patterns: &[&str]) -> Grouping {
        patterns.iter().fold(Grouping::default(), |rules, text| rules.replace(text.parse().unwrap()))
    }

    fn failure(message: &str) -> Failure {
        Failure::new(Reason::TIMEOUT, "ApiError", message)
    }

    #[test]
    fn what_a_pattern_matches_is_replaced() {
        let table: [(&[&str], &str, &str); 12] = [
            (&["[a-z]+@[a-z.]+"], "mail to ada@acme.example bounced", "mail to # bounced"),
            (&["tenant (\\w+)"], "tenant acme, tenant globex", "tenant #, tenant #"),
            (&["(\\w+)/(\\w+)"], "of a/b and c/d", "of #/# and #/#"),
            (&["((a)b)c"], "abc", "#c"),
            (&["(?:(a)|(b))+"], "ba", "##"),
            (&["a|(b)"], "a b", "a #"),
            (&["x*"], "axxb", "a#b"),
            (&["\\b"], "a b", "a b"),
            (&["(?i)ACME"], "Acme", "#"),
            (&["acme", "of #"], "list of acme", "list #"),
            (&["é+"], "éééx", "#x"),
            (&[], "acme", "acme"),
        ];
        for (patterns, text, expected) in table {
            assert_eq!(rules(patterns).replaced(text), expected, "{patterns:?}");
        }
    }

    #[test]
    fn a_pattern_joins_groups_and_changes_no_other() {
        let rules = rules(&["tenant (\\w+)"]);
        let of = |message: &str| rules.fingerprint(&failure(message), None);
        assert_eq!(of("tenant acme has no route"), of("tenant globex has no route"));
        assert_ne!(of("tenant acme has no route"), of("tenant acme has no rights"));
        let other = failure("card declined");
        assert_eq!(rules.fingerprint(&other, Some("Charge")), other.fingerprint);
        let long = "a long text ".repeat(500);
        let long = Failure::new(Reason::TIMEOUT, long.clone(), long);
        assert_eq!(rules.fingerprint(&long, None), long.fingerprint);
    }

    #[test]
    fn patterns_apply_to_every_text_of_a_failure() {
        let rules = rules(&["acme|globex"]);
        let of = |tenant: &str| {
            let mut failure =
                Failure::new(Reason::TIMEOUT, format!("{tenant}.Error"), format!("{tenant} down"))
                    .with_backtrace(format!("   0: shop::{tenant}::charge\n"));
            failure.chain.push(CauseLink { error_type: None, message: format!("no route to {tenant}") });
            failure
        };
        assert_eq!(rules.fingerprint(&of("acme"), None), rules.fingerprint(&of("globex"), None));
        assert_ne!(rules.fingerprint(&of("acme"), None), rules.fingerprint(&of("initech"), None));
        let texts: Vec<String> = rules.texts(&of("acme"), None).into_iter().map(|(_, text)| text).collect();
        assert_eq!(texts, ["#.Error", "# down", "no route to #", "shop::#::charge"]);
    }

    #[test]
    fn only_the_chosen_parts_count() {
        let mut one = failure("no answer").with_backtrace("   0: shop::charge\n");
        one.chain.push(CauseLink { error_type: None, message: "reset".into() });
        let mut two = Failure::new(Reason::TIMEOUT, "Other", "no reply").with_backtrace("   0: shop::pay\n");
        two.chain.push(CauseLink { error_type: None, message: "refused".into() });
        for part in GroupPart::ALL {
            let rules = Grouping::by([part]);
            let same = rules.fingerprint(&one, Some("A")) == rules.fingerprint(&two, Some("B"));
            assert!(!same, "{part}");
            let texts = rules.texts(&one, Some("A"));
            assert!(texts.len() == 1 && texts[0].0 == part, "{texts:?}");
        }
        let by_type = Grouping::by([GroupPart::EventType]);
        assert_eq!(by_type.fingerprint(&one, Some("A")), by_type.fingerprint(&two, Some("A")));
        assert_ne!(by_type.fingerprint(&one, None), by_type.fingerprint(&one, Some("")));
    }

    #[test]
    fn the_type_of_the_event_splits_a_group() {
        let failure = failure("no answer");
        let rules = Grouping::default().with(GroupPart::EventType);
        let of = |event_type| rules.fingerprint(&failure, event_type);
        assert_ne!(of(Some("Charge")), of(Some("Refund")));
        assert_eq!(of(None), failure.fingerprint, "an event without a type");
        let default = Grouping::default();
        assert_eq!(default.fingerprint(&failure, Some("Charge")), failure.fingerprint);
    }

    #[test]
    fn a_group_by_rules_is_found_again_for_ever() {
        // Stored like every other fingerprint.
        let rules = rules(&["of ([a-z]+)"]);
        let joined = rules.fingerprint(&failure("order of acme"), None);
        assert_eq!(joined, rules.fingerprint(&failure("order of globex"), None));
        assert_eq!(joined, failure("order of #").fingerprint);
        let split = rules.with(GroupPart::EventType).fingerprint(&failure("order of acme"), Some("Charge"));
        assert_eq!(split.to_string(), "g1_4aca1918d8a3863d");
    }

    #[test]
    fn rules_have_a_part_and_a_limited_number_of_patterns() {
        assert!(Grouping::default().validate().is_ok());
        assert!(Grouping::by([]).validate().is_err());
        assert!(rules(&["a"; Grouping::MAX_PATTERNS]).validate().is_ok());
        assert!(rules(&["a"; Grouping::MAX_PATTERNS + 1]).validate().is_err());
    }

    #[test]
    fn parts_are_named_as_in_the_configuration() {
        for part in GroupPart::ALL {
            assert_eq!(part.to_string().parse(), Ok(part));
        }
        let names: Vec<_> = Grouping::default().parts().map(GroupPart::as_str).collect();
        assert_eq!(names, ["error-type", "message", "cause", "backtrace"]);
        let error = "reason".parse::<GroupPart>().unwrap_err();
        assert!(error.to_string().starts_with("\"reason\" is none of"), "{error}");
    }
}
