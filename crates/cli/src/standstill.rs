//! Why an operation stands still: what is paused, and which consumers do not run.

use std::collections::HashSet;

use lazaret_api::{
    Breaker, Consumer, ConsumerState, Item, Operation, OperationState, Pause, PauseScope, Status,
};

use crate::client::Client;
use crate::hints::resume_command;

/// How many letters of an operation are asked for at once, and how many are looked at (I7).
const CHUNK: usize = 500;
const LOOKED_AT: usize = 2000;

/// Something that keeps an operation from going on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    /// What it is, in words.
    pub(crate) why: String,
    /// The command that ends it.
    pub(crate) end: Option<String>,
}

/// What keeps this operation from going on. Without an answer there is nothing to tell: who asks for more than this hears from
/// the next request what is wrong.
pub(crate) async fn holds(client: &Client, operation: &Operation) -> Vec<Hold> {
    if operation.state != OperationState::Running {
        return Vec::new();
    }
    match client.status().await {
        Ok(status) => holds_in(client, &status, operation).await,
        Err(_) => Vec::new(),
    }
}

/// The same, where it is known how everything stands.
pub(crate) async fn holds_in(client: &Client, status: &Status, operation: &Operation) -> Vec<Hold> {
    let is_free = |consumer: &Consumer| of_consumer(consumer, operation, |_| true).is_empty();
    // Most of the time nothing is held, and nobody has to look at letters.
    if operation.state != OperationState::Running || status.consumers.iter().all(is_free) {
        return Vec::new();
    }
    let letters = waiting(client, &operation.id).await;
    of_letters(status, operation, &letters)
}

/// The letters whose turn has not come, of the first ones of an operation; all of these when none is left among them.
async fn waiting(client: &Client, operation: &str) -> Vec<Item> {
    let mut items = Vec::new();
    let mut after: Option<String> = None;
    while items.len() < LOOKED_AT
        && let Ok(page) = client.operation_items(operation, after.as_deref(), Some(CHUNK)).await
    {
        items.extend(page.items);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let (left, done): (Vec<Item>, Vec<Item>) = items.into_iter().partition(|item| item.outcome.is_none());
    if left.is_empty() { done } else { left }
}

fn of_letters(status: &Status, operation: &Operation, letters: &[Item]) -> Vec<Hold> {
    let consumer_of = |item: &Item| item.queue.split('/').next().unwrap_or_default().to_owned();
    let consumers: HashSet<String> = letters.iter().map(consumer_of).collect();
    let concerned = status.consumers.iter().filter(|consumer| consumers.contains(&consumer.name));
    let holds = concerned.flat_map(|consumer| {
        let is_in = |sequence: &str| {
            letters.iter().any(|item| item.sequence == sequence && consumer_of(item) == consumer.name)
        };
        of_consumer(consumer, operation, is_in)
    });
    holds.collect()
}

/// What of a consumer holds an operation with letters of these sequences.
fn of_consumer(consumer: &Consumer, operation: &Operation, is_in: impl Fn(&str) -> bool) -> Vec<Hold> {
    let name = &consumer.name;
    let mut holds: Vec<Hold> = consumer
        .pauses
        .iter()
        .filter_map(|pause| {
            let what = match (pause.scope, pause.sequence.as_deref()) {
                (PauseScope::Consumer, _) => format!("{name} is"),
                (PauseScope::Replay, _) => format!("replays of {name} are"),
                (PauseScope::Sequence, Some(sequence)) if is_in(sequence) => {
                    format!("sequence {sequence} of {name} is")
                }
                // New messages wait for these; letters do not.
                _ => return None,
            };
            Some(paused(&what, name, pause))
        })
        .collect();
    let stands = match consumer.state {
        ConsumerState::Failed | ConsumerState::Stopped => Some(format!("has {}", consumer.state.as_str())),
        // Another process may be at it, which is seen by what it has done.
        ConsumerState::Elsewhere if operation.sent == 0 => Some("does not run in this daemon".to_owned()),
        _ if consumer.breaker == Breaker::Open => Some("has its breaker open".to_owned()),
        _ => None,
    };
    holds.extend(stands.map(|stands| Hold { why: format!("{name} {stands}"), end: None }));
    holds
}

fn paused(what: &str, consumer: &str, pause: &Pause) -> Hold {
    Hold {
        why: format!("{what} paused by {}: {}", pause.who, pause.why),
        end: resume_command(consumer, pause),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::snapshots::{consumer, operation};

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
        Item { ordinal: 0, queue, sequence, letter: "0a1b2c3d".into(), outcome: None }
    }

    fn told(consumer: Consumer, letters: &[Item]) -> Vec<String> {
        let status = Status { consumers: vec![consumer], operations: vec![] };
        let holds = of_letters(&status, &operation(OperationState::Running, 0), letters);
        holds.into_iter().map(|hold| hold.why).collect()
    }

    #[test]
    fn an_operation_is_held_by_what_concerns_its_letters_alone() {
        let mail = |pauses: Vec<Pause>| Consumer { pauses, ..consumer("mail", ConsumerState::Running, 0) };
        let letters = [item("mail/mail", "a")];
        assert_eq!(told(mail(vec![]), &letters), Vec::<String>::new());
        let replay = || vec![pause(PauseScope::Replay, None)];
        assert_eq!(told(mail(replay()), &letters), ["replays of mail are paused by ada: deploy"]);
        assert_eq!(told(mail(replay()), &[item("shop/mail", "a")]), Vec::<String>::new());
        // A stream that is paused holds new messages, not letters.
        assert_eq!(told(mail(vec![pause(PauseScope::Stream, None)]), &letters), Vec::<String>::new());
        let sequence = |name| vec![pause(PauseScope::Sequence, Some(name))];
        assert_eq!(told(mail(sequence("a")), &letters), ["sequence a of mail is paused by ada: deploy"]);
        assert_eq!(told(mail(sequence("b")), &letters), Vec::<String>::new());
        let failed = consumer("mail", ConsumerState::Failed, 0);
        assert_eq!(told(failed, &letters), ["mail has failed"]);
    }
}
