//! Fills the screen from a snapshot.

use jiff::Timestamp;
use lazaret_api::{self as api, Breaker, Fuse, OperationState, Sequence, State};
use lazaret_tui::{
    BlockedKey, Consumer, Group, HeadState, KeyHint, Operation, Screen, Section, StyledLine, Tone,
};

use super::app::sequence_pause;
use super::request::Item;
use super::snapshot::Snapshot;
use crate::commands::{op, status};
use crate::output::{age, count, error_summary, plural};

/// Returns everything that can be selected, in the order of the screen.
pub(super) fn items(snapshot: &Snapshot) -> Vec<Item> {
    let status = &snapshot.status;
    let consumers = status.consumers.iter().map(|consumer| Item::Consumer(consumer.name.clone()));
    let groups = snapshot.groups.iter().map(|group| Item::Group(group.id.clone()));
    let operations = status.operations.iter().map(|operation| Item::Operation(operation.id.clone()));
    consumers.chain(snapshot.lanes.iter().map(key_item)).chain(groups).chain(operations).collect()
}

fn key_item(lane: &Sequence) -> Item {
    Item::Key { queue: lane.queue.clone(), sequence: lane.sequence.clone() }
}

/// Returns one frame for text output: nothing is selected, and there are no keys.
pub(super) fn frame(snapshot: &Snapshot, url: &str, now: Timestamp) -> Screen {
    let mut screen = dashboard(snapshot, url, None, |_| None, now);
    screen.log.title.clear();
    screen
}

/// Returns the screen before the first snapshot.
pub(super) fn empty(url: &str) -> Screen {
    Screen {
        title: title(),
        address: address(url),
        summary: vec![StyledLine::of("connecting", Tone::Dim)],
        blocked: Section::new("KEYS BLOCKED", Vec::new()),
        groups: Section::new("LETTERS BY CAUSE", Vec::new()),
        log: Section::new("LOG", Vec::new()),
        ..Screen::default()
    }
}

/// Returns the line that tells that the daemon does not respond, and whether the screen still shows what it last reported.
pub(super) fn lost(why: &str, since: Timestamp, is_stale: bool, now: Timestamp) -> StyledLine {
    let retry = format!("; retrying for {}", age(since, now));
    let stale = if is_stale { ", the screen is from before" } else { "" };
    StyledLine::of(why, Tone::Bad).add(retry, Tone::Warning).add(stale, Tone::Warning)
}

/// Returns the keys of the dashboard.
pub(super) fn keys() -> Vec<KeyHint> {
    vec![
        KeyHint::new("↑↓", "select"),
        KeyHint::new("Enter", "look"),
        KeyHint::new("r", "replay"),
        KeyHint::new("p", "pause/resume"),
        KeyHint::new("?", "help"),
        KeyHint::new("q", "quit"),
    ]
}

/// Returns the screen of a snapshot. `rate` returns the messages per second of a consumer.
pub(super) fn dashboard(
    snapshot: &Snapshot,
    url: &str,
    selected: Option<&Item>,
    rate: impl Fn(&str) -> Option<f64>,
    now: Timestamp,
) -> Screen {
    let status = &snapshot.status;
    let consumers = status.consumers.iter().map(|of| consumer(of, rate(&of.name), now)).collect();
    let place = |items: Vec<Item>| items.iter().position(|item| Some(item) == selected);
    let at_consumer = place(status.consumers.iter().map(|of| Item::Consumer(of.name.clone())).collect());
    let at_key = place(snapshot.lanes.iter().map(key_item).collect());
    let at_group = place(snapshot.groups.iter().map(|group| Item::Group(group.id.clone())).collect());
    let at_operation = place(status.operations.iter().map(|of| Item::Operation(of.id.clone())).collect());
    let groups = snapshot.groups.iter().map(group).collect::<Vec<_>>();
    let more_groups =
        if snapshot.has_more_groups { "the largest; list all with `lazaret groups`" } else { "" };
    Screen {
        title: title(),
        address: address(url),
        summary: vec![summary(snapshot)],
        consumers: Some(Section::new("CONSUMERS", consumers).select(at_consumer)),
        blocked: blocked(snapshot, now).select(at_key),
        groups: Section::new("LETTERS BY CAUSE", groups).note(more_groups).select(at_group),
        operations: Section::new("OPERATIONS", status.operations.iter().map(operation).collect())
            .select(at_operation),
        log: Section::new("LOG", Vec::new()),
        ..Screen::default()
    }
}

fn title() -> StyledLine {
    StyledLine::of("Lazaret", Tone::Strong).plain(" top")
}

fn address(url: &str) -> StyledLine {
    StyledLine::of(url, Tone::Hint)
}

fn summary(snapshot: &Snapshot) -> StyledLine {
    let status = &snapshot.status;
    let sum = |of: fn(&api::Consumer) -> u64| status.consumers.iter().map(of).sum::<u64>();
    let open = sum(|of| of.retrying + of.dead + of.parked + of.quarantined + of.waiting);
    let line = StyledLine::new().plain(plural(status.consumers.len() as u64, "consumer"));
    let line = line.plain(format!(", {}", plural(open, "open letter")));
    let line = match sum(|of| of.in_broker.map_or(0, |counts| counts.dead)) {
        0 => line,
        in_topics => line.plain(format!(", {} in dead-letter topics", count(in_topics))),
    };
    let line = match status.instances.len() {
        0 | 1 => line,
        instances => line.plain(format!(", {}", plural(instances as u64, "instance"))),
    };
    match status.store.durable {
        true => line,
        false => line.add("  the store is not durable: letters are lost at its end", Tone::Warning),
    }
}

