//! From text to tree.
//!
//! ```text
//! query = [ any ]
//! any   = all { "or" all }                       the words or, and, not in any case
//! all   = one { [ "and" ] one }
//! one   = ( "-" | "not" ) one | "(" any ")" | term
//! term  = field ":" value { "," value } | word | quoted
//! field = name | "payload." pointer | "header." name      pointer and name may be quoted
//! value = [ operator ] ( word | quoted )         an operator before numbers and times only
//! ```
//! A word ends at white space, a bracket, a quote, and as a value at a comma. In quotes, `\"` and `\\` stand for a quote
//! and a backslash.

use std::ops::Range;

use super::ast::{Expr, Needle, Term};
use super::error::QueryError;
use super::{fields, misread, values};
use crate::policy::Operator;

/// The longest query, in bytes.
pub const LENGTH_LIMIT: usize = 4 * 1024;
/// The maximum nesting of brackets and negations.
pub const DEPTH_LIMIT: usize = 64;

/// The maximum number of terms.
pub const TERMS_LIMIT: usize = 128;
/// The maximum number of terms on payloads and headers, which are read for each letter that the others do not exclude.
pub const PAYLOAD_TERMS_LIMIT: usize = 16;

type Result<T> = std::result::Result<T, QueryError>;

/// Reads a query.
pub(super) fn parse(text: &str) -> Result<Expr> {
    let mut parser = Parser { text, at: 0, depth: 0 };
    if text.len() > LENGTH_LIMIT {
        let end = text.ceil_char_boundary(LENGTH_LIMIT)..text.len();
        let message = format!("the query is longer than {LENGTH_LIMIT} bytes");
        return parser.fail(end, message, "ask for less, or ask twice");
    }
    parser.skip_space();
    if parser.at == text.len() {
        return Ok(Expr::All(Vec::new()));
    }
    let expr = parser.any()?;
    let terms = expr.count_terms(&|_| true);
    let costly = expr.count_terms(&|term| matches!(term, Term::Payload { .. } | Term::Header { .. }));
    if terms > TERMS_LIMIT || costly > PAYLOAD_TERMS_LIMIT {
        let message = format!(
            "the query has {terms} terms, {costly} of them on payloads and headers; the limits are {TERMS_LIMIT} and {PAYLOAD_TERMS_LIMIT}"
        );
        return parser.fail(0..text.len(), message, "ask for less, or ask twice");
    }
    if parser.at < text.len() {
        // Only a closing bracket ends a list of terms early.
        let bracket = parser.at..parser.at + 1;
        return parser.fail(bracket, "this bracket closes nothing", "put text with brackets into quotes");
    }
    Ok(expr)
}

/// A value as it was written.
pub(super) struct Value {
    pub(super) text: String,
    /// `true` for a quoted value, in which `*` is a character like any other.
    pub(super) quoted: bool,
    pub(super) range: Range<usize>,
}

pub(super) struct Parser<'t> {
    text: &'t str,
    at: usize,
    depth: usize,
}

