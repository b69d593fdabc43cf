//! The checks of what a demo leaves behind. Pure functions of the evidence: the engine is not asked.

use std::collections::{HashMap, HashSet};

use lazaret::LetterState;
use serde::Serialize;

use crate::evidence::{Evidence, Held};
use crate::journal::{Entry, Fact};
use crate::orders::{self, Poison};
use crate::worker::{MAX_ATTEMPTS, MAX_CRASHES};

/// Of how many attempts of an order a process that dies takes the knowledge with it: the first, whose retry waits in memory,
/// and the second, as long as it runs or its failure is on its way to the store.
const IN_MEMORY: u32 = 2;
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
struct OperationMachine {
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
    let mut courses = HashMap::<&str, OperationMachine>::new();
    let (mut breaches, mut attempts, mut repeated) = (Vec::new(), 0_u64, 0_u64);
    for entry in &evidence.journal {
        let Some((customer, index)) = place.get(entry.id.as_str()) else { continue };
        match entry.fact {
            Fact::Begun { .. } => {
                attempts += 1;
                for (earlier, id) in customers[customer].iter().enumerate() {
                    let machine = courses.entry(id).or_default();
                    if earlier < *index && machine.done.is_none() {
                        breaches
                            .push(format!("{} was tried before {id} of {customer} was handled", entry.id));
                    }
                    if machine.running == Some(entry.life) {
                        breaches.push(format!("{} was tried while {id} of {customer} was", entry.id));
                    }
                }
                let machine = courses.entry(&entry.id).or_default();
                match machine.done {
                    Some(life) if life == entry.life => {
                        breaches.push(format!("{} was handled twice in one life", entry.id));
                    }
                    Some(_) => repeated += 1,
                    None => {}
                }
                machine.running = Some(entry.life);
            }
            Fact::Done => {
                let machine = courses.entry(&entry.id).or_default();
                (machine.done, machine.running) = (Some(entry.life), None);
            }
            Fact::Failed { .. } => courses.entry(&entry.id).or_default().running = None,
            Fact::Due(_) | Fact::GaveUp | Fact::Letter(_) | Fact::Closed(_) => {}
        }
    }
    let seen = format!(
        "{attempts} attempts for the {} customers who ordered, {repeated} repeated after a death",
        customers.len()
    );
    finding("I2", "order per customer", seen, breaches)
}

/// The engine's number of an attempt is what it believes. How often the handler was called is what happened.
fn bounded(evidence: &Evidence) -> Finding {
    let (mut most, mut breaches) = (0, Vec::new());
    let mut calls = HashMap::<&str, u32>::new();
    for entry in &evidence.journal {
        if let Fact::Begun { attempt, replay: false, .. } = entry.fact {
            most = most.max(attempt);
            *calls.entry(&entry.id).or_default() += 1;
            if attempt > MAX_ATTEMPTS {
                breaches.push(format!("{} got attempt {attempt}", entry.id));
            }
        }
    }
    let deaths = evidence.journal.iter().map(|entry| entry.life).max().unwrap_or(1) - 1;
    let allowed = MAX_ATTEMPTS + IN_MEMORY * deaths;
    for (id, calls) in calls.iter().filter(|(_, calls)| **calls > allowed) {
        breaches.push(format!("{id} was tried {calls} times with {deaths} deaths"));
    }
    let called = calls.values().max().unwrap_or(&0);
    for letter in &evidence.letters {
        if letter.crash_attempts > MAX_CRASHES {
            breaches.push(format!("{} killed the process {} times", letter.id, letter.crash_attempts));
        }
    }
    let seen = format!(
        "at most {most} of {MAX_ATTEMPTS} automatic attempts; the handler was called at most {called} times"
    );
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
    let acts = match evidence.audit_entries {
        1 => "1 audited act".to_owned(),
        several => format!("{several} audited acts"),
    };
    let seen = format!("{resolved} letters closed, each with its history; {acts}, each with who and why");
    finding("I11", "nothing vanishes", seen, breaches)
}

/// A retry that waits: when it is due, which attempt it follows, and in which life that was told.
struct Waiting {
    due: i64,
    failed: u32,
    life: u32,
}

/// No retry begins before its time, in this life of the process or a later one, nor without one in the same life. When the process dies before a failure is
/// durable, the attempt is repeated under its own number: that is no retry, and needs a death in between.
fn never_early(evidence: &Evidence) -> Finding {
    let mut attempts = HashMap::<&str, u32>::new();
    let mut waiting = HashMap::<&str, Waiting>::new();
    // In which life an order failed that has no time for its retry yet.
    let mut undecided = HashMap::<&str, u32>::new();
    let (mut breaches, mut retries, mut repeated, mut latest) = (Vec::new(), 0_u64, 0_u64, 0_i64);
    for Entry { life, at, id, fact } in &evidence.journal {
        match fact {
            Fact::Failed { .. } => {
                undecided.insert(id, *life);
            }
            Fact::Due(due) => {
                undecided.remove(id.as_str());
                let failed = attempts.get(id.as_str()).copied().unwrap_or(0);
                waiting.insert(id, Waiting { due: *due, failed, life: *life });
            }
            Fact::Begun { attempt, replay, .. } => {
                attempts.insert(id, *attempt);
                if undecided.remove(id.as_str()) == Some(*life) && !replay {
                    breaches.push(format!("{id} was tried again, as attempt {attempt}, and was never due"));
                }
                // What somebody asks for need not wait.
                let Some(told) = waiting.remove(id.as_str()).filter(|_| !replay) else { continue };
                if *attempt <= told.failed && *life > told.life {
                    repeated += 1;
                    continue;
                }
                retries += 1;
                latest = latest.max(at - told.due);
                if *at < told.due {
                    breaches.push(format!("{id} was tried {} µs early, as attempt {attempt}", told.due - at));
                }
            }
            _ => {}
        }
    }
    let again =
        if repeated > 0 { format!("; {repeated} attempts repeated after a death") } else { String::new() };
    let seen = format!("{retries} retries, the latest {} ms after its time{again}", latest / 1000);
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
                waiting += 1;
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
mod tests;
