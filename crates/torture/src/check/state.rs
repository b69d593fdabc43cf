//! Checks the store: every message is settled, sequences are in order, and counters and audit are right.

use std::collections::{BTreeMap, HashMap};

use lazaret_core::store::{Audit, Checkpoints, Counts, GroupsRequest, LetterStore, Triage};
use lazaret_core::{Fingerprint, LetterId, LetterState, SequenceId, Sequencing};

use super::Findings;
use super::log::Observed;
use crate::plan::{PARTITIONS, Plan, Script, message_id, number_of, queue};
use crate::source;

/// The number of letters per lookup.
const PAGE: usize = 1000;

/// Checks that every message is settled, and that the counters are right.
pub(super) async fn check_store<S: LetterStore + Triage + Audit>(
    plan: Plan,
    observed: &[Observed],
    store: &S,
    findings: &mut Findings,
) -> lazaret_core::store::Result<()> {
    let queue = queue();
    let mut found = Counts::default();
    let mut states = Vec::with_capacity(observed.len());
    for numbers in (0..plan.messages).collect::<Vec<u64>>().chunks(PAGE) {
        let ids: Vec<_> = numbers.iter().map(|number| message_id(*number)).collect();
        states.extend(store.lookup(&queue, &ids).await?);
    }
    for (number, (observed, state)) in (0..).zip(observed.iter().zip(&states)) {
        if let Some(state) = state {
            found.by_state[*state as usize] += 1;
        }
        let mut crashes = 0;
        if matches!(state, Some(LetterState::Dead | LetterState::Evicted)) {
            let letter = store.get(&queue, LetterId::of(&queue, &message_id(number))).await?;
            crashes = letter.map_or(0, |letter| letter.crash_attempts);
        }
        findings.crashes += u64::from(crashes);
        check_message(plan, number, observed, *state, crashes > 0, findings);
    }
    findings.letters = store.counts(&queue).await?;
    if findings.letters.by_state != found.by_state {
        let counted = findings.letters.by_state;
        findings
            .violated(|| format!("I8: {:?} letters are found and {counted:?} are counted", found.by_state));
    }
    check_sequences(plan, &states, store, findings).await?;
    check_groups(&states, store, findings).await?;
    let audit = store.verify_audit().await?.unwrap_or_default();
    findings.audit = audit.intact;
    if let Some(broken) = audit.broken {
        findings.violated(|| format!("I11: the audit is broken at entry {broken}"));
    }
    Ok(())
}

/// Checks one message by its script, the log and its letter.
fn check_message(
    plan: Plan,
    number: u64,
    observed: &Observed,
    state: Option<LetterState>,
    crashed: bool,
    findings: &mut Findings,
) {
    let script = plan.script(number);
    let handled = observed.handled.is_some();
    let is_right = match state {
        None => handled,
        // Handled by the engine, or closed as handled by the operator.
        Some(LetterState::Resolved) => handled || observed.closed,
        // Handled, not committed and redelivered; then a kill while it was alone in flight used up its last attempt.
        Some(LetterState::Evicted) => observed.closed && (!handled || crashed),
        // A handled message may wait: it was redelivered after a kill and found its sequence open.
        Some(LetterState::Waiting) => true,
        // A message that was alone in flight at a kill is charged with it, which may use up its attempts.
        Some(LetterState::Dead) => script == Script::FailsAlways || crashed,
        Some(_) => false,
    };
    if !is_right {
        let state = state.map_or("no letter", LetterState::as_str);
        findings.violated(|| {
            format!(
                "I1: message {number} ({script:?}) has {state}, handled: {handled}, closed: {}",
                observed.closed
            )
        });
    }
    if handled && script == Script::FailsAlways {
        findings.violated(|| format!("message {number} was handled, though its handler always fails"));
    }
}

