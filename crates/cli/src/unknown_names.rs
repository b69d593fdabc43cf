//! Explains why a query matches nothing: a consumer or queue that does not exist, or a word that is searched as text.

use std::collections::BTreeSet;

use lazaret_api::{State, Status};
use lazaret_core::query::{Expr, Needle, Query, Term, Text, TextField};

use crate::client::Client;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::hints::query_value;

/// The most names that a hint lists.
const MAX_LISTED: usize = 8;

/// Explains an empty result: prints which words were probably meant as a state or a consumer.
///
/// # Errors
/// When the query needs a consumer or queue that does not exist.
pub(crate) async fn explain_empty(context: &Context, client: &Client, query: &str) -> Result<()> {
    let Ok(query) = Query::parse(query) else { return Ok(()) };
    let (wanted, words) = (wanted_names(query.expr()), searched_words(query.expr()));
    if wanted.is_empty() && words.is_empty() {
        return Ok(());
    }
    // A token that may act need not be able to read the status.
    let Ok(status) = client.status().await else { return Ok(()) };
    let known = Known::of(&status);
    for any in &wanted {
        known.check_any(any)?;
    }
    for word in words {
        if let Some(term) = known.meant(&word) {
            context.screen.info(&format!("{word} is searched in errors and ids; did you mean {term}?"));
        }
    }
    Ok(())
}

/// Checks that a consumer exists.
///
/// # Errors
/// When it does not, or the status cannot be fetched.
pub(crate) async fn check_consumer(client: &Client, name: &str) -> Result<()> {
    let known = Known::of(&client.status().await?);
    known.check_any(&[(TextField::Consumer, name.to_owned())])
}

/// Checks that a queue exists.
///
/// # Errors
/// When it does not, or the status cannot be fetched.
pub(crate) async fn check_queue(client: &Client, name: &str) -> Result<()> {
    let known = Known::of(&client.status().await?);
    known.check_any(&[(TextField::Queue, name.to_owned())])
}

/// Returns the names of consumers and queues of which each list must have a match. Lists with patterns are left out.
fn wanted_names(expr: &Expr) -> Vec<Vec<(TextField, String)>> {
    let exact = |field: TextField, any: &[Text]| -> Option<Vec<(TextField, String)>> {
        let name = |text: &Text| match text {
            Text::Exact(name) => Some((field, name.clone())),
            Text::Glob(_) => None,
        };
        any.iter().map(name).collect()
    };
    let names = expr.required().filter_map(|term| match term {
        Term::Text(field @ (TextField::Queue | TextField::Consumer), any) => exact(*field, any),
        _ => None,
    });
    names.collect()
}

/// Returns the words without a field that must be found.
fn searched_words(expr: &Expr) -> Vec<String> {
    let words = expr.required().filter_map(|term| match term {
        Term::Free(Needle::Within(word)) => Some(word.clone()),
        _ => None,
    });
    words.collect()
}

/// The consumers and queues of the daemon, of its store, and of the instances that share it.
struct Known {
    consumers: BTreeSet<String>,
    queues: BTreeSet<String>,
}

impl Known {
    fn of(status: &Status) -> Self {
        let own = status.consumers.iter().map(|consumer| consumer.name.clone());
        let shared = status.instances.iter().flat_map(|instance| instance.consumers.iter().cloned());
        let queues = status.consumers.iter().flat_map(|consumer| &consumer.queues);
        Self {
            consumers: own.chain(shared).collect(),
            queues: queues.map(|queue| queue.queue.clone()).collect(),
        }
    }

    /// Requires that one of the names exists. The queues of a consumer that runs elsewhere are not known.
    fn check_any(&self, any: &[(TextField, String)]) -> Result<()> {
        let exists = |(field, name): &(TextField, String)| match (field, name.split_once('/')) {
            (TextField::Queue, Some((consumer, _))) => {
                let prefix = format!("{consumer}/");
                let is_listed = self.queues.iter().any(|queue| queue.starts_with(&prefix));
                self.queues.contains(name) || (!is_listed && self.consumers.contains(consumer))
            }
            _ => self.consumers.contains(name),
        };
        let Some((field, name)) = any.first().filter(|_| !any.iter().any(exists)) else { return Ok(()) };
        let (what, known) = match (field, name.contains('/')) {
            (TextField::Queue, true) => ("queue", &self.queues),
            (TextField::Queue, false) => ("consumer or queue", &self.consumers),
            _ => ("consumer", &self.consumers),
        };
        Err(Error::not_found_hint(format!("there is no {what} {name}"), list(known)))
    }

    /// Returns the term that a word was probably meant as.
    fn meant(&self, word: &str) -> Option<String> {
        if State::ALL.iter().any(|state| state.as_str() == word) {
            return Some(format!("state:{word}"));
        }
        let name = self.consumers.iter().chain(&self.queues).find(|name| name.eq_ignore_ascii_case(word))?;
        Some(format!("queue:{}", query_value(name)))
    }
}

fn list(known: &BTreeSet<String>) -> String {
    if known.is_empty() {
        return "there are none yet: see `lazaret status`".to_owned();
    }
    let shown: Vec<&str> = known.iter().take(MAX_LISTED).map(String::as_str).collect();
    let more = known.len() - shown.len();
    let more = if more > 0 { format!(" and {more} more: see `lazaret status`") } else { String::new() };
    let are = if known.len() == 1 { "there is only" } else { "there are" };
    format!("{are} {}{more}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Known {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Known { consumers: set(&["orders", "mail", "far"]), queues: set(&["orders/orders", "mail/smtp"]) }
    }

    fn checked(query: &str) -> std::result::Result<(), String> {
        let query = Query::parse(query).unwrap();
        let known = known();
        wanted_names(query.expr())
            .iter()
            .try_for_each(|any| known.check_any(any))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn names_that_no_consumer_or_queue_has_are_told() {
        for known in [
            "",
            "queue:orders",
            "queue:orders/orders",
            "queue:nope,mail",
            "consumer:mail",
            "queue:no*",
            "-queue:nope",
            "queue:nope or x",
            // The queues of a consumer that runs elsewhere are not listed.
            "queue:far/any",
        ] {
            assert_eq!(checked(known), Ok(()), "{known}");
        }
        let told = |query: &str| checked(query).unwrap_err();
        assert_eq!(told("queue:nope state:dead"), "there is no consumer or queue nope");
        assert_eq!(told("queue:mail/http"), "there is no queue mail/http");
        assert_eq!(told("consumer:nope"), "there is no consumer nope");
    }

    #[test]
    fn a_word_that_names_a_state_or_a_consumer_was_probably_meant_as_one() {
        assert_eq!(known().meant("dead").as_deref(), Some("state:dead"));
        assert_eq!(known().meant("orders").as_deref(), Some("queue:orders"));
        assert_eq!(known().meant("mail/smtp").as_deref(), Some("queue:mail/smtp"));
        assert_eq!(known().meant("reset"), None);
    }

    #[test]
    fn a_long_list_of_names_is_cut() {
        let many: BTreeSet<String> = (0..20).map(|n| format!("c{n:02}")).collect();
        assert!(list(&many).ends_with("c07 and 12 more: see `lazaret status`"), "{}", list(&many));
    }
}
