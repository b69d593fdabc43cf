//! Redaction: values of headers and of JSON payloads, and secrets in texts of errors, that a server shows only to those who may see them
//! and say why.
//!
//! A redacted value is replaced by [`REDACTED`]; everything around it keeps its bytes. The rules only change copies that leave a
//! server. Stored messages, and what handlers get, are exact (I5). Texts of errors are not part of a message: they are redacted before
//! they are stored, too, if the rules say so.

mod forms;
mod texts;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::str::FromStr;

use bytes::Bytes;
use serde_json::value::RawValue;

use crate::json_walk::{Place, walk};
use crate::letter::Letter;
use crate::message::Headers;
use crate::query::Term;
pub use forms::known_tokens;
pub use texts::{TextPattern, TextRules, TextSet, UnknownTextSet};

/// The marker in place of a redacted value. In a JSON payload it is a string.
pub const REDACTED: &str = "[redacted]";
/// The marker as it is written in JSON.
const JSON_MARKER: &str = "\"[redacted]\"";

/// Which values are redacted.
///
/// ```
/// use lazaret_core::redaction::Redaction;
/// use lazaret_core::{Letter, Message, Position, QueueName, Timestamp};
/// let rules = Redaction::new(["Authorization"], ["/card/number".parse().unwrap()]);
/// let mut message = Message::new("m", "orders", Position::new(0, 0));
/// message.payload = Some(r#"{"id": 1.0, "card": {"number": "4111"}}"#.into());
/// message.headers.push("authorization", "Bearer x");
/// let mut letter = Letter::new(QueueName::of("shop", "shop"), "k".into(), message.into(), Timestamp::UNIX_EPOCH);
/// assert_eq!(rules.apply(&mut letter), ["header.authorization", "payload./card/number"]);
/// let payload = letter.message.payload.as_deref().unwrap();
/// assert_eq!(payload, br#"{"id": 1.0, "card": {"number": "[redacted]"}}"#);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Redaction {
    /// The names of headers, in lower case.
    headers: BTreeSet<String>,
    paths: Vec<PayloadPath>,
    texts: TextRules,
    /// Texts are redacted before they are stored.
    stores_redacted: bool,
}

/// A path to values of a JSON payload: a JSON pointer (RFC 6901), in which `*` stands for every name and every index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PayloadPath(Vec<Step>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Any,
    Name(String),
}

/// A text that is no path to a value of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not a JSON pointer: it must start with a slash, such as /card/number")]
pub struct InvalidPath;

impl FromStr for PayloadPath {
    type Err = InvalidPath;

    fn from_str(text: &str) -> Result<Self, InvalidPath> {
        let names = text.strip_prefix('/').ok_or(InvalidPath)?.split('/');
        let step = |name: &str| match name {
            "*" => Step::Any,
            name => Step::Name(unescape(name)),
        };
        Ok(Self(names.map(step).collect()))
    }
}

fn unescape(name: &str) -> String {
    name.replace("~1", "/").replace("~0", "~")
}

impl Step {
    fn fits(&self, name: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Name(own) => own == name,
        }
    }
}

/// A marker in a new payload for which the old one has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("[redacted] at {pointer} stands for a value that the payload does not have there")]
pub struct NoOriginal {
    /// The JSON pointer of the marker.
    pub pointer: String,
}

impl Redaction {
    /// Creates the rules from names of headers, in any case, and paths into JSON payloads.
    pub fn new(
        headers: impl IntoIterator<Item = impl AsRef<str>>,
        paths: impl IntoIterator<Item = PayloadPath>,
    ) -> Self {
        let headers = headers.into_iter().map(|name| name.as_ref().to_ascii_lowercase()).collect();
        Self { headers, paths: paths.into_iter().collect(), ..Self::default() }
    }

    /// The same rules with others for texts of errors, diagnostics and comments.
    #[must_use]
    pub fn with_texts(mut self, texts: TextRules) -> Self {
        self.texts = texts;
        self
    }

    /// The same rules, by which texts are redacted before they are stored, and not only when they are shown.
    #[must_use]
    pub const fn before_storing(mut self) -> Self {
        self.stores_redacted = true;
        self
    }

    /// The rules for texts that are shown.
    pub const fn texts(&self) -> &TextRules {
        &self.texts
    }