fn consumer(consumer: &api::Consumer, rate: Option<f64>, now: Timestamp) -> Consumer {
    Consumer {
        name: consumer.name.clone(),
        state: consumer.state.as_str().to_owned(),
        tone: status::state_tone(consumer.state),
        retrying: consumer.retrying,
        dead: consumer.dead_with_topics(),
        held: consumer.parked + consumer.quarantined,
        waiting: consumer.waiting,
        lag: consumer.lag,
        rate,
        note: note(consumer, now),
    }
}

/// Returns what needs attention, the most important first.
fn note(consumer: &api::Consumer, now: Timestamp) -> Option<String> {
    if let Some(limit) = &consumer.held_by {
        return Some(format!("held by its limit: {limit}"));
    }
    if consumer.store_trouble {
        return Some("the store does not accept letters".to_owned());
    }
    if consumer.fuse == Fuse::Blown {
        return Some(format!("fuse blown: {}", fuse_cause(consumer).unwrap_or("most messages fail")));
    }
    if let Some(pause) = &consumer.paused {
        return Some(format!("paused by {}, {} ago: {}", pause.who, age(pause.since, now), pause.why));
    }
    if matches!(consumer.breaker, Breaker::Open | Breaker::HalfOpen) {
        let error = consumer.breaker_cause.as_ref().map(|cause| &cause.error);
        let error = error.map(|error| format!(": {}", error_summary(&error.error_type, &error.message)));
        return Some(format!("breaker {}{}", consumer.breaker.as_str(), error.unwrap_or_default()));
    }
    let parts = consumer.pauses.len() as u64;
    consumer.error.clone().or_else(|| (parts > 0).then(|| format!("{} paused", plural(parts, "part"))))
}

/// Returns why the fuse has blown. The reason of its pause begins with `fuse: `, which is said before it here.
pub(super) fn fuse_cause(consumer: &api::Consumer) -> Option<&str> {
    consumer.fuse_why.as_deref().map(|why| why.strip_prefix("fuse: ").unwrap_or(why))
}

fn blocked(snapshot: &Snapshot, now: Timestamp) -> Section<BlockedKey> {
    let queues = snapshot.status.consumers.iter().flat_map(|consumer| &consumer.queues);
    // Letters that left their sequences are sequences of the store, and block no key.
    let open = snapshot.blocked.unwrap_or_else(|| queues.map(|queue| queue.sequences).sum());
    let open = open.max(snapshot.lanes.len() as u64);
    let keys = if open == 1 { "KEY" } else { "KEYS" };
    let rows = snapshot.lanes.iter().map(|lane| key(snapshot, lane, now)).collect();
    let note = if open == 0 { "" } else { "the last to fail; all other keys are not affected" };
    Section::new(format!("{} {keys} BLOCKED", count(open)), rows).note(note).total(open)
}

fn key(snapshot: &Snapshot, lane: &Sequence, now: Timestamp) -> BlockedKey {
    let name = lane.queue.split('/').next().unwrap_or_default();
    let consumer = snapshot.status.consumers.iter().find(|consumer| consumer.name == name);
    let is_only = snapshot.status.consumers.len() == 1;
    BlockedKey {
        // Consumers may have the same keys.
        name: if is_only { lane.sequence.clone() } else { format!("{} ({name})", lane.sequence) },
        head: lane
            .letters
            .first()
            .map_or_else(|| HeadState::Held("open".to_owned()), |head| head_state(head, now)),
        lane: lane.letters.iter().map(|letter| letter.message.id.clone()).collect(),
        letters: lane.size,
        is_paused: consumer.is_some_and(|consumer| sequence_pause(consumer, &lane.sequence).is_some()),
    }
}

fn head_state(head: &api::Letter, now: Timestamp) -> HeadState {
    match (head.state, head.due_at) {
        (State::Retrying, due) => HeadState::Retrying {
            attempt: head.attempts + 1,
            due_in: due.map(|due| due.duration_since(now).try_into().unwrap_or_default()),
        },
        (state, _) => HeadState::Held(state.as_str().to_owned()),
    }
}

fn group(group: &api::Group) -> Group {
    Group {
        dead: group.states.dead,
        retrying: group.states.retrying,
        held: group.states.parked + group.states.quarantined,
        behind: group.blocked_behind,
        reason: group.reason.clone(),
        message: error_summary(&group.error.error_type, &group.error.message),
    }
}

fn operation(operation: &api::Operation) -> Operation {
    let note = match operation.state {
        OperationState::AwaitingApproval => Some("a second person must approve it".to_owned()),
        _ => operation.note.clone(),
    };
    Operation {
        id: operation.id.clone(),
        state: operation.state.as_str().to_owned(),
        tone: op::tone(operation),
        letters: operation.letters,
        ok: operation.ok,
        failed_again: operation.failed_again,
        skipped: operation.skipped,
        note,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{NOW, at, consumer};

    #[test]
    fn a_blown_fuse_is_named_once() {
        let mut shop = consumer("shop", api::ConsumerState::Paused, 50);
        shop.fuse = Fuse::Blown;
        shop.fuse_why = Some("fuse: 50 messages in a row failed for good".into());
        assert_eq!(note(&shop, at(NOW)).unwrap(), "fuse blown: 50 messages in a row failed for good");
    }
}
