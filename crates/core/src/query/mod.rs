//! The query language: one parser for the console, the command line, the API and alerts.
//!
//! ```text
//! queue:payments state:dead type:Charge* reason:TIMEOUT error:"connection reset" age:>1h attempts:>=3
//! seq:order-7 group:g1_4f1c payload./customer/id:42 header.tenant:acme (a or b) -x
//! ```
//!
//! Terms side by side all have to hold; `or` binds less than that; `-` or `not` negates what follows; brackets group.
//! See `docs/query.md`. A query is a pure condition: [`Query::matches`] decides, and a store that can answer
//! parts of it faster compiles [`Query::expr`].

mod ast;
mod content;
mod error;
mod fields;
mod matching;
mod misread;
mod number;
mod parse;
mod payload;
mod values;
mod widen;
mod write;

use std::cell::OnceCell;
use std::fmt;

use jiff::Timestamp;

pub use ast::{
    CountField, Expr, GroupPattern, Moment, Needle, NumberBound, PayloadValue, Term, Text, TextField,
    TimeBound, TimeField, lower,
};
pub use error::QueryError;
pub use number::{Decimal, InvalidDecimal};
pub use parse::{DEPTH_LIMIT, LENGTH_LIMIT, PAYLOAD_TERMS_LIMIT, TERMS_LIMIT};

use payload::PayloadValues;

use crate::letter::{Letter, LetterState};
use crate::message::QueueName;

/// A search condition on letters.
///
/// Two queries are equal when they ask for the same in the same order, however they are written. Displayed, a query
/// stands in its plain form; [`text`](Self::text) is what was written. The plain form reads back as the same query, unless quotes and
/// brackets make it longer than [`LENGTH_LIMIT`]: keep the text, not the plain form.
///
/// ```
/// use lazaret_core::query::Query;
/// let query = Query::parse("reason:timeout  (age:>90s OR not owner:*)").unwrap();
/// assert_eq!(query.to_string(), "reason:TIMEOUT (age:>1m30s or -owner:*)");
/// assert_eq!(Query::parse(&query.to_string()).unwrap(), query);
/// assert!(Query::parse("").unwrap().is_everything());
/// ```
#[derive(Clone, Debug)]
pub struct Query {
    text: String,
    expr: Expr,
    names_state: bool,
}

impl PartialEq for Query {
    fn eq(&self, other: &Self) -> bool {
        self.expr == other.expr
    }
}

impl Eq for Query {}

impl fmt::Display for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.expr.fmt(f)
    }
}

impl Query {
    /// Reads a query.
    pub fn parse(text: &str) -> Result<Self, QueryError> {
        let expr = parse::parse(text)?;
        let names_state = expr.any_term(&|term| matches!(term, Term::State(_)));
        Ok(Self { text: text.to_owned(), expr, names_state })
    }

    /// The query with one more condition: the letter belongs to one of these consumers. [`text`](Self::text) stays what was
    /// written.
    ///
    /// ```
    /// use lazaret_core::query::Query;
    /// let query = Query::parse("reason:TIMEOUT or age:>1h").unwrap().of_consumers(["orders"]);
    /// assert_eq!(query.to_string(), "consumer:orders (reason:TIMEOUT or age:>1h)");
    /// ```
    #[must_use]
    pub fn of_consumers<N: Into<String>>(mut self, consumers: impl IntoIterator<Item = N>) -> Self {
        let names = consumers.into_iter().map(|name| Text::Exact(name.into())).collect();
        let mut all = vec![Expr::Term(Term::Text(TextField::Consumer, names))];
        match self.expr {
            Expr::All(parts) => all.extend(parts),
            other => all.push(other),
        }
        self.expr = if all.len() == 1 { all.remove(0) } else { Expr::All(all) };
        self
    }

    /// The query that every open letter matches.
    pub const fn everything() -> Self {
        Self { text: String::new(), expr: Expr::All(Vec::new()), names_state: false }
    }

    /// Returns `true` for the empty query, which matches every open letter.
    pub fn is_everything(&self) -> bool {
        self.expr == Expr::All(Vec::new())
    }

    /// The query as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The query as a tree. It does not restrict the state of a letter where none is [named](Self::names_state).
    pub const fn expr(&self) -> &Expr {
        &self.expr
    }