    /// The rules for texts that are going to be stored; without [`before_storing`](Self::before_storing) they redact nothing.
    pub fn stored_texts(&self) -> TextRules {
        if self.stores_redacted { self.texts.clone() } else { TextRules::default() }
    }

    /// Returns `true` if nothing is redacted.
    pub fn is_empty(&self) -> bool {
        self.headers.is_empty() && self.paths.is_empty() && self.texts.is_empty()
    }

    /// Returns `true` if values of payloads are redacted.
    pub fn covers_payloads(&self) -> bool {
        !self.paths.is_empty()
    }

    /// Returns `true` if the values of a header are redacted.
    pub fn covers_header(&self, name: &str) -> bool {
        self.headers.contains(&name.to_ascii_lowercase())
    }

    /// Returns `true` if a condition of a query compares a redacted value: its answer would tell the value.
    pub fn covers_term(&self, term: &Term) -> bool {
        match term {
            Term::Header { name, .. } => self.covers_header(name),
            Term::Payload { pointer, .. } => {
                let names: Vec<String> = pointer.split('/').skip(1).map(unescape).collect();
                // A value within a redacted one is redacted, too.
                self.paths.iter().any(|PayloadPath(steps)| {
                    steps.len() <= names.len() && steps.iter().zip(&names).all(|(step, name)| step.fits(name))
                })
            }
            _ => false,
        }
    }

    /// Returns `true` if a condition of a query compares a text in which something may be redacted. Such a condition has to be met by the
    /// text as it is shown: one that is met by the exact text would tell what is redacted in it.
    pub fn covers_text_term(&self, term: &Term) -> bool {
        !self.texts.is_empty() && matches!(term, Term::Error(_) | Term::Free(_))
    }

    /// Redacts a copy of a letter: its headers, its payload, and those that edits replaced; its texts of errors, its diagnostics, its
    /// context and its comments. A payload that is not JSON cannot be searched for the paths, so it is redacted whole. Returns what was
    /// redacted of the letter, in the notation of queries.
    pub fn apply(&self, letter: &mut Letter) -> Vec<String> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut message = (*letter.message).clone();
        let mut redacted = Vec::new();
        message.headers = self.redact_headers(&message.headers, &mut redacted);
        if let Some(payload) = &message.payload {
            let (shown, found) = self.redact_payload(payload);
            message.payload = Some(shown);
            redacted.extend(found);
        }
        letter.message = message.into();
        for edit in &mut letter.edits {
            edit.original = edit.original.take().map(|original| self.redact_payload(&original).0);
        }
        self.redact_context(letter, &mut redacted);
        redacted.extend(self.texts.apply_to_letter(letter));
        redacted
    }

    /// Redacts headers in the context of a letter: an adopted one has those of its dead-letter topic there, the second one of a name
    /// with a number.
    fn redact_context(&self, letter: &mut Letter, redacted: &mut Vec<String>) {
        for (name, value) in &mut letter.context {
            let header = name.split_once('#').map_or(name.as_str(), |(header, _)| header);
            if self.covers_header(header) {
                *value = REDACTED.to_owned();
                redacted.push(format!("context.{name}"));
            }
        }
    }

    fn redact_headers(&self, headers: &Headers, redacted: &mut Vec<String>) -> Headers {
        let mut shown = Headers::new();
        for (name, value) in headers.iter_nullable() {
            match value {
                Some(_) if self.covers_header(name) => {
                    redacted.push(format!("header.{name}"));
                    shown.push(name, REDACTED);
                }
                Some(value) => shown.push(name, value.clone()),
                None => shown.push_null(name),
            }
        }
        shown
    }

    /// Returns a payload as it may be shown, and what was redacted of it.
    fn redact_payload(&self, payload: &Bytes) -> (Bytes, Vec<String>) {
        if self.paths.is_empty() || payload.is_empty() {
            return (payload.clone(), Vec::new());
        }
        match self.find(payload) {
            None => (Bytes::from_static(REDACTED.as_bytes()), vec!["payload".to_owned()]),
            Some(found) => {
                let parts = found.iter().map(|value| (value.range.clone(), JSON_MARKER.as_bytes()));
                let shown = splice(payload, parts);
                (shown, found.iter().map(|value| format!("payload.{}", value.pointer)).collect())
            }
        }
    }

    /// Puts the values of the old payload in the place of the markers in a new one, so that whoever edits a redacted payload keeps
    /// what is hidden. A marker elsewhere than at a redacted path is a text like any other.
    ///
    /// # Errors
    /// When the old payload has no value at the place of a marker.
    pub fn restore(&self, new: Bytes, old: Option<&Bytes>) -> Result<Bytes, NoOriginal> {
        if self.paths.is_empty() {
            return Ok(new);
        }
        if new == REDACTED {
            return old.cloned().ok_or_else(|| NoOriginal { pointer: "/".to_owned() });
        }
        let is_marker = |value: &Found| &new[value.range.clone()] == JSON_MARKER.as_bytes();
        let markers: Vec<Found> = self.find(&new).unwrap_or_default().into_iter().filter(is_marker).collect();
        if markers.is_empty() {
            return Ok(new);
        }
        let originals = old.and_then(|old| self.find(old)).unwrap_or_default();
        let mut parts = Vec::new();
        for marker in markers {
            let original = originals.iter().find(|original| original.pointer == marker.pointer);
            let (Some(original), Some(old)) = (original, old) else {
                return Err(NoOriginal { pointer: marker.pointer });
            };
            parts.push((marker.range, &old[original.range.clone()]));
        }
        Ok(splice(&new, parts.into_iter()))
    }

    /// Finds the values at the paths of a JSON text, in order and without those within others; `None` if it is not JSON.
    fn find(&self, json: &[u8]) -> Option<Vec<Found>> {
        let found = RefCell::new(Vec::new());
        let paths: Vec<&[Step]> = self.paths.iter().map(|PayloadPath(steps)| steps.as_slice()).collect();
        let search = Search { paths, pointer: String::new(), start: json.as_ptr().addr(), found: &found };
        walk(json, search).ok()?;
        Some(found.into_inner())
    }
}

