//! Verifies the guarantees after a demo, with pure functions of the evidence that are independent of the
//! engine.

use std::collections::{HashMap, HashSet};

use lazaret::LetterState;
use serde::Serialize;

use crate::evidence::{Evidence, StoredLetter};
use crate::journal::{Entry, Fact};
use crate::orders::{self, Poison};
use crate::worker::{CONSUMER, MAX_ATTEMPTS, MAX_CRASHES};

/// The maximum number of attempts of an order that a crash loses from memory: the first, whose retry
/// waits in memory, and the second, while it runs or its failure is being stored.
const ATTEMPTS_IN_MEMORY: u32 = 2;
/// The maximum number of breaches that are listed.
const MAX_BREACHES_SHOWN: usize = 5;

/// A guarantee, and whether it held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The id of the invariant, or `story` and `console` for the demo's own guarantees.
    pub id: &'static str,
    /// The guarantee.
    pub promise: &'static str,
    /// Whether it held.
    pub ok: bool,
    /// The evidence, or the breaches.
    pub seen: String,
}

/// Checks every guarantee.
pub(crate) fn check(evidence: &Evidence) -> Vec<Finding> {
    vec![
        no_loss(evidence),
        order(evidence),
        bounded(evidence),
        identity(evidence),
        one_letter(evidence),
        no_silent_removal(evidence),
        never_early(evidence),
        only_poison_remains(evidence),
        console_shows_the_causes(evidence),
    ]
}

fn finding(id: &'static str, promise: &'static str, seen: String, breaches: Vec<String>) -> Finding {
    let ok = breaches.is_empty();
    let named: Vec<String> = breaches.iter().take(MAX_BREACHES_SHOWN).cloned().collect();
    let more = breaches.len().saturating_sub(MAX_BREACHES_SHOWN);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    Finding { id, promise, ok, seen: if ok { seen } else { format!("{}{more}", named.join("; ")) } }
}

fn handled(evidence: &Evidence) -> HashSet<&str> {
    let done = evidence.journal.iter().filter(|entry| entry.fact == Fact::Done);
    done.map(|entry| entry.id.as_str()).collect()
}

fn open(evidence: &Evidence) -> HashMap<&str, &StoredLetter> {
    let open = evidence.letters.iter().filter(|letter| letter.state.is_open());
    open.map(|letter| (letter.id.as_str(), letter)).collect()
}

fn no_loss(evidence: &Evidence) -> Finding {
    let (handled, open) = (handled(evidence), open(evidence));
    let lost = evidence.sent.iter().filter(|sent| {
        let id = sent.id.as_str();
        !handled.contains(id) && !open.contains_key(id)
    });
    let lost = lost.map(|sent| format!("{} is neither handled nor stored as a letter", sent.id)).collect();
    let seen =
        format!("{} sent: {} handled, {} open letters", evidence.sent.len(), handled.len(), open.len());
    finding("I1", "no loss", seen, lost)
}

/// The progress of one order in the journal.
#[derive(Default)]
struct OrderProgress {
    /// The last incarnation that handled it.
    done: Option<u32>,
    /// The incarnation that is running an attempt.
    running: Option<u32>,
}

