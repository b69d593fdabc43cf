//! Checks the invariants of the design against the history of a run and the store.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use jiff::SignedDuration;
use lazaret_core::policy::{OnDead, Strategy};
use lazaret_core::store::AuditEntry;
use lazaret_core::{
    Clock, Letter, LetterId, LetterState, Message, MessageId, Reason, SequenceId, Timestamp, Verdict,
};

use crate::history::Record;
use crate::plan::Script;
use crate::world::{Process, World};

/// Returns `true` for a letter that left its sequence when it died.
pub(crate) fn has_left(letter: &Letter) -> bool {
    letter.sequence.origin().is_some()
}

impl World {
    /// I5: the message is the one that was published.
    pub(crate) fn check_identity(&self, message: &Message) {
        let name = self.name(message);
        let same = {
            let history = self.history();
            let copies = history.copies.get(&name).into_iter().flatten();
            let original = history.messages.get(&name).map(|original| &original.message);
            let message = Message { hop: None, ..message.clone() };
            original.into_iter().chain(copies).any(|published| {
                *published == message || self.plan.recreations.is_renamed(published, &message)
            })
        };
        if !same {
            self.violated("I5", &format!("{name} is not what was published"));
        }
    }

    /// I2 and I6: no earlier message of the sequence is unsettled or open, no other attempt of the sequence runs, and no
    /// later message was handled since this one was last delivered. For a letter that left its sequence, this ended with its death: it
    /// has a sequence of its own.
    pub(crate) async fn check_order(
        &self,
        process: &Process,
        component: usize,
        message: &Message,
        letter: Option<&Letter>,
    ) {
        if matches!(self.plan.options.retry.strategy, Strategy::Unordered | Strategy::Topics) {
            return;
        }
        if let Some(letter) = letter.filter(|letter| has_left(letter)) {
            return self.check_left(component, letter);
        }
        let (live, name) = (letter.is_none(), self.name(message));
        let (earlier, overlap, overtaken) = {
            let history = self.history();
            let Some(original) = history.messages.get(&name) else { return };
            let ids = &history.sequences[&original.sequence];
            let record = |id: &MessageId| history.records.get(&(component, id.clone()));
            let settled = |id: &MessageId| {
                record(id).is_some_and(|record| record.handled_at.is_some() || record.acknowledged)
            };
            // What became of a copy may have settled the original.
            let earlier = ids[..original.place].iter().filter(|id| !history.copies.contains_key(*id));
            let earlier = earlier.filter(|id| !history.are_apart(component, id, &name));
            let earlier: Vec<(MessageId, bool)> = earlier.map(|id| (id.clone(), settled(id))).collect();
            let overlap = history.running.iter().find(|other| {
                other.component == component
                    && other.sequence == original.sequence
                    // A process that lost the partition may not have noticed yet, and cannot settle anything.
                    && !(other.live && self.log.owner(other.partition) != Some(other.member))
                    && !(live && self.log.owner(message.position.partition) != Some(process.member))
                    // One owner reads a partition, whatever its incarnation. A letter of a deleted message may come late.
                    && (live && other.live || !history.are_apart(component, &other.message, &name))
            });
            let overlap = overlap.map(|other| format!("{} by process {}", other.message, other.process));
            let overtaken = ids[original.place + 1..].iter().find(|id| {
                let handled_at = record(id).and_then(|record| record.handled_at);
                let mine = record(&name);
                // A message that was handled before and is redelivered after a crash repeats what was done in order.
                let first = !mine.is_some_and(|record| {
                    record.handled_at.is_some() || record.acknowledged || record.evicted
                });
                // A copy of the later one may have been handled, in another sequence.
                let copied = history.copies.contains_key(*id);
                let overtakes = handled_at.is_some() && handled_at > original.delivered_at;
                first && !copied && overtakes && !history.are_apart(component, id, &name)
            });
            (earlier, overlap, overtaken.cloned())
        };
        if let Some(other) = overlap {
            self.violated("I6", &format!("{name} starts while {other} is being handled"));
        }
        if let Some(later) = overtaken {
            self.violated("I2", &format!("{name} starts after the later {later} was handled"));
        }
        let ids: Vec<MessageId> = earlier.iter().map(|(id, _)| id.clone()).collect();
        let states = self.states(component, &ids);
        for ((id, settled), state) in earlier.iter().zip(states) {
            match state {
                Some(state) if state.is_open() && self.continues() && self.letter_has_left(component, id) => {
                }
                Some(state) if state.is_open() => {
                    self.violated("I2", &format!("{name} starts while the earlier {id} is {state}"));
                }
                None if !settled => {
                    self.violated("I2", &format!("{name} starts while the earlier {id} is not settled"));
                }
                _ => {}
            }
        }
    }

