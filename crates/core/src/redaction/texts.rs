//! Redaction of texts by patterns: messages, causes and traces of errors, diagnostics and comments.
//!
//! Nobody knows where in such a text a secret stands, so it is recognized by its form. What is recognized is replaced by
//! [`REDACTED`]; the fingerprint of a failure stays that of the exact text.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

use super::REDACTED;
use super::forms::{card_numbers, digit, emails, ibans, joins_groups, matches, tokens};
use crate::failure::{BACKTRACE_LIMIT, Failure, MESSAGE_LIMIT};
use crate::fingerprint::{GroupPattern, InvalidGroupPattern};
use crate::letter::{CONTEXT_VALUE_LIMIT, Diagnostics, IMPORTED_AT, IMPORTED_BY, Letter};
use crate::message::Message;

/// The most bytes that are redacted where a text was cut.
const EDGE: usize = 64;

/// A ready-made set of patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum TextSet {
    /// Numbers of payment cards: 13 to 19 digits with a valid check digit, also in groups with up to two spaces, a hyphen or a dot between
    /// them.
    CardNumbers,
    /// E-mail addresses, also with an encoded `@` (`%40`, `\u0040`). Neither `git@github.com` nor objects such as `Foo@7a81197d.bar`.
    Emails,
    /// Credentials with a known form: JSON web tokens, bearer tokens, `Basic` credentials, passwords in URLs and in pairs such as
    /// `password=…`, `Authorization` and `Cookie` headers, private keys, and keys of AWS, GitHub, GitLab, Google, npm, SendGrid, Slack,
    /// Stripe and Lazaret.
    Tokens,
    /// International bank account numbers, with valid check digits.
    Ibans,
}

impl TextSet {
    /// All sets.
    pub const ALL: [Self; 4] = [Self::CardNumbers, Self::Emails, Self::Tokens, Self::Ibans];

    /// The name in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::CardNumbers => "card-numbers",
            Self::Emails => "emails",
            Self::Tokens => "tokens",
            Self::Ibans => "ibans",
        }
    }

    fn find(self, text: &str, found: &mut Vec<Range<usize>>) {
        match self {
            Self::CardNumbers => card_numbers(text, found),
            Self::Emails => emails(text, found),
            Self::Tokens => tokens(text, found),
            Self::Ibans => ibans(text, found),
        }
    }
}

impl fmt::Display for TextSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text that names no set of patterns.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is none of card-numbers, emails, tokens and ibans")]
pub struct UnknownTextSet(pub String);

impl FromStr for TextSet {
    type Err = UnknownTextSet;

    fn from_str(text: &str) -> Result<Self, UnknownTextSet> {
        Self::ALL.into_iter().find(|set| set.as_str() == text).ok_or_else(|| UnknownTextSet(text.to_owned()))
    }
}

/// A regular expression for a secret in a text. If it has capture groups and one of them matches, only what they match is redacted.
///
/// It takes linear time, and its size is limited, like that of a [`GroupPattern`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextPattern(GroupPattern);

impl FromStr for TextPattern {
    type Err = InvalidGroupPattern;

    fn from_str(text: &str) -> Result<Self, InvalidGroupPattern> {
        text.parse().map(Self)
    }
}

/// Which parts of texts are redacted.
///
/// ```
/// use lazaret_core::redaction::{TextRules, TextSet};
/// let rules = TextRules::new([TextSet::CardNumbers], ["(?i)iban ([a-z0-9]+)".parse().unwrap()]);
/// assert_eq!(rules.redact("bad card 4111 1111 1111 1111"), "bad card [redacted]");
/// assert_eq!(rules.redact("order 4111 1111 1111 1112"), "order 4111 1111 1111 1112", "no card");
/// assert_eq!(rules.redact("IBAN DE123 of ada@example.org"), "IBAN [redacted] of ada@example.org");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextRules {
    sets: BTreeSet<TextSet>,
    patterns: Vec<TextPattern>,
}

impl TextRules {
    /// Creates the rules from ready-made sets and patterns.
    pub fn new(
        sets: impl IntoIterator<Item = TextSet>,
        patterns: impl IntoIterator<Item = TextPattern>,
    ) -> Self {
        Self { sets: sets.into_iter().collect(), patterns: patterns.into_iter().collect() }
    }