/// Checks the order per customer. No attempt starts while an earlier order of the customer is unhandled
/// or another attempt of the customer is running. An order is handled again only after a crash, or once
/// after the customer's lease was lost.
fn order(evidence: &Evidence) -> Finding {
    let mut place = HashMap::new();
    let customers = evidence.by_customer();
    for (customer, ids) in &customers {
        for (index, id) in ids.iter().enumerate() {
            place.insert(*id, (*customer, index));
        }
    }
    let mut progress = HashMap::<&str, OrderProgress>::new();
    // Counted in advance, because the journal may name the loss after the attempt that repeats an order.
    let mut lost = HashMap::<&str, u64>::new();
    for entry in evidence.journal.iter().filter(|entry| entry.fact == Fact::LeaseLost) {
        *lost.entry(&entry.id).or_default() += 1;
    }
    let (mut breaches, mut attempts, mut repeated) = (Vec::new(), 0_u64, 0_u64);
    for entry in &evidence.journal {
        let Some((customer, index)) = place.get(entry.id.as_str()) else { continue };
        match entry.fact {
            Fact::Begun { .. } => {
                attempts += 1;
                for (earlier, id) in customers[customer].iter().enumerate() {
                    let machine = progress.entry(id).or_default();
                    if earlier < *index && machine.done.is_none() {
                        breaches.push(format!(
                            "{} was attempted before {id} of {customer} was handled",
                            entry.id
                        ));
                    }
                    if machine.running == Some(entry.incarnation) {
                        breaches
                            .push(format!("{} was attempted while {id} of {customer} was running", entry.id));
                    }
                }
                let machine = progress.entry(&entry.id).or_default();
                match machine.done {
                    Some(incarnation) if incarnation == entry.incarnation => match lost.get_mut(customer) {
                        Some(left) if *left > 0 => (*left, repeated) = (*left - 1, repeated + 1),
                        _ => breaches.push(format!("{} was handled twice in one incarnation", entry.id)),
                    },
                    Some(_) => repeated += 1,
                    None => {}
                }
                machine.running = Some(entry.incarnation);
            }
            Fact::Done => {
                let machine = progress.entry(&entry.id).or_default();
                (machine.done, machine.running) = (Some(entry.incarnation), None);
            }
            Fact::Failed { .. } | Fact::Left => progress.entry(&entry.id).or_default().running = None,
            Fact::Due(_) | Fact::GaveUp | Fact::Letter(_) | Fact::Closed(_) | Fact::LeaseLost => {}
        }
    }
    let seen =
        format!("{attempts} attempts for {} customers, {repeated} repeated after a crash", customers.len());
    finding("I2", "order per customer", seen, breaches)
}

/// Checks the number of attempts, by the engine's attempt numbers and by the handler's own count of calls.
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
    let deaths = evidence.journal.iter().map(|entry| entry.incarnation).max().unwrap_or(1) - 1;
    let allowed = MAX_ATTEMPTS + ATTEMPTS_IN_MEMORY * deaths;
    for (id, calls) in calls.iter().filter(|(_, calls)| **calls > allowed) {
        breaches.push(format!("{id} was attempted {calls} times with {deaths} crashes"));
    }
    let called = calls.values().max().unwrap_or(&0);
    for letter in &evidence.letters {
        if letter.crash_attempts > MAX_CRASHES {
            breaches.push(format!("{} crashed the process {} times", letter.id, letter.crash_attempts));
        }
    }
    let seen = format!(
        "at most {most} of {MAX_ATTEMPTS} automatic attempts; at most {called} handler calls per order"
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
            breaches.push(format!("{} was delivered with a different payload", entry.id));
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
    // A letter may change its state any number of times, but it is closed only once.
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
    let counted = format!("{} letters of {} orders", evidence.letters.len(), seen.len());
    finding("I8", "one letter", counted, breaches)
}

fn no_silent_removal(evidence: &Evidence) -> Finding {
    let held: HashMap<&str, &StoredLetter> =
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
            breaches.push(format!("{} is {} without a matching history", letter.id, letter.state));
        }
    }
    if let Some(entry) = evidence.audit_broken {
        breaches.push(format!("audit entry {entry} was changed"));
    }
    for (id, who, why) in &evidence.operations {
        if who.is_empty() || why.is_empty() {
            breaches.push(format!("operation {id} has no actor or reason"));
        }
    }
    let acts = match evidence.audit_entries {
        1 => "1 audit entry".to_owned(),
        several => format!("{several} audit entries"),
    };
    let seen =
        format!("{resolved} letters closed, each with its history; {acts}, each with actor and reason");
    finding("I11", "no silent removal", seen, breaches)
}

/// A scheduled retry: when it is due, which attempt it follows, and the incarnation that scheduled it.
struct Waiting {
    due: i64,
    failed: u32,
    incarnation: u32,
}