    /// I6: a letter that left its sequence is tried by one process at a time, and the policy let it go.
    fn check_left(&self, component: usize, letter: &Letter) {
        let running = |other: &&crate::history::Running| {
            other.component == component && other.sequence == letter.sequence
        };
        let other = self.history().running.iter().find(running).map(|other| other.process);
        if let Some(process) = other {
            self.violated("I6", &format!("{} starts while process {process} handles it", letter.message.id));
        }
        if !self.continues() {
            self.violated("I2", &format!("{} left a sequence that it has to hold", letter.message.id));
        }
    }

    /// Returns `true` when dead letters leave their sequences.
    fn continues(&self) -> bool {
        let letters = self.plan.options.dead_letter.as_ref();
        letters.is_some_and(|letters| letters.on_dead.on_dead == OnDead::Continue)
    }

    fn letter_has_left(&self, component: usize, id: &MessageId) -> bool {
        self.letter(component, id).is_some_and(|letter| has_left(&letter))
    }

    /// I12: no retry runs before its due time.
    pub(crate) fn check_due(
        &self,
        component: usize,
        message: &Message,
        letter: Option<&Letter>,
        replay: bool,
    ) {
        let clock = if self.plan.drift { self.store_time() } else { self.clock.now() };
        let (now, name) = (self.now(), self.name(message));
        let due = letter
            .filter(|letter| letter.state == LetterState::Retrying && !self.plan.clock_steps)
            .and_then(|letter| letter.due_at);
        let hop = message.hop.as_ref().filter(|_| !self.plan.clock_steps).map(|hop| hop.due_at);
        if !replay && due.or(hop).is_some_and(|due| clock < due) {
            self.violated("I12", &format!("{name} was retried before it was due"));
        }
        let retry = &self.plan.options.retry;
        let shortest = retry.initial_delay.mul_f64(1.0 - retry.jitter);
        let history = self.history();
        let record = history.records.get(&(component, name.clone()));
        let early = record.is_some_and(|record| {
            let since = record.last_failed_at.map(|failed| now.duration_since(failed));
            let since = since.and_then(|since| std::time::Duration::try_from(since).ok());
            // A redelivery after a crash starts a new count, and a released letter is due at once.
            record.uncounted == 0 && record.released == 0 && since.is_some_and(|since| since < shortest)
        });
        drop(history);
        if early && !replay && !self.plan.topics {
            self.violated("I12", &format!("{name} was retried sooner than its shortest delay"));
        }
    }

    /// I6: no letter was made of a message that its owner had handled and that was not redelivered since.
    pub(crate) fn check_letter(&self, component: usize, message: &Message, letter: Option<&Letter>) {
        // The times of the store say nothing about an order when its clock was set back.
        let Some(letter) = letter.filter(|_| !self.plan.clock_steps) else { return };
        // When the broker's answer was lost, the message is relayed and stored: each of the two runs.
        let name = self.name(message);
        if self.is_in_broker(component, &name, None) {
            return;
        }
        let late = {
            let history = self.history();
            let delivered_at = history.messages.get(&name).and_then(|original| original.delivered_at);
            let record = history.records.get(&(component, name.clone()));
            let handled_at = record.and_then(|record| record.handled_at);
            handled_at.is_some()
                && handled_at > delivered_at
                && Some(letter.enqueued_at - self.skew()) > handled_at
        };
        if late {
            self.violated("I6", &format!("{name} was handled, and a fenced owner made a letter of it"));
        }
    }

    /// I8: a message that has a letter is not handled live.
    pub(crate) async fn check_handed_off(
        &self,
        process: &Process,
        component: usize,
        message: &Message,
        live: bool,
    ) {
        if !live {
            return;
        }
        let name = self.name(message);
        let found = self.states(component, std::slice::from_ref(&name));
        let Some(Some(state)) = found.first() else { return };
        if self.plan.topics && self.is_of_later_copy(process, component, message) {
            return;
        }
        self.violated("I8", &format!("{name} is handled live and has a letter that is {state}"));
    }

    /// A message that was relayed may be delivered again, because its position was not committed; or it is relayed and stored,
    /// because the broker's answer was lost. The letter of the one is found if it is older than the assignment of the other's
    /// partition. Returns `true` when it may be younger.
    fn is_of_later_copy(&self, process: &Process, component: usize, message: &Message) -> bool {
        let queue = &self.queues[component];
        let letter = self.run(self.store.get(queue, LetterId::of(queue, &message.id))).unwrap_or_default();
        let key = (process.number, message.place().1.partition);
        let assigned = self.history().assigned.get(&key).copied();
        let (Some(letter), Some(assigned)) = (letter, assigned) else { return true };
        // The times of the store say nothing about an order when its clock was set back.
        self.plan.clock_steps || letter.enqueued_at - self.skew() >= assigned
    }

