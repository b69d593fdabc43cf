//! The checks of what a demo leaves behind. Pure functions of the evidence: the engine is not asked.

use std::collections::{HashMap, HashSet};

use lazaret::LetterState;
use serde::Serialize;

use crate::evidence::{Evidence, Held};
use crate::journal::Fact;
use crate::orders::{self, Poison};
use crate::worker::{MAX_ATTEMPTS, MAX_CRASHES};

/// How many breaches are named.
const NAMED: usize = 5;

/// A promise, and whether it was kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The id of the invariant, or `story` for what the demo itself promises.
    pub id: &'static str,
    /// What was promised.
    pub promise: &'static str,
    /// Whether it was kept.
    pub ok: bool,
    /// What was seen.
    pub seen: String,
}

/// Checks every promise.
pub(crate) fn check(evidence: &Evidence) -> Vec<Finding> {
    vec![
        no_loss(evidence),
        order(evidence),
        bounded(evidence),
        identity(evidence),
        one_letter(evidence),
        nothing_vanishes(evidence),
        never_early(evidence),
        only_poison_remains(evidence),
    ]
}

fn finding(id: &'static str, promise: &'static str, seen: String, breaches: Vec<String>) -> Finding {
    let ok = breaches.is_empty();
    let named: Vec<String> = breaches.iter().take(NAMED).cloned().collect();
    let more = breaches.len().saturating_sub(NAMED);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    Finding { id, promise, ok, seen: if ok { seen } else { format!("{}{more}", named.join("; ")) } }
}

fn handled(evidence: &Evidence) -> HashSet<&str> {
    let done = evidence.journal.iter().filter(|entry| entry.fact == Fact::Done);
    done.map(|entry| entry.id.as_str()).collect()
}

fn open(evidence: &Evidence) -> HashMap<&str, &Held> {
    let open = evidence.letters.iter().filter(|letter| letter.state.is_open());
    open.map(|letter| (letter.id.as_str(), letter)).collect()
}

fn no_loss(evidence: &Evidence) -> Finding {
    let (handled, open) = (handled(evidence), open(evidence));
    let lost = evidence.sent.iter().filter(|sent| {
        let id = sent.id.as_str();
        !handled.contains(id) && !open.contains_key(id)
    });
    let lost = lost.map(|sent| format!("{} is neither handled nor a letter", sent.id)).collect();
    let seen =
        format!("{} sent: {} handled, {} open letters", evidence.sent.len(), handled.len(), open.len());
    finding("I1", "no loss", seen, lost)
}

/// What the journal has told of one order so far.
#[derive(Default)]
struct Course {
    /// In which life it was last handled.
    done: Option<u32>,
    /// In which life an attempt runs.
    running: Option<u32>,
}

/// A customer's orders are handled one after the other: no attempt begins while an earlier order of the customer is not handled, or another attempt of the customer runs. An
/// order that was handled is handled again only when the process died in between.
fn order(evidence: &Evidence) -> Finding {
    let mut place = HashMap::new();
    let customers = evidence.by_customer();
    for (customer, ids) in &customers {
        for (index, id) in ids.iter().enumerate() {
            place.insert(*id, (*customer, index));
        }
    }
    let mut courses = HashMap::<&str, Course>::new();
    let (mut breaches, mut attempts, mut repeated) = (Vec::new(), 0_u64, 0_u64);
    for entry in &evidence.journal {
        let Some((customer, index)) = place.get(entry.id.as_str()) else { continue };
        match entry.fact {
            Fact::Begun { .. } => {
                attempts += 1;
                for (earlier, id) in customers[customer].iter().enumerate() {
                    let course = courses.entry(id).or_default();
                    if earlier < *index && course.done.is_none() {
                        breaches
                            .push(format!("{} was tried before {id} of {customer} was handled", entry.id));
                    }
                    if course.running == Some(entry.life) {
                        breaches.push(format!("{} was tried while {id} of {customer} was", entry.id));
                    }
                }
                let course = courses.entry(&entry.id).or_default();
                match course.done {
                    Some(life) if life == entry.life => {
                        breaches.push(format!("{} was handled twice in one life", entry.id));
                    }
                    Some(_) => repeated += 1,
                    None => {}
                }
                course.running = Some(entry.life);
            }
            Fact::Done => {
                let course = courses.entry(&entry.id).or_default();
                (course.done, course.running) = (Some(entry.life), None);
            }
            Fact::Failed { .. } => courses.entry(&entry.id).or_default().running = None,
            Fact::Due(_) | Fact::GaveUp | Fact::Letter(_) | Fact::Closed(_) => {}
        }
    }
    let seen =
        format!("{attempts} attempts of {} customers, {repeated} repeated after a death", customers.len());
    finding("I2", "order per customer", seen, breaches)
}

