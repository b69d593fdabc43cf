//! Finds what blocks a running operation: pauses, stopped consumers, open circuit breakers.

use std::collections::HashSet;

use lazaret_api::{
    Breaker, Consumer, ConsumerState, Item, Operation, OperationState, Pause, PauseScope, Status,
};

use crate::client::Client;
use crate::hints::resume_command;

/// The page size of an operation's letters, and the most that are inspected (I7).
const PAGE_SIZE: usize = 500;
const MAX_INSPECTED: usize = 2000;

/// A condition that keeps an operation from making progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blocker {
    /// Describes the condition.
    pub(crate) why: String,
    /// The command that removes the condition, if there is one.
    pub(crate) resolve_with: Option<String>,
}

/// Returns the blockers of this operation. Returns none when the status cannot be fetched: this is a hint, and the next request
/// reports the error.
pub(crate) async fn blockers(client: &Client, operation: &Operation) -> Vec<Blocker> {
    if operation.state != OperationState::Running {
        return Vec::new();
    }
    match client.status().await {
        Ok(status) => blockers_in(client, &status, operation).await,
        Err(_) => Vec::new(),
    }
}

/// Returns the blockers of this operation, given the status.
pub(crate) async fn blockers_in(client: &Client, status: &Status, operation: &Operation) -> Vec<Blocker> {
    let is_unblocked = |consumer: &Consumer| of_consumer(consumer, operation, |_| true).is_empty();
    // The common case: no consumer has a blocker, and the letters need not be fetched.
    if operation.state != OperationState::Running || status.consumers.iter().all(is_unblocked) {
        return Vec::new();
    }
    let letters = pending(client, &operation.id).await;
    of_letters(status, operation, &letters)
}

/// Returns the pending letters among the first of an operation, or all of those when none is pending.
async fn pending(client: &Client, operation: &str) -> Vec<Item> {
    let mut items = Vec::new();
    let mut after: Option<String> = None;
    while items.len() < MAX_INSPECTED
        && let Ok(page) = client.operation_items(operation, after.as_deref(), Some(PAGE_SIZE)).await
    {
        items.extend(page.items);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let (pending, done): (Vec<Item>, Vec<Item>) = items.into_iter().partition(|item| item.outcome.is_none());
    if pending.is_empty() { done } else { pending }
}

fn of_letters(status: &Status, operation: &Operation, letters: &[Item]) -> Vec<Blocker> {
    let consumer_of = |item: &Item| item.queue.split('/').next().unwrap_or_default().to_owned();
    let consumers: HashSet<String> = letters.iter().map(consumer_of).collect();
    let involved = status.consumers.iter().filter(|consumer| consumers.contains(&consumer.name));
    let blockers = involved.flat_map(|consumer| {
        let is_in = |sequence: &str| {
            letters.iter().any(|item| item.sequence == sequence && consumer_of(item) == consumer.name)
        };
        of_consumer(consumer, operation, is_in)
    });
    blockers.collect()
}

/// Returns the conditions of a consumer that block an operation on letters of these sequences.
fn of_consumer(consumer: &Consumer, operation: &Operation, is_in: impl Fn(&str) -> bool) -> Vec<Blocker> {
    let name = &consumer.name;
    let mut blockers: Vec<Blocker> = consumer
        .pauses
        .iter()
        .filter_map(|pause| {
            let what = match (pause.scope, pause.sequence.as_deref()) {
                (PauseScope::Consumer, _) => format!("{name} is"),
                (PauseScope::Replay, _) => format!("replays of {name} are"),
                (PauseScope::Sequence, Some(sequence)) if is_in(sequence) => {
                    format!("sequence {sequence} of {name} is")
                }
                // Pauses of streams and partitions hold new messages, not letters.
                _ => return None,
            };
            Some(paused(&what, name, pause))
        })
        .collect();
    let condition = match consumer.state {
        ConsumerState::Waiting => Some("waits for its source".to_owned()),
        ConsumerState::Failed | ConsumerState::Stopped => Some(format!("has {}", consumer.state.as_str())),
        // Another process may run it; then letters have been sent.
        ConsumerState::Elsewhere if operation.sent == 0 => Some("does not run in this daemon".to_owned()),
        _ if consumer.breaker == Breaker::Open => Some("has an open circuit breaker".to_owned()),
        _ => None,
    };
    blockers.extend(
        condition.map(|condition| Blocker { why: format!("{name} {condition}"), resolve_with: None }),
    );
    blockers
}

fn paused(what: &str, consumer: &str, pause: &Pause) -> Blocker {
    Blocker {
        why: format!("{what} paused by {}: {}", pause.who, pause.why),
        resolve_with: resume_command(consumer, pause),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{consumer, operation};

    fn pause(scope: PauseScope, sequence: Option<&str>) -> Pause {
        Pause {
            scope,
            stream: None,
            partition: None,
            sequence: sequence.map(str::to_owned),
            who: "ada".into(),
            via: "cli".into(),
            why: "deploy".into(),
            since: jiff::Timestamp::UNIX_EPOCH,
        }
    }

    fn item(queue: &str, sequence: &str) -> Item {
        let (queue, sequence) = (queue.to_owned(), sequence.to_owned());
        Item { ordinal: 0, queue, sequence, letter: "0a1b2c3d".into(), digest: None, outcome: None }
    }

    fn reasons(consumer: Consumer, letters: &[Item]) -> Vec<String> {
        let store = lazaret_api::StoreCapabilities::default();
        let status =
            Status { consumers: vec![consumer], operations: vec![], store, instances: vec![], erasure: None };
        let blockers = of_letters(&status, &operation(OperationState::Running, 0), letters);
        blockers.into_iter().map(|blocker| blocker.why).collect()
    }

    #[test]
    fn only_conditions_that_concern_its_letters_block_an_operation() {
        let mail = |pauses: Vec<Pause>| Consumer { pauses, ..consumer("mail", ConsumerState::Running, 0) };
        let letters = [item("mail/mail", "a")];
        assert_eq!(reasons(mail(vec![]), &letters), Vec::<String>::new());
        let replay = || vec![pause(PauseScope::Replay, None)];
        assert_eq!(reasons(mail(replay()), &letters), ["replays of mail are paused by ada: deploy"]);
        assert_eq!(reasons(mail(replay()), &[item("shop/mail", "a")]), Vec::<String>::new());
        // A paused stream holds new messages, not letters.
        assert_eq!(reasons(mail(vec![pause(PauseScope::Stream, None)]), &letters), Vec::<String>::new());
        let sequence = |name| vec![pause(PauseScope::Sequence, Some(name))];
        assert_eq!(reasons(mail(sequence("a")), &letters), ["sequence a of mail is paused by ada: deploy"]);
        assert_eq!(reasons(mail(sequence("b")), &letters), Vec::<String>::new());
        let failed = consumer("mail", ConsumerState::Failed, 0);
        assert_eq!(reasons(failed, &letters), ["mail has failed"]);
    }
}