impl Parser<'_> {
    pub(super) fn fail<T>(
        &self,
        range: Range<usize>,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Result<T> {
        Err(QueryError::new(self.text, range, message.into(), Some(hint.into()).filter(|h| !h.is_empty())))
    }

    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn next(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn skip_space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    /// The end of the word that begins here.
    fn word_end(&self, stops: &[char]) -> usize {
        let end = self.rest().find(|c: char| c.is_whitespace() || stops.contains(&c));
        end.map_or(self.text.len(), |length| self.at + length)
    }

    /// The range of this keyword, if it is next.
    fn keyword(&self, keyword: &str) -> Option<Range<usize>> {
        let range = self.at..self.word_end(&['(', ')', '"']);
        self.text[range.clone()].eq_ignore_ascii_case(keyword).then_some(range)
    }

    fn any(&mut self) -> Result<Expr> {
        let mut parts = Vec::new();
        let mut or = None;
        loop {
            let all = self.all()?;
            let next = self.keyword("or");
            match (all, &or, &next) {
                (Some(all), _, _) => join(&mut parts, all, |expr| match expr {
                    Expr::Any(inner) => Ok(inner),
                    other => Err(other),
                }),
                (None, Some(or), _) => {
                    return self.fail(Range::clone(or), "nothing stands on the right of this or", QUOTE_WORD);
                }
                (None, None, Some(or)) => {
                    return self.fail(or.clone(), "nothing stands on the left of this or", QUOTE_WORD);
                }
                // The caller knows what it expected: this is a bracket that closes at once.
                (None, None, None) => return Ok(Expr::All(Vec::new())),
            }
            let Some(range) = next else { break };
            self.at = range.end;
            or = Some(range);
        }
        Ok(one_or(parts, Expr::Any))
    }

    /// The adjacent terms from here; `None` when there are none.
    fn all(&mut self) -> Result<Option<Expr>> {
        let mut parts = Vec::new();
        let mut and: Option<Range<usize>> = None;
        loop {
            self.skip_space();
            let ends = matches!(self.next(), None | Some(')')) || self.keyword("or").is_some();
            let found = self.keyword("and");
            match (&and, ends, found) {
                (Some(and), true, _) => {
                    return self.fail(and.clone(), "nothing stands on the right of this and", QUOTE_WORD);
                }
                (Some(and), _, Some(_)) => {
                    return self.fail(and.clone(), "nothing stands on the right of this and", QUOTE_WORD);
                }
                (None, true, _) => break,
                (None, false, Some(found)) if parts.is_empty() => {
                    return self.fail(found, "nothing stands on the left of this and", QUOTE_WORD);
                }
                (None, false, Some(found)) => {
                    self.at = found.end;
                    and = Some(found);
                }
                (_, false, None) => {
                    and = None;
                    let one = self.one()?;
                    join(&mut parts, one, |expr| match expr {
                        Expr::All(inner) => Ok(inner),
                        other => Err(other),
                    });
                }
            }
        }
        Ok((!parts.is_empty()).then(|| one_or(parts, Expr::All)))
    }

    fn one(&mut self) -> Result<Expr> {
        if self.next() == Some('-') {
            let minus = self.at..self.at + 1;
            self.at += 1;
            if self.next().is_none_or(|next| next.is_whitespace() || next == ')') {
                return self.fail(minus, "this - stands before nothing", "write it directly before a term");
            }
            return self.negated(minus);
        }
        if let Some(not) = self.keyword("not") {
            self.at = not.end;
            self.skip_space();
            let ends = matches!(self.next(), None | Some(')'));
            if ends || self.keyword("or").is_some() || self.keyword("and").is_some() {
                return self.fail(not, "this not stands before nothing", QUOTE_WORD);
            }
            return self.negated(not);
        }
        match self.next() {
            Some('(') => self.bracket(),
            Some('"') => {
                let value = self.quoted()?;
                self.free(&value)
            }
            _ => self.term(),
        }
    }

    fn negated(&mut self, sign: Range<usize>) -> Result<Expr> {
        self.deeper(sign)?;
        let inner = self.one()?;
        self.depth -= 1;
        Ok(Expr::Not(Box::new(inner)))
    }

    fn deeper(&mut self, place: Range<usize>) -> Result<()> {
        self.depth += 1;
        if self.depth > DEPTH_LIMIT {
            let message = format!("brackets and negations stand more than {DEPTH_LIMIT} deep in each other");
            return self.fail(place, message, "");
        }
        Ok(())
    }

    fn bracket(&mut self) -> Result<Expr> {
        let open = self.at..self.at + 1;
        self.deeper(open.clone())?;
        self.at += 1;
        let inner = self.any()?;
        if self.next() != Some(')') {
            return self.fail(open, "this bracket is never closed", "put text with brackets into quotes");
        }
        self.at += 1;
        self.depth -= 1;
        if inner == Expr::All(Vec::new()) {
            let message = "nothing stands between these brackets";
            return self.fail(open.start..self.at, message, "put text with brackets into quotes");
        }
        Ok(inner)
    }

    fn term(&mut self) -> Result<Expr> {
        let start = self.at;
        let end = self.word_end(&['(', ')', '"']);
        let word = &self.text[start..end];
        if let Some(misread) = misread::find(self.text, start..end) {
            return self.fail(misread.range, misread.message, misread.hint);
        }
        let (colon, named) = match word.find(':') {
            Some(colon) => (start + colon, None),
            None if self.text[end..].starts_with('"') && is_prefix(word) => {
                self.at = end;
                let named = self.quoted_alone()?;
                if self.next() != Some(':') {
                    return self.fail(start..self.at, "a colon and a value are missing here", "");
                }
                (self.at, Some(named.text))
            }
            None => {
                self.at = end;
                return self.word(start..end);
            }
        };
        let field = start..colon;
        self.at = colon + 1;
        let values = self.values(&field)?;
        let (Some(prefix), range) = (prefix_of(&self.text[field.clone()]), field.clone()) else {
            return self.known_field(field, values);
        };
        let name = named.unwrap_or_else(|| self.text[range.start + prefix.len()..range.end].to_owned());
        let term = match prefix {
            PAYLOAD => values::payload(self, range, name, values)?,
            _ => values::header(self, range, &name, values)?,
        };
        Ok(Expr::Term(term))
    }

    fn known_field(&self, range: Range<usize>, values: Vec<Value>) -> Result<Expr> {
        let name = &self.text[range.clone()];
        let Some(field) = fields::find(name) else {
            if name.is_empty() {
                let hint = "write field:value, or put text with a colon into quotes";
                return self.fail(range.start..range.end + 1, "a field is missing before this colon", hint);
            }
            let hint = match (fields::nearest(name), name.to_ascii_lowercase().as_str()) {
                (_, "payload") => "write payload./json/pointer:value".to_owned(),
                (_, "header" | "headers") => "write header.NAME:value".to_owned(),
                (Some(near), _) => format!("did you mean {near}?"),
                (None, _) => "put text with a colon into quotes".to_owned(),
            };
            return self.fail(range, format!("there is no field {name}"), hint);
        };
        values::term(self, field, values).map(Expr::Term)
    }

    /// A word without a colon.
    fn word(&self, range: Range<usize>) -> Result<Expr> {
        let text = &self.text[range.clone()];
        if let Some(prefix) = prefix_of(text) {
            let hint = if prefix == PAYLOAD { "payload./pointer:value" } else { "header.NAME:value" };
            return self.fail(range, "a colon and a value are missing here", format!("write {hint}"));
        }
        self.check_end()?;
        self.free(&Value { text: text.to_owned(), quoted: false, range })
    }

    fn free(&self, value: &Value) -> Result<Expr> {
        if value.text.is_empty() {
            return self.fail(value.range.clone(), "there is nothing to look for", "");
        }
        let needle: Needle = values::needle(value);
        Ok(Expr::Term(Term::Free(needle)))
    }

    /// A word must not run into a quote or a bracket: it would look like one thing and be two.
    fn check_end(&self) -> Result<()> {
        match self.next() {
            Some('"') => self.fail(
                self.at..self.at + 1,
                "a quote stands inside a word",
                "put the whole text in quotes",
            ),
            Some('(') => {
                let hint = "put text with brackets into quotes";
                self.fail(self.at..self.at + 1, "a bracket stands directly after a word", hint)
            }
            _ => Ok(()),
        }
    }

    fn values(&mut self, field: &Range<usize>) -> Result<Vec<Value>> {
        let mut values = Vec::new();
        loop {
            let value = self.value()?;
            if value.text.is_empty() && !value.quoted {
                let name = &self.text[field.clone()];
                let follows = self.rest().trim_start().starts_with(|c| c != ')');
                let hint = if follows {
                    "write it directly after the colon, in quotes if it has spaces"
                } else {
                    ""
                };
                return self.fail(value.range, format!("a value for {name} is missing here"), hint);
            }
            values.push(value);
            if self.next() != Some(',') {
                return Ok(values);
            }
            self.at += 1;
        }
    }

    fn value(&mut self) -> Result<Value> {
        if self.next() == Some('"') {
            return self.quoted();
        }
        let start = self.at;
        let end = self.word_end(&['(', ')', '"', ',']);
        let text = self.text[start..end].to_owned();
        self.at = end;
        let only_operator = Operator::split(&text).is_some_and(|(_, rest)| rest.is_empty());
        if only_operator && self.next() == Some('"') {
            let Value { text: quoted, range, .. } = self.quoted()?;
            return Ok(Value { text: text + &quoted, quoted: false, range: start..range.end });
        }
        self.check_end()?;
        Ok(Value { text, quoted: false, range: start..end })
    }

    /// A quoted text that nothing runs into.
    fn quoted(&mut self) -> Result<Value> {
        let value = self.quoted_alone()?;
        if self.next().is_some_and(|next| !next.is_whitespace() && !matches!(next, ')' | '(' | ',')) {
            let place = self.at..self.at + self.next().map_or(0, char::len_utf8);
            return self.fail(place, "a space is missing after the quote", r#"write \" for a quote inside"#);
        }
        Ok(value)
    }

    fn quoted_alone(&mut self) -> Result<Value> {
        let start = self.at;
        let mut text = String::new();
        let mut chars = self.rest().char_indices().skip(1);
        let length = loop {
            match chars.next() {
                None => return self.fail(start..start + 1, "this quote is never closed", ""),
                Some((at, '"')) => break at + 1,
                Some((at, '\\')) => match chars.next() {
                    Some((_, escaped @ ('"' | '\\'))) => text.push(escaped),
                    other => {
                        let end = other.map_or(at + 1, |(at, c)| at + c.len_utf8());
                        let hint = r#"in quotes, write \\ for a backslash and \" for a quote"#;
                        let place = start + at..start + end;
                        return self.fail(place, "a backslash stands alone", hint);
                    }
                },
                Some((_, c)) => text.push(c),
            }
        };
        self.at = start + length;
        Ok(Value { text, quoted: true, range: start..self.at })
    }
}

const QUOTE_WORD: &str = "put the word into quotes to look for it";
const PAYLOAD: &str = "payload.";
const HEADER: &str = "header.";

/// Returns the prefix of a field with a name of its own.
pub(super) fn prefix_of(word: &str) -> Option<&'static str> {
    let begins =
        |prefix: &str| word.get(..prefix.len()).is_some_and(|head| head.eq_ignore_ascii_case(prefix));
    [PAYLOAD, HEADER].into_iter().find(|prefix| begins(prefix))
}

fn is_prefix(word: &str) -> bool {
    prefix_of(word).is_some_and(|prefix| prefix.len() == word.len())
}

/// Adds a part to a list, or its parts if it is a list of the same kind.
fn join(parts: &mut Vec<Expr>, part: Expr, open: impl Fn(Expr) -> std::result::Result<Vec<Expr>, Expr>) {
    match open(part) {
        Ok(inner) => parts.extend(inner),
        Err(other) => parts.push(other),
    }
}

/// The list, or its only member.
fn one_or(mut parts: Vec<Expr>, list: impl Fn(Vec<Expr>) -> Expr) -> Expr {
    match parts.pop() {
        Some(only) if parts.is_empty() => only,
        Some(last) => {
            parts.push(last);
            list(parts)
        }
        None => Expr::All(parts),
    }
}