/// A value at a redacted path.
#[derive(Debug)]
struct Found {
    pointer: String,
    range: Range<usize>,
}

/// Replaces parts of a text, which are given in order.
fn splice<'p>(text: &[u8], parts: impl Iterator<Item = (Range<usize>, &'p [u8])>) -> Bytes {
    let mut result = Vec::with_capacity(text.len());
    let mut from = 0;
    for (range, part) in parts {
        result.extend_from_slice(&text[from..range.start]);
        result.extend_from_slice(part);
        from = range.end;
    }
    result.extend_from_slice(&text[from..]);
    result.into()
}

/// Looks for the values at paths below a value of a JSON text, and notes where they stand.
struct Search<'p> {
    /// The rest of each path that leads here.
    paths: Vec<&'p [Step]>,
    /// The pointer to this value.
    pointer: String,
    /// The address of the text.
    start: usize,
    found: &'p RefCell<Vec<Found>>,
}

impl<'de> Place<'de> for Search<'_> {
    /// The search in a member of this value; `None` if no path leads there.
    fn below(&self, name: &str) -> Option<Self> {
        let leading = self.paths.iter().filter_map(|steps| steps.split_first());
        let paths: Vec<&[Step]> = leading.filter(|(step, _)| step.fits(name)).map(|(_, rest)| rest).collect();
        let pointer = || format!("{}/{}", self.pointer, name.replace('~', "~0").replace('/', "~1"));
        (!paths.is_empty()).then(|| Self { paths, pointer: pointer(), start: self.start, found: self.found })
    }

    fn is_wanted(&self) -> bool {
        self.paths.iter().any(|rest| rest.is_empty())
    }

    fn found(self, value: &'de RawValue) -> serde_json::Result<()> {
        let start = value.get().as_ptr().addr() - self.start;
        self.found
            .borrow_mut()
            .push(Found { pointer: self.pointer, range: start..start + value.get().len() });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::failure::{Failure, Reason};
    use crate::letter::{AttemptKind, AttemptRecord, Edit, IMPORTED_BY};
    use crate::message::{Message, Position};
    use crate::query::Query;
    use crate::store::Comment;

    fn rules(paths: &[&str]) -> Redaction {
        Redaction::new(["Authorization"], paths.iter().map(|path| path.parse().unwrap()))
    }

    fn shown(paths: &[&str], payload: &str) -> String {
        let (shown, _) = rules(paths).redact_payload(&Bytes::from(payload.to_owned()));
        String::from_utf8(shown.to_vec()).unwrap()
    }

    #[test]
    fn only_the_values_at_the_paths_change() {
        for (paths, payload, expected) in [
            (&["/a"][..], r#"{ "a" : 1.00 , "b":2e3}"#, r#"{ "a" : "[redacted]" , "b":2e3}"#),
            (&["/a/b"], r#"{"a":{"b":{"c":[1]}}}"#, r#"{"a":{"b":"[redacted]"}}"#),
            (
                &["/*/b"],
                r#"{"a":{"b":1},"c":{"b":null}}"#,
                r#"{"a":{"b":"[redacted]"},"c":{"b":"[redacted]"}}"#,
            ),
            (
                &["/a/*/b"],
                r#"{"a":[{"b":1},{"c":2},{"b":3}]}"#,
                r#"{"a":[{"b":"[redacted]"},{"c":2},{"b":"[redacted]"}]}"#,
            ),
            (&["/a/1"], r#"{"a":[1,2]}"#, r#"{"a":[1,"[redacted]"]}"#),
            (&["/a", "/a/b"], r#"{"a":{"b":1}}"#, r#"{"a":"[redacted]"}"#),
            // Both of two members with one name, and a name that is written with an escape.
            (
                &["/a"],
                r#"{"a":1,"a":2,"\u0061":3}"#,
                r#"{"a":"[redacted]","a":"[redacted]","\u0061":"[redacted]"}"#,
            ),
            (&["/a~1b/~0"], r#"{"a/b":{"~":1}}"#, r#"{"a/b":{"~":"[redacted]"}}"#),
            (&["/none", "/a/b/c"], r#"{"a":{"b":1}}"#, r#"{"a":{"b":1}}"#),
            (&["/a"], "[1]", "[1]"),
            (&["/a"], "", ""),
        ] {
            assert_eq!(shown(paths, payload), expected, "{paths:?}");
        }
    }

    #[test]
    fn a_payload_that_cannot_be_searched_is_redacted_whole() {
        for payload in [r#"{"a":1"#, "4111 1111", "a,b", r#"{"a":1} {"a":2}"#, &"[".repeat(1000)] {
            assert_eq!(shown(&["/a"], payload), REDACTED, "{payload}");
        }
        assert_eq!(shown(&[], "4111"), "4111", "no rule is for payloads");
    }

    #[test]
    fn a_letter_is_redacted_with_its_edits_and_what_is_redacted_is_told() {
        let payload = r#"{"card":{"number":4111},"total":5}"#;
        let mut message = Message::new("m", "s", Position::new(0, 0)).with_payload(payload);
        message.headers.push("authorization", "Bearer secret");
        message.headers.push("trace", "7");
        let mut letter = Letter::new("a/b".into(), "k".into(), message.into(), Timestamp::UNIX_EPOCH);
        letter.edits.push(Edit {
            by: "ada".into(),
            at: Timestamp::UNIX_EPOCH,
            why: "typo".into(),
            original: Some(payload.into()),
        });
        let whole = letter.clone();
        let redacted = rules(&["/card/number"]).apply(&mut letter);
        assert_eq!(redacted, ["header.authorization", "payload./card/number"]);
        let hidden = Bytes::from(r#"{"card":{"number":"[redacted]"},"total":5}"#);
        assert_eq!(
            (letter.message.payload.as_ref(), letter.edits[0].original.as_ref()),
            (Some(&hidden), Some(&hidden))
        );
        let mut open = whole.clone();
        assert_eq!(Redaction::default().apply(&mut open), [] as [&str; 0]);
        assert_eq!(open, whole);
    }

    #[test]
    fn the_texts_of_a_letter_are_redacted() {
        let card = "4111 1111 1111 1111";
        let rules = Redaction::default().with_texts(TextRules::new([TextSet::CardNumbers], []));
        let message = Message::new("m", "s", Position::new(0, 0)).with_payload(card);
        let mut letter = Letter::new("a/b".into(), "k".into(), message.into(), Timestamp::UNIX_EPOCH);
        assert_eq!(rules.apply(&mut letter.clone()), [] as [&str; 0]);
        letter.cause = Some(Failure::new(Reason::DOMAIN_INVALID, "CardError", format!("bad card {card}")));
        letter.history.push(AttemptRecord {
            attempt: 1,
            kind: AttemptKind::Live,
            at: Timestamp::UNIX_EPOCH,
            took: std::time::Duration::ZERO,
            failure: letter.cause.clone(),
        });
        letter.diagnostics.insert("card".into(), card.into());
        letter.context.insert("kafka_dlt-exception-message".into(), format!("bad card {card}"));
        letter.comments.push(Comment {
            by: "ada".into(),
            at: Timestamp::UNIX_EPOCH,
            text: format!("is {card} blocked?"),
        });
        let redacted = rules.apply(&mut letter);
        let context = "context.kafka_dlt-exception-message";
        assert_eq!(redacted, ["error", "diagnostics.card", context, "comments"]);
        assert_eq!(
            letter.message.payload.as_deref(),
            Some(card.as_bytes()),
            "payloads have rules of their own"
        );
        letter.message = Message::new("m", "s", Position::new(0, 0)).into();
        assert!(!format!("{letter:?}").contains(card), "{letter:?}");
        assert!(rules.stored_texts().is_empty() && !rules.before_storing().stored_texts().is_empty());
    }

    #[test]
    fn headers_in_the_context_of_a_letter_are_redacted() {
        let message = Message::new("m", "s", Position::new(0, 0));
        let mut letter = Letter::new("a/b".into(), "k".into(), message.into(), Timestamp::UNIX_EPOCH);
        for name in ["Authorization", "authorization#2", "tenant", IMPORTED_BY] {
            letter.context.insert(name.to_owned(), "ada@example.org".to_owned());
        }
        let rules = rules(&[]).with_texts(TextRules::new([TextSet::Emails], []));
        let redacted = rules.apply(&mut letter);
        assert_eq!(redacted, ["context.Authorization", "context.authorization#2", "context.tenant"]);
        for (name, value) in &letter.context {
            assert_eq!(value == REDACTED, name != IMPORTED_BY, "{name}: {value}");
        }
    }

    #[test]
    fn a_query_on_a_redacted_value_is_recognized() {
        let rules = rules(&["/card", "/items/*/iban"]);
        let covers =
            |query: &str| Query::parse(query).unwrap().expr().any_term(&|term| rules.covers_term(term));
        for query in [
            "payload./card:x",
            "payload./card/number:4*",
            "state:dead -payload./items/0/iban:x",
            "payload./items/7/iban/x:>5",
            "header.AUTHORIZATION:*",
            "(a or header.authorization:x)",
        ] {
            assert!(covers(query), "{query}");
        }
        for query in
            ["payload./cards:x", "payload./items/0/amount:1", "header.tenant:x", "card", "payload./items:*"]
        {
            assert!(!covers(query), "{query}");
        }
    }

    #[test]
    fn an_edit_of_a_redacted_payload_keeps_what_is_hidden() {
        let rules = rules(&["/card/number", "/items/*/iban"]);
        let old =
            Bytes::from_static(br#"{"card": {"number": 4111}, "items": [{"iban": "A"}, {"iban": "B"}]}"#);
        let (shown, _) = rules.redact_payload(&old);
        assert_eq!(rules.restore(shown.clone(), Some(&old)), Ok(old.clone()));
        let changed = String::from_utf8(shown.to_vec())
            .unwrap()
            .replace("\"card\"", "\"note\": \"[redacted]\", \"card\"");
        let restored = rules.restore(changed.into(), Some(&old)).unwrap();
        assert!(restored.starts_with(br#"{"note": "[redacted]", "card": {"number": 4111}"#), "{restored:?}");
        let own = Bytes::from_static(br#"{"card": {"number": 5}}"#);
        assert_eq!(rules.restore(own.clone(), Some(&old)), Ok(own), "the editor's own value");
        let moved = Bytes::from_static(br#"{"items": [{}, {}, {"iban": "[redacted]"}]}"#);
        assert_eq!(rules.restore(moved, Some(&old)).unwrap_err().pointer, "/items/2/iban");
        let binary = Bytes::from_static(b"\xff\x00");
        let (hidden, _) = rules.redact_payload(&binary);
        assert_eq!(rules.restore(hidden, Some(&binary)), Ok(binary));
    }

    #[test]
    fn a_path_is_a_pointer() {
        for wrong in ["", "card", "$.card", "card/number"] {
            assert_eq!(wrong.parse::<PayloadPath>(), Err(InvalidPath), "{wrong}");
        }
    }
}