    /// Returns `true` if nothing is redacted.
    pub fn is_empty(&self) -> bool {
        self.sets.is_empty() && self.patterns.is_empty()
    }

    /// Returns a text as it may be shown.
    pub fn redact<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let found = self.find(text);
        if found.is_empty() { Cow::Borrowed(text) } else { Cow::Owned(without(text, found)) }
    }

    /// Redacts a text in its place. Returns `true` if something was.
    pub fn apply(&self, text: &mut String) -> bool {
        let found = self.find(text);
        if found.is_empty() {
            return false;
        }
        *text = without(text, found);
        true
    }

    /// Redacts a text that may have been cut to this many bytes: what stands where it was cut may be a part of a secret that is not
    /// recognized, and is redacted as well. Returns `true` if something was redacted.
    pub fn apply_to_cut(&self, text: &mut String, limit: usize) -> bool {
        if self.is_empty() {
            return false;
        }
        let mut found = self.find(text);
        // A cut at a character boundary leaves out up to three bytes more.
        if text.len() + 3 >= limit {
            // Of some texts the end is kept, and of an excerpt the beginning and the last line.
            let end = text.rfind('\n').unwrap_or_default();
            found.extend([0..first_word(text), last_word(&text[..end])..end, last_word(text)..text.len()]);
        }
        found.retain(|range| !range.is_empty());
        if found.is_empty() {
            return false;
        }
        *text = without(text, found);
        true
    }

    /// Redacts the texts of a failure. Its fingerprint stays. Returns `true` if something was redacted.
    pub fn apply_to_failure(&self, failure: &mut Failure) -> bool {
        if self.is_empty() {
            return false;
        }
        let mut redacted = self.apply(&mut failure.error_type);
        redacted |= self.apply_to_cut(&mut failure.message, MESSAGE_LIMIT);
        for link in &mut failure.chain {
            redacted |= self.apply_to_cut(&mut link.message, MESSAGE_LIMIT);
            redacted |= link.error_type.as_mut().is_some_and(|text| self.apply(text));
        }
        redacted | failure.backtrace.as_mut().is_some_and(|text| self.apply_to_cut(text, BACKTRACE_LIMIT))
    }

    /// Redacts why a message could not be decoded: a decoder may quote what it could not read. Returns `true` if something was redacted.
    pub fn apply_to_message(&self, message: &mut Arc<Message>) -> bool {
        let Some(Cow::Owned(why)) = message.undecodable.as_deref().map(|why| self.redact(why)) else {
            return false;
        };
        *message = Message { undecodable: Some(why.into()), ..(**message).clone() }.into();
        true
    }

    /// Redacts the texts of a letter: why its message could not be decoded, those of its failures, its diagnostics, its context and its
    /// comments. Returns what was redacted.
    pub fn apply_to_letter(&self, letter: &mut Letter) -> Vec<String> {
        if self.is_empty() {
            return Vec::new();
        }
        let failures = letter.history.iter_mut().filter_map(|attempt| attempt.failure.as_mut());
        let mut in_error = self.apply_to_message(&mut letter.message);
        for failure in letter.cause.iter_mut().chain(failures) {
            in_error |= self.apply_to_failure(failure);
        }
        let mut redacted: Vec<String> = in_error.then(|| "error".to_owned()).into_iter().collect();
        let diagnostics = self.apply_to_diagnostics(&mut letter.diagnostics);
        redacted.extend(diagnostics.into_iter().map(|name| format!("diagnostics.{name}")));
        let context = self.apply_to_context(&mut letter.context);
        redacted.extend(context.into_iter().map(|name| format!("context.{name}")));
        let mut in_comment = false;
        for comment in &mut letter.comments {
            in_comment |= self.apply(&mut comment.text);
        }
        redacted.extend(in_comment.then(|| "comments".to_owned()));
        redacted
    }

    /// Redacts diagnostics, their names as well as their values. Returns the names of those in which something was redacted, as they are
    /// shown: names that become the same have a number at the end.
    pub fn apply_to_diagnostics(&self, diagnostics: &mut Diagnostics) -> Vec<String> {
        let mut redacted = BTreeSet::new();
        let secret: Vec<String> =
            diagnostics.keys().filter(|name| !self.find(name).is_empty()).cloned().collect();
        for mut name in secret {
            let Some(value) = diagnostics.remove(&name) else { continue };
            self.apply(&mut name);
            let shown = unused_name(diagnostics, name);
            diagnostics.insert(shown.clone(), value);
            redacted.insert(shown);
        }
        for (name, text) in diagnostics {
            if self.apply(text) {
                redacted.insert(name.clone());
            }
        }
        redacted.into_iter().collect()
    }

    /// Redacts the context of a letter: what another framework wrote about a failure is there, such as the message of an exception. Who
    /// imported the letter, and when, stays. Returns the names of the entries in which something was redacted.
    pub fn apply_to_context(&self, context: &mut Diagnostics) -> Vec<String> {
        let entries =
            context.iter_mut().filter(|(name, _)| !matches!(name.as_str(), IMPORTED_BY | IMPORTED_AT));
        let redacted = entries
            .filter_map(|(name, text)| self.apply_to_cut(text, CONTEXT_VALUE_LIMIT).then(|| name.clone()));
        redacted.collect()
    }

    /// The secrets in a text.
    fn find(&self, text: &str) -> Vec<Range<usize>> {
        let mut found = Vec::new();
        self.sets.iter().for_each(|set| set.find(text, &mut found));
        self.patterns.iter().for_each(|TextPattern(pattern)| matches(pattern.regex(), text, &mut found));
        found
    }
}