/// Checks the letters of each open sequence: each once, in the order of the stream, behind a dead head.
async fn check_sequences<S: LetterStore>(
    plan: Plan,
    states: &[Option<LetterState>],
    store: &S,
    findings: &mut Findings,
) -> lazaret_core::store::Result<()> {
    let mut open: HashMap<u32, u64> = HashMap::new();
    for (number, _) in (0..).zip(states).filter(|(_, state)| state.is_some_and(LetterState::is_open)) {
        *open.entry(plan.key(number)).or_default() += 1;
    }
    if open.len() as u64 != findings.letters.sequences {
        let counted = findings.letters.sequences;
        findings.violated(|| format!("{} sequences are open and {counted} are counted", open.len()));
    }
    for (key, count) in open {
        let sequence = sequence_of(plan, key);
        let letters = store.sequence(&queue(), &sequence, 0, usize::MAX).await?;
        let numbers: Vec<u64> = letters.iter().filter_map(|letter| number_of(&letter.message.id)).collect();
        if letters.first().is_some_and(|head| head.state != LetterState::Dead) {
            findings.violated(|| format!("I9: the head of {sequence} is not dead, and is not retried"));
        }
        if numbers.len() as u64 != count || !numbers.is_sorted_by(|a, b| a < b) {
            findings.violated(|| format!("I2: {sequence} has {count} open letters and holds {numbers:?}"));
        }
        let size = store.sequence_size(&queue(), &sequence).await?;
        if size != count {
            findings.violated(|| format!("{sequence} has {count} open letters and says {size}"));
        }
    }
    Ok(())
}

/// Checks that each group counts the letters with its cause, in their states.
async fn check_groups<S: LetterStore + Triage>(
    states: &[Option<LetterState>],
    store: &S,
    findings: &mut Findings,
) -> lazaret_core::store::Result<()> {
    let mut found: BTreeMap<Fingerprint, [u64; 9]> = BTreeMap::new();
    for (number, state) in (0..).zip(states) {
        let Some(state) = *state else { continue };
        let letter = store.get(&queue(), LetterId::of(&queue(), &message_id(number))).await?;
        if let Some(cause) = letter.and_then(|letter| letter.cause) {
            found.entry(cause.fingerprint).or_default()[state as usize] += 1;
        }
    }
    let mut counted = BTreeMap::new();
    let mut request = GroupsRequest { queue: Some(queue()), closed: true, after: None, limit: PAGE };
    loop {
        let page = store.groups(&request).await?;
        counted.extend(page.groups.into_iter().map(|group| (group.id.fingerprint, group.counts.by_state)));
        request.after = page.next;
        if request.after.is_none() {
            break;
        }
    }
    if counted != found {
        findings.violated(|| format!("groups have the letters {found:?} and count {counted:?}"));
    }
    Ok(())
}

fn sequence_of(plan: Plan, key: u32) -> SequenceId {
    let first = (0..plan.messages).find(|number| plan.key(*number) == key).unwrap_or_default();
    SequenceId::from(&*Sequencing::Key.text(&plan.message(first)))
}

/// Checks that every partition is committed to its end.
pub(super) async fn check_positions<S: Checkpoints>(
    plan: Plan,
    store: &S,
    findings: &mut Findings,
) -> lazaret_core::store::Result<()> {
    for partition in 0..PARTITIONS {
        let last = (0..plan.messages).rev().find(|number| plan.partition(*number) == partition);
        let checkpoint = store.load(&source::name(partition)).await?.unwrap_or_default();
        match source::read(checkpoint) {
            Ok((committed, _)) if committed == last => {}
            Ok((committed, _)) => findings.violated(|| {
                format!("I1: partition {partition} is committed up to {committed:?}, and ends with {last:?}")
            }),
            Err(error) => findings.violated(|| error.to_string()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unsettled_message_is_found() {
        let plan = Plan { seed: 1, messages: 1, keys: 1 };
        let lost = |observed: Observed, state| {
            let mut findings = Findings::default();
            check_message(plan, 0, &observed, state, false, &mut findings);
            !findings.violations.is_empty()
        };
        let handled = Observed { handled: Some((1, 0)), ..Observed::default() };
        assert!(lost(Observed::default(), None));
        assert!(lost(Observed::default(), Some(LetterState::Resolved)));
        assert!(lost(Observed::default(), Some(LetterState::Retrying)));
        assert!(!lost(handled, None));
        assert!(!lost(handled, Some(LetterState::Resolved)));
        assert!(!lost(Observed { closed: true, ..Observed::default() }, Some(LetterState::Evicted)));
    }
}
