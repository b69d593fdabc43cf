//! The routing table: dispatches a message to the handler of its route.

use std::collections::HashMap;
use std::future::ready;
use std::sync::Arc;

use super::delivery::Delivery;
use super::{BoxHandler, Handle, HandlerFuture};
use crate::failure::{HandlerError, Phase, Reason};
use crate::message::{Message, Operation};
use crate::policy::RetryPolicy;

/// The routes of a router whose handlers have their state.
#[derive(Default)]
pub(super) struct Table {
    pub(super) types: HashMap<Arc<str>, Bound>,
    pub(super) patterns: Vec<(Arc<str>, Bound)>,
    pub(super) operations: Vec<(Operation, Bound)>,
    pub(super) fallback: Option<Bound>,
    pub(super) ignores_others: bool,
}

/// A handler with its state, and the retry policy of its route.
pub(super) struct Bound {
    pub(super) handler: BoxHandler,
    pub(super) retry: Option<Arc<RetryPolicy>>,
}

impl Table {
    fn find(&self, message: &Message) -> Option<&Bound> {
        let by_type = message.event_type.as_deref().and_then(|event_type| {
            self.types
                .get(event_type)
                .or_else(|| first(&self.patterns, |pattern| matches(pattern, event_type)))
        });
        by_type
            .or_else(|| message.operation.and_then(|op| first(&self.operations, |known| *known == op)))
            .or(self.fallback.as_ref())
    }

    fn all(&self) -> impl Iterator<Item = &Bound> {
        let patterns = self.patterns.iter().map(|(_, bound)| bound);
        let operations = self.operations.iter().map(|(_, bound)| bound);
        self.types.values().chain(patterns).chain(operations).chain(&self.fallback)
    }
}

fn first<K>(routes: &[(K, Bound)], fits: impl Fn(&K) -> bool) -> Option<&Bound> {
    routes.iter().find(|(key, _)| fits(key)).map(|(_, bound)| bound)
}

impl Handle for Table {
    fn handle(&self, delivery: Delivery) -> HandlerFuture {
        match self.find(delivery.message()) {
            Some(bound) => bound.handler.handle(delivery),
            None if self.ignores_others => Box::pin(ready(Ok(()))),
            None => Box::pin(ready(Err(no_route(delivery.message())))),
        }
    }

    fn retry_policy(&self, message: &Message) -> Option<&RetryPolicy> {
        let bound = self.find(message)?;
        bound.handler.retry_policy(message).or(bound.retry.as_deref())
    }

    fn retry_policies(&self) -> Vec<&RetryPolicy> {
        self.all()
            .flat_map(|bound| bound.handler.retry_policies().into_iter().chain(bound.retry.as_deref()))
            .collect()
    }
}

fn no_route(message: &Message) -> HandlerError {
    let text = match (&message.event_type, message.operation) {
        (Some(event_type), _) => format!("no handler for the event type {event_type:?}"),
        (None, Some(operation)) => format!("no handler for the operation {operation:?}, and no event type"),
        (None, None) => "no handler for a message without an event type".to_owned(),
    };
    HandlerError::msg(text).reason(Reason::UNKNOWN_EVENT_TYPE).phase(Phase::Filter)
}

/// Matches a whole text against a pattern in which `*` stands for any characters.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(mut text) = text.strip_prefix(start) else {
        return false;
    };
    let Some((middle, end)) = rest.rsplit_once('*') else {
        return text.ends_with(rest);
    };
    // Taking the leftmost place for each part leaves the most room for those behind it.
    for part in middle.split('*') {
        let Some(at) = text.find(part) else {
            return false;
        };
        text = &text[at + part.len()..];
    }
    text.ends_with(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_characters_or_none() {
        let table = [
            ("*", "", true),
            ("*", "anything", true),
            ("Case*", "Case", true),
            ("Case*", "CaseClosed", true),
            ("Case*", "ACase", false),
            ("*Closed", "CaseClosed", true),
            ("*Closed", "CaseClosedX", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "acb", false),
            ("*ab*ab*", "ab", false),
            ("*ab*ab*", "xabab", true),
            ("a**b", "ab", true),
            ("é*ü", "é→ü", true),
            ("a?c*", "abc", false),
        ];
        for (pattern, text, expected) in table {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }
}