/// Returns a name with a number at its end if it is taken.
fn unused_name(taken: &Diagnostics, name: String) -> String {
    if !taken.contains_key(&name) {
        return name;
    }
    let mut numbered = (2..=taken.len() + 2).map(|number| format!("{name}#{number}"));
    numbered.find(|name| !taken.contains_key(name)).unwrap_or_default()
}

/// Replaces parts of a text by the marker, those that overlap by one.
fn without(text: &str, mut parts: Vec<Range<usize>>) -> String {
    parts.sort_unstable_by_key(|part| (part.start, part.end));
    let mut result = String::with_capacity(text.len());
    let mut parts = parts.into_iter().peekable();
    let mut from = 0;
    while let Some(mut part) = parts.next() {
        while let Some(next) = parts.next_if(|next| next.start <= part.end) {
            part.end = part.end.max(next.end);
        }
        result.push_str(&text[from..part.start]);
        result.push_str(REDACTED);
        from = part.end;
    }
    result.push_str(&text[from..]);
    result
}

/// Where the last word of a text begins, or the last part of a long one. Groups of digits with a space between them are one word.
fn last_word(text: &str) -> usize {
    let from = text.ceil_char_boundary(text.len().saturating_sub(EDGE));
    let places = text[from..].char_indices().rev().map(|(at, found)| (from + at, found));
    let is_end = |(at, found): &(usize, char)| found.is_whitespace() && !joins_digits(text, *at, *found);
    let mut words = places.filter(is_end).map(|(at, found)| at + found.len_utf8());
    words.next().unwrap_or(from)
}

/// Where the first word of a text ends, or the first part of a long one.
fn first_word(text: &str) -> usize {
    let most = text.floor_char_boundary(EDGE);
    let mut places = text[..most].char_indices();
    let is_end = |(at, found): &(usize, char)| found.is_whitespace() && !joins_digits(text, *at, *found);
    places.find(is_end).map_or(most, |(at, _)| at)
}

/// Returns `true` for a character that joins two groups of digits.
fn joins_digits(text: &str, at: usize, found: char) -> bool {
    joins_groups(found)
        && text[..at].chars().next_back().is_some_and(|c| digit(c).is_some())
        && text[at + found.len_utf8()..].chars().next().is_some_and(|c| digit(c).is_some())
}

#[cfg(test)]
mod tests {
    use super::super::forms::MATCHES;
    use super::*;
    use crate::failure::{CauseLink, Reason};