fn bounded(evidence: &Evidence) -> Finding {
    let (mut most, mut breaches) = (0, Vec::new());
    for entry in &evidence.journal {
        if let Fact::Begun { attempt, replay: false, .. } = entry.fact {
            most = most.max(attempt);
            if attempt > MAX_ATTEMPTS {
                breaches.push(format!("{} got attempt {attempt}", entry.id));
            }
        }
    }
    for letter in &evidence.letters {
        if letter.crash_attempts > MAX_CRASHES {
            breaches.push(format!("{} killed the process {} times", letter.id, letter.crash_attempts));
        }
    }
    let seen = format!("at most {most} of {MAX_ATTEMPTS} automatic attempts");
    finding("I4", "bounded attempts", seen, breaches)
}

fn identity(evidence: &Evidence) -> Finding {
    let sent: HashMap<&str, u64> =
        evidence.sent.iter().map(|sent| (sent.id.as_str(), sent.payload)).collect();
    let mut breaches = Vec::new();
    for entry in &evidence.journal {
        if let Fact::Begun { payload, .. } = entry.fact
            && sent.get(entry.id.as_str()) != Some(&payload)
        {
            breaches.push(format!("{} came with another payload than it was sent with", entry.id));
        }
    }
    let seen = "every attempt got the bytes that were sent".to_owned();
    finding("I5", "identity", seen, breaches)
}

fn one_letter(evidence: &Evidence) -> Finding {
    let mut breaches = Vec::new();
    let mut seen = HashSet::new();
    for letter in &evidence.letters {
        if !seen.insert(letter.id.as_str()) {
            breaches.push(format!("{} has two letters", letter.id));
        }
    }
    // A letter may change its state as often as it wants to, but it is closed once.
    let mut closed = HashSet::new();
    for entry in &evidence.journal {
        let is_again = match entry.fact {
            Fact::Closed(_) => !closed.insert(entry.id.as_str()),
            Fact::Letter(_) => closed.contains(entry.id.as_str()),
            _ => false,
        };
        if is_again {
            breaches.push(format!("{} became a letter again after its letter was closed", entry.id));
        }
    }
    let told = format!("{} letters of {} orders", evidence.letters.len(), seen.len());
    finding("I8", "one letter", told, breaches)
}

fn nothing_vanishes(evidence: &Evidence) -> Finding {
    let held: HashMap<&str, &Held> =
        evidence.letters.iter().map(|letter| (letter.id.as_str(), letter)).collect();
    let handled = handled(evidence);
    let mut breaches = Vec::new();
    for entry in &evidence.journal {
        if matches!(entry.fact, Fact::Letter(_)) && !held.contains_key(entry.id.as_str()) {
            breaches.push(format!("the letter of {} is gone", entry.id));
        }
    }
    let closed = evidence.letters.iter().filter(|letter| !letter.state.is_open());
    let mut resolved = 0;
    for letter in closed {
        resolved += 1;
        let is_true = letter.state == LetterState::Resolved
            && letter.ended_well
            && handled.contains(letter.id.as_str());
        if !is_true {
            breaches.push(format!("{} is {} and its history does not say why", letter.id, letter.state));
        }
    }
    if let Some(entry) = evidence.audit_broken {
        breaches.push(format!("entry {entry} of the audit was changed"));
    }
    for (id, who, why) in &evidence.operations {
        if who.is_empty() || why.is_empty() {
            breaches.push(format!("nobody knows who began {id}, or why"));
        }
    }
    let seen = format!(
        "{resolved} letters closed, each with its history; {} audited acts, each with who and why",
        evidence.audit_entries
    );
    finding("I11", "nothing vanishes", seen, breaches)
}

fn never_early(evidence: &Evidence) -> Finding {
    let mut due = HashMap::<&str, i64>::new();
    let (mut breaches, mut retries, mut latest) = (Vec::new(), 0_u64, 0_i64);
    for entry in &evidence.journal {
        match entry.fact {
            Fact::Due(at) => {
                due.insert(&entry.id, at);
            }
            // What somebody asks for need not wait.
            Fact::Begun { replay: true, .. } => {
                due.remove(entry.id.as_str());
            }
            Fact::Begun { .. } => {
                let Some(at) = due.remove(entry.id.as_str()) else { continue };
                retries += 1;
                latest = latest.max(entry.at - at);
                if entry.at < at {
                    breaches.push(format!("{} was tried {} µs early", entry.id, at - entry.at));
                }
            }
            _ => {}
        }
    }
    let seen = format!("{retries} retries, the latest {} ms after its time", latest / 1000);
    finding("I12", "never early", seen, breaches)
}

