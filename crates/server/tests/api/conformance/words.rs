//! From the words of the API back to those of the core. Nothing is left out, and what is said twice must agree.

use lazaret_api as api;
use lazaret_api::{Code, Problem};
use lazaret_core::letter::{Letter, LetterState};
use lazaret_core::store::{
    Actor, AuditEntry, Counts, ErrorKind, Group, GroupId, Item, Operation, Pause, PauseScope, PayloadDigest,
    Plan, QueueSummary, RolloutPolicy, StoreError, TREND_BUCKET_SECONDS,
};
use lazaret_core::{QueueName, Reason, SequenceId};

use crate::conformance::client::Answered;

/// The error of a store behind a problem.
pub(crate) fn refused(operation: &'static str) -> impl FnOnce(Box<Problem>) -> StoreError {
    move |problem| {
        let kind = match problem.code {
            Code::NotFound => ErrorKind::NotFound,
            Code::Conflict | Code::PlanStale => ErrorKind::Conflict,
            Code::InvalidRequest | Code::InvalidQuery | Code::InvalidCursor => ErrorKind::Invalid,
            Code::Denied => ErrorKind::Denied,
            _ => panic!("no store would have said so during {operation}: {problem}"),
        };
        StoreError::not_done(kind, operation, problem.detail.unwrap_or(problem.title))
    }
}

/// What is there, or nothing where there is no such thing.
pub(crate) fn if_there<T>(answer: Answered<T>) -> Answered<Option<T>> {
    match answer {
        Ok(there) => Ok(Some(there)),
        Err(problem) if problem.code == Code::NotFound => Ok(None),
        Err(problem) => Err(problem),
    }
}

/// A whole letter. What lists show of it is made of the letter again, so that no field says anything else.
pub(crate) fn letter(detail: api::LetterDetail) -> Letter {
    let mut letter = detail.clone().into_letter(None).unwrap_or_else(|error| panic!("{error}: {detail:?}"));
    // An import would have an id of its own.
    letter.id = detail.letter.id.parse().unwrap();
    assert_eq!(api::LetterDetail::of(&letter, true), detail);
    letter
}

pub(crate) fn counts(states: &api::StateCounts, sequences: u64) -> Counts {
    let of = |state| match state {
        LetterState::Retrying => states.retrying,
        LetterState::Dead => states.dead,
        LetterState::Parked => states.parked,
        LetterState::Quarantined => states.quarantined,
        LetterState::Waiting => states.waiting,
        LetterState::Resolved => states.resolved,
        LetterState::Evicted => states.evicted,
        LetterState::Skipped => states.skipped,
        LetterState::Expired => states.expired,
    };
    Counts { sequences, by_state: LetterState::ALL.map(of) }
}

pub(crate) fn group(group: api::Group) -> Group {
    let id = GroupId {
        queue: QueueName::from(group.queue.as_str()),
        fingerprint: group.fingerprint.parse().unwrap(),
    };
    let counts = counts(&group.states, group.sequences);
    assert_eq!((id.to_string(), counts.open()), (group.id, group.letters));
    assert_eq!(group.trend_bucket_seconds, TREND_BUCKET_SECONDS.unsigned_abs());
    Group {
        id,
        reason: Reason::new(group.reason).unwrap(),
        error_type: group.error.error_type,
        message: group.error.message,
        counts,
        blocked_behind: group.blocked_behind,
        oldest: group.oldest_at,
        next_expiry: group.next_expiry_at,
        first_seen: group.first_seen_at,
        last_seen: group.last_seen_at,
        trend: group.trend.try_into().unwrap(),
    }
}

pub(crate) fn queue(queue: &api::QueueStatus) -> QueueSummary {
    QueueSummary {
        queue: QueueName::from(queue.queue.as_str()),
        counts: counts(&queue.states, queue.sequences),
        oldest: queue.oldest_at,
        next_expiry: queue.next_expiry_at,
    }
}

fn actor(actor: api::Actor) -> Actor {
    Actor::new(actor.who, actor.via, actor.why)
}

/// A pause. What is paused is read as a request for it would be.
pub(crate) fn pause(wire: api::Pause) -> Pause {
    let said = api::PauseRequest {
        stream: wire.stream.clone(),
        partition: wire.partition.map(|number| number.to_string()),
        sequence: wire.sequence.clone(),
        replay: wire.scope == api::PauseScope::Replay,
        reason: None,
    };
    let by = Actor::new(wire.who.as_str(), wire.via.as_str(), wire.why.as_str());
    let pause = Pause { scope: said.scope().unwrap(), by, since: wire.since };
    assert_eq!(api::Pause::from(&pause), wire);
    pause
}

/// What to ask for to have this paused or resumed.
pub(crate) fn pause_request(scope: &PauseScope, by: &Actor) -> api::PauseRequest {
    let mut request = api::PauseRequest { reason: Some(by.why.clone()), ..api::PauseRequest::default() };
    match scope {
        PauseScope::Consumer => {}
        PauseScope::Stream(stream) => request.stream = Some(stream.to_string()),
        PauseScope::Partition(partition) => {
            request.stream = Some(partition.stream.to_string());
            request.partition = Some(partition.index.to_string());
        }
        PauseScope::Sequence(sequence) => request.sequence = Some(sequence.to_string()),
        PauseScope::Replay => request.replay = true,
    }
    request
}

pub(crate) fn plan(plan: api::Plan) -> Plan {
    assert!(!plan.needs_approval, "no consumer of the suite demands a second person");
    Plan {
        id: plan.id.parse().unwrap(),
        action: plan.action.into(),
        query: plan.query,
        letters: plan.letters,
        sequences: plan.sequences,
        followers: plan.followers,
        excluded: plan
            .excluded
            .into_iter()
            .map(|left_out| (left_out.reason.into(), left_out.letters))
            .collect(),
        hash: plan.hash,
        by: actor(plan.by),
        frozen_at: plan.frozen_at,
        expires_at: plan.expires_at,
    }
}

pub(crate) fn operation(wire: api::Operation) -> Operation {
    let operation = Operation {
        id: wire.id.parse().unwrap(),
        plan: wire.plan.parse().unwrap(),
        action: wire.action.into(),
        rollout: RolloutPolicy {
            rate: wire.rate,
            ramp: wire.ramp,
            stop_at: wire.stop_at,
            start_at: wire.start_at,
            needs_approval: wire.needs_approval,
        },
        state: wire.state.into(),
        note: wire.note,
        stage: wire.stage.try_into().unwrap(),
        letters: wire.letters,
        ok: wire.ok,
        failed_again: wire.failed_again,
        skipped: wire.skipped,
        by: actor(wire.by),
        approved_by: wire.approved_by.map(actor),
        created_at: wire.created_at,
        updated_at: wire.updated_at,
        ended_at: wire.ended_at,
    };
    assert_eq!(operation.sent(), wire.sent);
    operation
}

/// A letter of a plan, whose payload has this digest.
pub(crate) fn item(item: api::Item, digest: Option<PayloadDigest>) -> Item {
    Item {
        ordinal: item.ordinal,
        queue: QueueName::from(item.queue.as_str()),
        sequence: SequenceId::new(item.sequence),
        letter: item.letter.parse().unwrap(),
        digest,
        outcome: item.outcome.map(Into::into),
    }
}

pub(crate) fn audit_entry(entry: api::AuditEntry) -> AuditEntry {
    AuditEntry {
        number: entry.number,
        at: entry.at,
        by: Actor::new(entry.who, entry.via, entry.why),
        action: entry.action,
        subject: entry.subject,
        before: entry.before,
        after: entry.after,
    }
}