    #[test]
    fn patterns_of_users_redact_their_groups_or_all_of_a_match() {
        let rules = TextRules::new([], ["tenant ([a-z]+)".parse().unwrap(), "x+(y)?".parse().unwrap()]);
        assert_eq!(rules.redact("tenant acme"), "tenant [redacted]");
        assert_eq!(rules.redact("axxb"), "a[redacted]b", "no group matched");
        assert_eq!(rules.redact("tenant xxyz"), "tenant [redacted]", "overlapping parts are one");
        assert_eq!(rules.redact("none"), "none");
        assert!("(".parse::<TextPattern>().is_err() && "".parse::<TextPattern>().is_err());
        let digits = TextRules::new([], ["[0-9]".parse().unwrap()]);
        let many = digits.redact(&"1 ".repeat(2 * MATCHES)).into_owned();
        assert!(!many.contains('1'), "{many}");
    }

    #[test]
    fn a_failure_keeps_its_fingerprint() {
        let card = "4111 1111 1111 1111";
        let mut failure = Failure::new(Reason::DOMAIN_INVALID, "CardError", format!("bad card {card}"));
        failure.chain.push(CauseLink { error_type: None, message: format!("declined: {card}") });
        failure = failure.with_backtrace(format!("at charge({card})"));
        let exact = failure.clone();
        let rules = TextRules::new([TextSet::CardNumbers], []);
        assert!(rules.apply_to_failure(&mut failure));
        assert!(!format!("{failure:?}").contains(card), "{failure:?}");
        assert_eq!(
            (failure.fingerprint, failure.message.as_str()),
            (exact.fingerprint, "bad card [redacted]")
        );
        let again = failure.clone();
        assert!(!rules.apply_to_failure(&mut failure));
        assert_eq!(failure, again);
    }

    #[test]
    fn names_of_diagnostics_are_redacted_like_values() {
        let rules = TextRules::new([TextSet::CardNumbers, TextSet::Emails], []);
        let entries = [
            ("card-4111111111111111", "a"),
            ("card-5555555555554444", "ada@example.org"),
            ("gateway", "eu"),
            ("user", "ada@example.org"),
        ];
        let mut diagnostics: Diagnostics =
            entries.into_iter().map(|(name, text)| (name.to_owned(), text.to_owned())).collect();
        let redacted = rules.apply_to_diagnostics(&mut diagnostics);
        assert_eq!(redacted, ["card-[redacted]", "card-[redacted]#2", "user"]);
        let shown: Vec<(&str, &str)> =
            diagnostics.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        let expected = [
            ("card-[redacted]", "a"),
            ("card-[redacted]#2", REDACTED),
            ("gateway", "eu"),
            ("user", REDACTED),
        ];
        assert_eq!(shown, expected, "no value is lost");
        assert!(rules.apply_to_diagnostics(&mut diagnostics).is_empty(), "once");
    }

    #[test]
    fn a_secret_that_a_limit_cuts_is_redacted_too() {
        let rules = TextRules::new([TextSet::CardNumbers], []);
        let cut = |text: &str, limit| {
            let mut text = text.to_owned();
            rules.apply_to_cut(&mut text, limit);
            text
        };
        assert_eq!(
            cut("1111 declined: bad card 4111 1111 11", 36),
            "[redacted] declined: bad card [redacted]"
        );
        assert_eq!(
            cut("1111 declined: bad card 4111 1111 11", 40),
            "1111 declined: bad card 4111 1111 11",
            "not cut"
        );
        assert_eq!(cut("a 41\nlast line", 14), "[redacted] [redacted]\nlast [redacted]");
        let spaced = "bad card 4111\u{a0}1111\u{a0}11";
        assert_eq!(cut(spaced, spaced.len()), "[redacted] card [redacted]");
        let long = format!("{} {}", "x".repeat(100), "é".repeat(100));
        let kept = format!("{} {}", "x".repeat(100 - EDGE), "é".repeat(100 - EDGE / 2));
        assert_eq!(cut(&long, long.len()), format!("{REDACTED}{kept}{REDACTED}"));
        assert_eq!(cut("", 0), "");
    }
}