/// What the demo itself promises: the poison is dead with its reason, what the same customers ordered later waits behind it,
/// and nothing else is left.
fn only_poison_remains(evidence: &Evidence) -> Finding {
    let poison: HashMap<String, Poison> = orders::poisonous()
        .filter_map(|number| Some((orders::id(number), orders::poison(number)?)))
        .collect();
    let customers: HashSet<String> = orders::poisonous().map(orders::customer).collect();
    let owner: HashMap<&str, &str> =
        evidence.sent.iter().map(|sent| (sent.id.as_str(), sent.customer.as_str())).collect();
    let mut breaches = Vec::new();
    let (mut dead, mut waiting) = (0, 0);
    for letter in evidence.letters.iter().filter(|letter| letter.state.is_open()) {
        match poison.get(&letter.id) {
            Some(poison) if is_dead_of(letter, *poison) => dead += 1,
            None if letter.state == LetterState::Waiting && has_poison(&owner, &customers, letter) => {
                waiting += 1
            }
            _ => breaches.push(format!("{} is {} because of {:?}", letter.id, letter.state, letter.reason)),
        }
    }
    if dead != poison.len() {
        breaches.push(format!("{dead} of {} poisonous orders are dead letters", poison.len()));
    }
    let seen = format!("{dead} dead letters, {waiting} orders wait behind them, nothing else is open");
    finding("story", "only poison remains", seen, breaches)
}

fn is_dead_of(letter: &Held, poison: Poison) -> bool {
    let crashes = if poison == Poison::Crash { MAX_CRASHES } else { 0 };
    letter.state == LetterState::Dead
        && letter.reason.as_deref() == Some(poison.reason())
        && letter.crash_attempts == crashes
}