    /// Returns whether the query names a state. One that names none matches open letters.
    pub const fn names_state(&self) -> bool {
        self.names_state
    }

    /// Returns whether only open letters can match.
    pub fn is_about_open(&self) -> bool {
        let open_states =
            |term: &Term| matches!(term, Term::State(states) if states.iter().all(|state| state.is_open()));
        !self.names_state || self.expr.required().any(open_states)
    }

    /// Returns whether the query reads key, headers or payload of the message.
    pub fn needs_payload(&self) -> bool {
        self.expr.any_term(&|term| {
            matches!(term, Term::Payload { .. } | Term::Header { .. } | Term::Text(TextField::Key, _))
        })
    }

    /// Returns whether a store may have to examine many letters for the answer. It need not if the query asks for no more than queue,
    /// consumer and state, for which there are indexes and counts, or if it names letters by their ids.
    ///
    /// ```
    /// use lazaret_core::query::Query;
    /// let needs_scan = |text: &str| Query::parse(text).unwrap().needs_scan();
    /// assert!(needs_scan("type:x") && needs_scan("payload./a:1 state:dead") && needs_scan("-id:a"));
    /// assert!(!needs_scan("") && !needs_scan("consumer:orders state:dead") && !needs_scan("id:a type:x"));
    /// ```
    pub fn needs_scan(&self) -> bool {
        let is_exact = |text: &Text| matches!(text, Text::Exact(_));
        let names_letters =
            |term: &Term| matches!(term, Term::Text(TextField::Id, ids) if ids.iter().all(is_exact));
        self.expr.any_term(&Term::asks_more_than_counts) && !self.expr.required().any(names_letters)
    }

    /// Returns whether a letter matches. A query that names no state matches open letters only.
    pub fn matches(&self, letter: &Letter, now: Timestamp) -> bool {
        // A payload is parsed once, and only if the answer depends on it.
        let payload = OnceCell::new();
        let values = || payload.get_or_init(|| PayloadValues::of(&self.expr, letter));
        let holds = |term: &Term| match term {
            Term::Payload { pointer, any } => values().matches(pointer, any),
            term => term.matches(letter, now),
        };
        (self.names_state || letter.state.is_open()) && self.expr.evaluate(&holds)
    }

    /// Returns whether all letters of a queue in a state match, for callers that have counts. `None` when the query needs more than
    /// queue, consumer and state.
    ///
    /// ```
    /// use lazaret_core::query::Query;
    /// use lazaret_core::{LetterState, QueueName};
    /// let (queue, query) = (QueueName::of("a", "b"), Query::parse("queue:a -state:dead").unwrap());
    /// assert_eq!(query.matches_all_of(&queue, LetterState::Dead), Some(false));
    /// assert_eq!(query.matches_all_of(&queue, LetterState::Resolved), Some(true));
    /// assert_eq!(Query::parse("type:x").unwrap().matches_all_of(&queue, LetterState::Dead), None);
    /// ```
    pub fn matches_all_of(&self, queue: &QueueName, state: LetterState) -> Option<bool> {
        if self.expr.any_term(&Term::asks_more_than_counts) {
            return None;
        }
        let holds = |term: &Term| match term {
            Term::State(states) => states.contains(&state),
            term => term.matches_queue(queue).unwrap_or(false),
        };
        Some((self.names_state || state.is_open()) && self.expr.evaluate(&holds))
    }
}

impl Term {
    /// Returns whether the term needs more than queue, consumer and state.
    fn asks_more_than_counts(&self) -> bool {
        !matches!(self, Self::State(_) | Self::Text(TextField::Queue | TextField::Consumer, _))
    }

    /// Returns whether the letters of a queue match this term; `None` when it needs something else.
    pub fn matches_queue(&self, queue: &QueueName) -> Option<bool> {
        let fits = |any: &[Text], name: &str| any.iter().any(|text| text.matches(name));
        match self {
            Self::Text(TextField::Queue, any) => {
                Some(fits(any, queue.as_str()) || fits(any, queue.consumer()))
            }
            Self::Text(TextField::Consumer, any) => Some(fits(any, queue.consumer())),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