    /// I1: everything up to a committed position is settled.
    pub(crate) async fn check_commit(&self, partition: u32, offset: u64) {
        if self.retry_partition() == Some(partition) {
            return self.check_retry_commit(offset);
        }
        let from = self.history().checked.insert(partition, offset).map_or(0, |last| last + 1);
        let open = self.unsettled(partition, &(from..=offset));
        self.check_letters("committed", open).await;
    }

    /// I1: the ranges that a commit reports as settled beyond its position are settled.
    pub(crate) async fn check_settled(&self, partition: u32, range: RangeInclusive<u64>) {
        if self.retry_partition() == Some(partition) {
            return;
        }
        let open = self.unsettled(partition, &range);
        self.check_letters("settled beyond the position", open).await;
    }

    /// A process that returns a partition in time has committed what it settled: the next owner repeats nothing.
    pub(crate) fn check_returned(&self, process: &Process, partitions: &[u32]) {
        for partition in partitions {
            if self.log.owner(*partition) != Some(process.member) {
                continue;
            }
            let committed = self.log.committed(*partition);
            let repeated = {
                let history = self.history();
                let later = history.messages.iter().filter(|(_, original)| {
                    let position = &original.message.position;
                    original.incarnation == history.incarnation
                        && position.partition == *partition
                        && Some(position.offset) > committed
                });
                let next = later.min_by_key(|(_, original)| original.message.position.offset);
                let settled = |id: &MessageId| {
                    (0..self.queues.len()).all(|component| {
                        let record = history.records.get(&(component, id.clone()));
                        record.is_some_and(|record| {
                            record.settled_by == Some(process.number)
                                && record.processes.contains(&process.number)
                        })
                    })
                };
                next.map(|(id, _)| id.clone()).filter(settled)
            };
            if let Some(id) = repeated {
                let text = format!("process {} settled {id} and left without a commit", process.number);
                self.violated("commit", &text);
            }
        }
    }

    /// Messages in this range that no handler has settled, by component.
    fn unsettled(&self, partition: u32, range: &RangeInclusive<u64>) -> Vec<(usize, MessageId)> {
        let history = self.history();
        let ids = history.messages.iter().filter(|(_, original)| {
            let position = &original.message.position;
            original.incarnation == history.incarnation
                && position.partition == partition
                && range.contains(&position.offset)
        });
        let mut open = Vec::new();
        for (id, _) in ids {
            for component in 0..self.queues.len() {
                let record = history.records.get(&(component, id.clone()));
                if !record.is_some_and(|record| record.handled_at.is_some() || record.acknowledged) {
                    open.push((component, id.clone()));
                }
            }
        }
        open
    }

    async fn check_letters(&self, what: &str, messages: Vec<(usize, MessageId)>) {
        for (component, id) in messages {
            let found = self.states(component, std::slice::from_ref(&id));
            let has_letter = matches!(found.first(), Some(Some(_)));
            if !has_letter && !self.is_in_broker(component, &id, None) {
                self.violated("I1", &format!("{id} was {what} and is not settled in component {component}"));
            }
        }
    }

    /// Returns `true` when the letter of this message has failed because a lease was lost.
    fn lost_lease(&self, component: usize, id: &MessageId) -> bool {
        let letter = self.letter(component, id);
        letter.and_then(|letter| letter.cause).is_some_and(|cause| cause.reason == Reason::CRASHED)
    }

    /// Returns `true` when letters expire during a run.
    fn has_ttl(&self) -> bool {
        let ttl = self.plan.options.dead_letter.as_ref().and_then(|options| options.ttl);
        ttl.is_some_and(|ttl| ttl < std::time::Duration::from_secs(3_600))
    }