fn has_poison(owner: &HashMap<&str, &str>, customers: &HashSet<String>, letter: &Held) -> bool {
    owner.get(letter.id.as_str()).is_some_and(|customer| customers.contains(*customer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::Sent;
    use crate::journal::Entry;
    use crate::orders::{customer, id};

    /// The evidence of a story that went well: all orders in one life, one outage, one replay, and poison.
    fn good() -> Evidence {
        let mut evidence = Evidence::default();
        let poisonous: HashSet<u32> = orders::poisonous().collect();
        let mut blocked = HashSet::new();
        for number in 1..=orders::SHORTEST {
            let payload = u64::from(number);
            evidence.sent.push(Sent { id: id(number), customer: customer(number), payload });
            if !blocked.contains(&customer(number)) {
                begin(&mut evidence, number, 1, i64::from(number) * 10);
                if !poisonous.contains(&number) {
                    note(&mut evidence, number, 0, Fact::Done);
                    continue;
                }
                note(&mut evidence, number, 0, Fact::Failed { reason: "X".to_owned() });
                blocked.insert(customer(number));
            }
            let poison = orders::poison(number);
            let state = if poison.is_some() { LetterState::Dead } else { LetterState::Waiting };
            note(&mut evidence, number, 0, Fact::Letter(state.to_string()));
            evidence.letters.push(Held {
                id: id(number),
                state,
                reason: poison.map(|poison| poison.reason().to_owned()),
                crash_attempts: if poison == Some(Poison::Crash) { MAX_CRASHES } else { 0 },
                ended_well: false,
            });
        }
        evidence
    }

    fn note(evidence: &mut Evidence, number: u32, at: i64, fact: Fact) {
        evidence.journal.push(Entry { life: 1, at, id: id(number), fact });
    }

    fn begin(evidence: &mut Evidence, number: u32, attempt: u32, at: i64) {
        note(evidence, number, at, Fact::Begun { attempt, replay: false, payload: u64::from(number) });
    }

    /// The ids of the promises that are broken after a change to good evidence.
    #[track_caller]
    fn broken(change: impl FnOnce(&mut Evidence)) -> Vec<&'static str> {
        let mut evidence = good();
        change(&mut evidence);
        check(&evidence).into_iter().filter(|finding| !finding.ok).map(|finding| finding.id).collect()
    }

    /// The last order, which is fine, and its place in the journal.
    fn last(evidence: &Evidence) -> (u32, usize) {
        let place =
            evidence.journal.iter().rposition(|entry| matches!(entry.fact, Fact::Begun { .. })).unwrap();
        (orders::number_of(&evidence.journal[place].id).unwrap(), place)
    }

    #[test]
    fn a_story_that_went_well_breaks_nothing() {
        assert_eq!(broken(|_| {}), [""; 0]);
    }

    #[test]
    fn an_order_that_is_gone_breaks_i1() {
        // I1
        assert_eq!(broken(|evidence| drop(evidence.journal.pop())), ["I1"]);
        let lost_letter = broken(|evidence| {
            let place =
                evidence.letters.iter().position(|letter| letter.state == LetterState::Waiting).unwrap();
            evidence.letters.remove(place);
        });
        assert_eq!(lost_letter, ["I1", "I11"]);
    }

    #[test]
    fn an_order_that_overtakes_another_of_its_customer_breaks_i2() {
        // I2
        let after_poison = orders::deadly() + 30;
        assert_eq!(customer(after_poison), customer(orders::deadly()));
        assert_eq!(broken(|evidence| begin(evidence, after_poison, 1, 0)), ["I2"]);
    }

    #[test]
    fn two_attempts_of_one_customer_at_once_break_i2() {
        // I2
        let at_once = broken(|evidence| {
            let (number, place) = last(evidence);
            let again = evidence.journal[place].clone();
            assert_eq!(again.id, id(number));
            evidence.journal.insert(place, again);
        });
        assert_eq!(at_once, ["I2"]);
    }

    #[test]
    fn handling_an_order_again_needs_a_death_in_between() {
        // I2, I8
        let again = |life| {
            move |evidence: &mut Evidence| {
                begin(evidence, 1, 1, 0);
                note(evidence, 1, 0, Fact::Done);
                evidence.journal.iter_mut().rev().take(2).for_each(|entry| entry.life = life);
            }
        };
        assert_eq!(broken(again(1)), ["I2"]);
        assert_eq!(broken(again(2)), [""; 0]);
    }

    #[test]
    fn one_attempt_too_many_breaks_i4() {
        // I4
        let deadly = orders::deadly();
        let changed = |attempt| move |evidence: &mut Evidence| begin(evidence, deadly, attempt, 0);
        assert_eq!(broken(changed(MAX_ATTEMPTS)), [""; 0]);
        assert_eq!(broken(changed(MAX_ATTEMPTS + 1)), ["I4"]);
    }

    #[test]
    fn another_payload_breaks_i5() {
        // I5
        assert_eq!(broken(|evidence| evidence.sent[0].payload += 1), ["I5"]);
    }

    #[test]
    fn a_second_letter_breaks_i8() {
        // I8
        let twice = |evidence: &mut Evidence| {
            let letter = evidence.letters.iter().find(|letter| letter.state == LetterState::Waiting).unwrap();
            evidence.letters.push(letter.clone());
        };
        assert_eq!(broken(twice), ["I8"]);
        let again = |evidence: &mut Evidence| {
            let resolved = Held {
                id: id(1),
                state: LetterState::Resolved,
                reason: None,
                crash_attempts: 0,
                ended_well: true,
            };
            evidence.letters.push(resolved);
            note(evidence, 1, 0, Fact::Closed("resolved".to_owned()));
            note(evidence, 1, 0, Fact::Letter("retrying".to_owned()));
        };
        assert_eq!(broken(again), ["I8"]);
    }

    #[test]
    fn a_letter_that_ends_without_a_trace_breaks_i11() {
        // I11
        let gone = |state| {
            move |evidence: &mut Evidence| {
                let reason = Some("TIMEOUT".to_owned());
                evidence.letters.push(Held {
                    id: id(1),
                    state,
                    reason,
                    crash_attempts: 0,
                    ended_well: false,
                });
            }
        };
        assert_eq!(broken(gone(LetterState::Evicted)), ["I11"]);
        assert_eq!(broken(gone(LetterState::Resolved)), ["I11"]);
        assert_eq!(broken(|evidence| evidence.audit_broken = Some(3)), ["I11"]);
        let anonymous = ("op_1".to_owned(), String::new(), "why".to_owned());
        assert_eq!(broken(|evidence| evidence.operations.push(anonymous)), ["I11"]);
    }

    #[test]
    fn a_retry_before_its_time_breaks_i12_and_one_that_somebody_asked_for_does_not() {
        // I12
        let retried = |at, replay| {
            move |evidence: &mut Evidence| {
                let deadly = orders::deadly();
                note(evidence, deadly, 0, Fact::Due(1000));
                let payload = u64::from(deadly);
                note(evidence, deadly, at, Fact::Begun { attempt: 2, replay, payload });
            }
        };
        assert_eq!(broken(retried(999, false)), ["I12"]);
        assert_eq!(broken(retried(1000, false)), [""; 0]);
        assert_eq!(broken(retried(999, true)), [""; 0]);
    }

    #[test]
    fn anything_but_the_poison_that_is_left_breaks_the_story() {
        let left = |evidence: &mut Evidence| {
            let reason = Some("DEPENDENCY_UNAVAILABLE".to_owned());
            let state = LetterState::Dead;
            evidence.letters.push(Held { id: id(1), state, reason, crash_attempts: 0, ended_well: false });
        };
        assert_eq!(broken(left), ["story"]);
        let no_crash = |evidence: &mut Evidence| {
            let deadly = id(orders::deadly());
            let letter = evidence.letters.iter_mut().find(|letter| letter.id == deadly).unwrap();
            letter.crash_attempts = 0;
        };
        assert_eq!(broken(no_crash), ["story"]);
    }
}