/// Checks that no retry starts before it is due, in any incarnation, and that none starts unscheduled in
/// the incarnation of the failure. If a crash came before the failure was durable, the attempt is
/// repeated under its own number. That repetition is not a retry.
fn never_early(evidence: &Evidence) -> Finding {
    let mut attempts = HashMap::<&str, u32>::new();
    let mut waiting = HashMap::<&str, Waiting>::new();
    // The incarnation of each order's last failure, until its retry is scheduled.
    let mut undecided = HashMap::<&str, u32>::new();
    let (mut breaches, mut retries, mut repeated, mut latest) = (Vec::new(), 0_u64, 0_u64, 0_i64);
    for Entry { incarnation, at, id, fact } in &evidence.journal {
        match fact {
            Fact::Failed { .. } => {
                undecided.insert(id, *incarnation);
            }
            Fact::Due(due) => {
                undecided.remove(id.as_str());
                let failed = attempts.get(id.as_str()).copied().unwrap_or(0);
                waiting.insert(id, Waiting { due: *due, failed, incarnation: *incarnation });
            }
            Fact::Begun { attempt, replay, .. } => {
                attempts.insert(id, *attempt);
                if undecided.remove(id.as_str()) == Some(*incarnation) && !replay {
                    breaches.push(format!("{id} was retried as attempt {attempt} without a schedule"));
                }
                // Replays need not wait.
                let Some(scheduled) = waiting.remove(id.as_str()).filter(|_| !replay) else { continue };
                if *attempt <= scheduled.failed && *incarnation > scheduled.incarnation {
                    repeated += 1;
                    continue;
                }
                retries += 1;
                latest = latest.max(at - scheduled.due);
                if *at < scheduled.due {
                    breaches.push(format!(
                        "{id} was retried {} µs early, as attempt {attempt}",
                        scheduled.due - at
                    ));
                }
            }
            _ => {}
        }
    }
    let again =
        if repeated > 0 { format!("; {repeated} attempts repeated after a crash") } else { String::new() };
    let seen = format!("{retries} retries, at most {} ms late{again}", latest / 1000);
    finding("I12", "never early", seen, breaches)
}

/// Checks the demo's own guarantee. Poison orders are dead letters with the expected reason, later
/// orders of the same customers wait behind them, and no other letter is open.
fn only_poison_remains(evidence: &Evidence) -> Finding {
    let poison: HashMap<String, Poison> = orders::poison_orders()
        .filter_map(|number| Some((orders::id(number), orders::poison(number)?)))
        .collect();
    let customers: HashSet<String> = orders::poison_orders().map(orders::customer).collect();
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
            _ => breaches.push(format!("{} is {} with reason {:?}", letter.id, letter.state, letter.reason)),
        }
    }
    if dead != poison.len() {
        breaches.push(format!("{dead} of {} poison orders are dead letters", poison.len()));
    }
    let seen = format!("{dead} dead letters, {waiting} letters waiting behind them, no other open letters");
    finding("story", "only poison remains", seen, breaches)
}

/// Checks that the console responded during the outage, and showed the consumer and every group of the story.
fn console_shows_the_causes(evidence: &Evidence) -> Finding {
    let console = &evidence.console;
    let mut breaches = Vec::new();
    for (name, page) in [("overview", &console.overview), ("groups", &console.groups)] {
        if page.status != 200 {
            breaches.push(format!("the page {name} answered {}: {:.200}", page.status, page.text));
        }
    }
    if !console.overview.text.contains(CONSUMER) {
        breaches.push(format!("the overview does not name the consumer {CONSUMER}"));
    }
    let missing = console.fingerprints.iter().filter(|group| !console.groups.text.contains(group.as_str()));
    breaches.extend(missing.map(|group| format!("the page groups does not link to {group}")));
    if console.fingerprints.is_empty() {
        breaches.push("there were no groups to show".to_owned());
    }
    let seen = format!("the overview, and {} groups with a page each", console.fingerprints.len());
    finding("console", "the console shows the causes", seen, breaches)
}

fn is_dead_of(letter: &StoredLetter, poison: Poison) -> bool {
    let crashes = if poison == Poison::Crash { MAX_CRASHES } else { 0 };
    letter.state == LetterState::Dead
        && letter.reason.as_deref() == Some(poison.reason())
        && letter.crash_attempts == crashes
}

fn has_poison(owner: &HashMap<&str, &str>, customers: &HashSet<String>, letter: &StoredLetter) -> bool {
    owner.get(letter.id.as_str()).is_some_and(|customer| customers.contains(*customer))
}

#[cfg(test)]
mod tests;