    /// I11: no letter expires before its time, and none that only waited.
    fn check_expiries(&self, audit: &[AuditEntry]) {
        let untried =
            |entry: &&AuditEntry| entry.action == "expire" && entry.before.as_deref() == Some("waiting");
        if let Some(entry) = audit.iter().find(untried) {
            self.violated("I11", &format!("letter {} expired while it waited behind others", entry.subject));
        }
        let ttl = self.plan.options.dead_letter.as_ref().and_then(|options| options.ttl);
        let Some(ttl) = ttl.filter(|_| !self.plan.clock_steps) else { return };
        let messages: Vec<(MessageId, Timestamp)> = {
            let history = self.history();
            let all = history.messages.iter();
            all.filter_map(|(id, original)| Some((id.clone(), original.first_delivered_at?))).collect()
        };
        // Letters expire by the time that the engine wrote: its own, or that of the store.
        let ahead = if self.plan.drift { self.skew() } else { SignedDuration::ZERO };
        let components = 0..self.queues.len();
        let all = components.flat_map(|component| messages.iter().map(move |message| (component, message)));
        for (component, (message, delivered_at)) in all {
            let Some(subject) = self.letter_id(component, message) else { continue };
            let expired = audit.iter().rfind(|entry| entry.action == "expire" && entry.subject == subject);
            // No letter is older than the first delivery of its message, or of a copy.
            let early = expired.is_some_and(|entry| entry.at - ahead < *delivered_at + ttl);
            if early && !self.has_copies(message) {
                self.violated("I11", &format!("{message} expired before its time"));
            }
        }
    }

    /// I1, I3 and I11: at the end of the run every message is handled, or is a letter in a state that the run explains.
    pub(crate) async fn check_end(&self) {
        let ids: Vec<(MessageId, u64, SequenceId)> = {
            let history = self.history();
            let all = history.messages.iter();
            all.map(|(id, o)| (id.clone(), o.number, o.sequence.clone())).collect()
        };
        let audit = self.run(self.store.audit(0, usize::MAX)).unwrap_or_default();
        self.check_expiries(&audit);
        let audited: BTreeSet<String> = audit.into_iter().map(|entry| entry.subject).collect();
        for component in 0..self.queues.len() {
            let names: Vec<MessageId> = ids.iter().map(|(id, _, _)| id.clone()).collect();
            let states = self.states(component, &names);
            let healthy = |sequence: &SequenceId| {
                let mut others = ids.iter().filter(|(_, _, s)| s == sequence);
                others.all(|(_, number, _)| Script::draw(&self.plan, *number, component).is_healthy())
            };
            // By an operator, by crashes that count as attempts, by a lease that was lost before its attempt began, or by a copy.
            let changed = |sequence: &SequenceId| {
                let (all, has_copies) = {
                    let history = self.history();
                    let mut copies = history.copies.values().flatten();
                    let has_copies = copies.any(|copy| SequenceId::by_key(copy) == *sequence);
                    (history.sequences[sequence].clone(), has_copies)
                };
                // The letter of a copy is that of its original, and waits in the sequence of one of them.
                has_copies
                    || all.iter().any(|id| {
                        let (known, copied) = {
                            let history = self.history();
                            let record = history.records.get(&(component, id.clone()));
                            let crashed = |record: &Record| self.plan.recorder && record.crashes > 0;
                            let known = record.is_some_and(|record| record.changed || crashed(record));
                            (known, history.copies.contains_key(id))
                        };
                        known || copied || self.lost_lease(component, id)
                    })
            };
            for ((id, number, sequence), state) in ids.iter().zip(states) {
                let (settled, handled, acted, skipped, deleted) = {
                    let history = self.history();
                    let record = history.records.get(&(component, id.clone()));
                    let handled = record.is_some_and(|record| record.handled_at.is_some());
                    (
                        handled || record.is_some_and(|record| record.acknowledged),
                        handled,
                        record.is_some_and(|record| record.evicted),
                        record.is_some_and(|record| record.skipped),
                        history.is_deleted(id),
                    )
                };
                match state {
                    // Its user deleted it before it was settled.
                    None if deleted => {}
                    None if !settled && !self.history().dead_in_topic.contains(&(component, id.clone())) => {
                        self.violated("I1", &format!("{id} is lost"));
                    }
                    Some(state) if !state.is_open() => {
                        let script = Script::draw(&self.plan, *number, component);
                        let explained = match state {
                            LetterState::Resolved => settled || acted,
                            LetterState::Evicted => acted,
                            LetterState::Expired => self.has_ttl(),
                            LetterState::Skipped => skipped || script == Script::Refuses(Verdict::Skip),
                            _ => false,
                        };
                        if !explained {
                            self.violated("I11", &format!("{id} is {state} without a reason"));
                        }
                        let by_itself = state == LetterState::Resolved && settled;
                        let letter = self.letter_id(component, id);
                        if !by_itself && !letter.is_some_and(|letter| audited.contains(&letter)) {
                            self.violated("I11", &format!("{id} is {state} without a line in the audit"));
                        }
                    }
                    Some(state) if state.is_open() && healthy(sequence) && !handled && !changed(sequence) => {
                        self.violated("I3", &format!("{id} is {state} in a sequence without failures"));
                    }
                    _ => {}
                }
            }
        }
    }
}
