//! Partitions that come and go: rebalances, answered when the time has come.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use lazaret_core::Partition;
use lazaret_core::source::{SourceError, SourceEvent};
use rdkafka::consumer::Consumer;
use tokio::sync::oneshot;

use super::{Membership, TICK, enter, refused};
use crate::lookup::{self, Beginning, Failed, Purpose, Resets};
use crate::member::{Change, Clients, add_offset, assign, list_of, unassign};
use crate::slot::{Slot, Stage};
use crate::trouble::{Trouble, judge};

/// How long to wait before positions are looked up again.
const LOOKUP_REST: Duration = Duration::from_millis(500);
/// How long to wait for what follows when partitions were let go.
const FINISHING: Duration = Duration::from_millis(500);

/// A look-up that somebody waits for.
pub(super) struct Lookup {
    pub(super) purpose: Purpose,
    /// None when it is still to be asked.
    answer: Option<lookup::Answer>,
}

/// A rebalance that waits until the engine is done with some partitions.
pub(super) struct Going {
    /// All that the group wants back.
    pub(super) partitions: Vec<Partition>,
    /// Those that the engine still works on.
    pub(super) waiting: BTreeSet<Partition>,
    until: Instant,
}

impl Membership {
    /// Starts the next look-up, or repeats one that failed.
    pub(super) fn look_again(&mut self) {
        if self.lookup_rest.is_some_and(|until| Instant::now() < until) {
            return;
        }
        self.lookup_rest = None;
        if let Some(lookup) = &mut self.lookup {
            if lookup.answer.is_none()
                && let Some(clients) = self.clients.clone()
            {
                let purpose = lookup.purpose.clone();
                let resets = Resets { streams: self.reset, chain: self.chain.clone() };
                lookup.answer = Some(lookup::start(clients, self.member.clone(), purpose, resets));
            }
            return;
        }
        let wanted = std::mem::take(&mut self.rewinds);
        let held = self.slots.iter().filter(|slot| wanted.contains(&slot.partition));
        let places: Vec<_> = held.map(|slot| (slot.partition.clone(), slot.start)).collect();
        if !places.is_empty() {
            self.look_up(Purpose::Again(places));
        }
    }

    fn look_up(&mut self, purpose: Purpose) {
        self.lookup = Some(Lookup { purpose, answer: None });
        self.look_again();
    }

    pub(super) fn take_beginnings(&mut self) {
        let Some(answer) = self.lookup.as_mut().and_then(|lookup| lookup.answer.as_mut()) else { return };
        let answer = match answer.try_recv() {
            Ok(answer) => answer,
            Err(oneshot::error::TryRecvError::Empty) => return,
            Err(oneshot::error::TryRecvError::Closed) => {
                Err(Failed::Source(SourceError::temporary("positions could not be looked up")))
            }
        };
        let Some(Lookup { purpose, .. }) = self.lookup.take() else { return };
        match (answer, purpose) {
            (Ok(beginnings), Purpose::Come(_)) => self.come(beginnings),
            (Ok(beginnings), Purpose::Again(_)) => self.begin_again(beginnings),
            (Err(failed), purpose) => self.look_up_failed(purpose, failed),
        }
    }

    fn look_up_failed(&mut self, purpose: Purpose, failed: Failed) {
        match failed {
            Failed::Source(error) => self.complain(error),
            Failed::Client(error) => {
                let reason = error.to_string();
                // Not the client's matter: nobody but us repeats it.
                match judge(error, &reason, &self.options, false) {
                    Trouble::Told(error) => self.complain(error),
                    Trouble::Noted => {}
                }
            }
        }
        self.lookup_rest = Some(Instant::now() + LOOKUP_REST);
        match purpose {
            // The group waits for it.
            Purpose::Come(_) => self.lookup = Some(Lookup { purpose, answer: None }),
            // The group may want it back before that is repeated.
            Purpose::Again(places) => {
                self.rewinds.extend(places.into_iter().map(|(partition, _)| partition));
            }
        }
    }

    /// Takes partitions whose beginnings are known.
    fn come(&mut self, beginnings: Vec<Beginning>) {
        let Some(Clients { group, reading }) = self.clients.clone() else { return };
        let partitions: Vec<Partition> = beginnings.iter().map(|b| b.partition.clone()).collect();
        self.forget(&partitions);
        if let Err(error) = assign(&group, &partitions) {
            // Who is told nothing waits for nothing: the group will say again what it wants.
            tracing::warn!(%error, "an assignment was not taken");
            return;
        }
        let mut list = list_of([]);
        let mut assignments = Vec::new();
        for beginning in beginnings {
            add_offset(&mut list, &beginning.partition, beginning.start, "");
            // A queue of its own comes first, so that no record comes by the common one.
            let Some(slot) = Slot::new(&reading, &self.reading, beginning, self.chain.as_ref()) else {
                return self.complain(SourceError::permanent("the client has no queue for a partition"));
            };
            assignments.push(slot.assignment());
            enter(self.transactions.as_deref(), &slot, self.metadata_limit);
            self.slots.push(slot);
        }
        if let Err(error) = reading.incremental_assign(&list) {
            let context = format!("the client does not read its partitions: {error}");
            return self.complain(SourceError::permanent(context).with_source(error));
        }
        self.joined = true;
        self.ended = false;
        self.be_well();
        if !assignments.is_empty() {
            self.ready.push_back(SourceEvent::Assigned(assignments));
        }
    }

    /// Stops reading partitions.
    fn forget(&mut self, partitions: &[Partition]) {
        let (gone, kept) = self.slots.drain(..).partition(|slot| partitions.contains(&slot.partition));
        self.slots = kept;
        let gone: Vec<Slot> = gone;
        if let Some(transactions) = &self.transactions {
            gone.iter().for_each(|slot| transactions.ledger().go(&slot.partition));
        }
        if let Some(clients) = self.clients.as_ref().filter(|_| !gone.is_empty())
            && let Err(error) =
                clients.reading.incremental_unassign(&list_of(gone.iter().map(|slot| &slot.partition)))
        {
            tracing::warn!(%error, "partitions are still read that are gone");
        }
    }

    fn begin_again(&mut self, beginnings: Vec<Beginning>) {
        let mut assignments = Vec::new();
        for beginning in beginnings {
            let slot = self.slots.iter_mut().find(|slot| slot.partition == beginning.partition);
            if let Some(slot) = slot.filter(|slot| slot.stage == Stage::Rewinding) {
                slot.begin_again(beginning);
                enter(self.transactions.as_deref(), slot, self.metadata_limit);
                assignments.push(slot.assignment());
            }
        }
        self.ended = false;
        if !assignments.is_empty() {
            self.ready.push_back(SourceEvent::Assigned(assignments));
        }
    }

    // Partitions that go.

    /// Acts on what the group wants, one thing after the other. Says whether it wanted anything.
    pub(super) fn take_changes(&mut self) -> bool {
        let mut any = false;
        while self.lookup.is_none()
            && self.going.is_none()
            && let Some(change) = self.member.next_change()
        {
            any = true;
            match change {
                Change::Come(partitions) if partitions.is_empty() => self.come(Vec::new()),
                Change::Come(partitions) => self.look_up(Purpose::Come(partitions)),
                Change::Go { partitions, lost } => self.go(partitions, lost),
            }
        }
        any
    }

    fn go(&mut self, partitions: Vec<Partition>, lost: bool) {
        let ours = self.slots.iter_mut().filter(|slot| partitions.contains(&slot.partition));
        let ours: Vec<Partition> = ours
            .map(|slot| {
                slot.stage = Stage::Going;
                slot.partition.clone()
            })
            .collect();
        if lost || ours.is_empty() {
            return self.lose(&partitions, ours);
        }
        let until = Instant::now() + self.options.max_poll_interval() / 4 * 3;
        let waiting = ours.iter().cloned().collect();
        self.going = Some(Going { partitions, waiting, until });
        self.ready.push_back(SourceEvent::Revoking(ours));
    }

    /// Lets go of partitions at once. The engine is told of those that it works on.
    pub(super) fn lose(&mut self, partitions: &[Partition], told: Vec<Partition>) {
        self.forget(partitions);
        if !told.is_empty() {
            self.ready.push_back(SourceEvent::Lost(told));
        }
        self.let_go(partitions);
    }

    fn let_go(&self, partitions: &[Partition]) {
        if let Some(clients) = &self.clients
            && let Err(error) = unassign(&clients.group, partitions)
        {
            tracing::warn!(%error, "partitions were not given back");
        }
        self.be_well();
    }

    /// Waits a little for what the group asks next. A member that let go is given what it gets instead, be it nothing, and
    /// only when it has taken that does it join again, and the others get what it let go.
    pub(super) async fn finish_rebalance(&mut self) {
        let until = Instant::now() + FINISHING;
        while self.lookup.is_none() && Instant::now() < until {
            self.pump();
            if self.take_changes() {
                return;
            }
            tokio::select! {
                () = self.wake.notified() => {}
                () = tokio::time::sleep(TICK) => {}
            }
        }
    }

    /// Gives up waiting for the engine before the group gives up waiting for us.
    pub(super) fn take_overdue(&mut self) {
        if let Some(Going { partitions, waiting, .. }) =
            self.going.take_if(|going| Instant::now() >= going.until)
        {
            tracing::warn!("partitions were not let go in time; what was not committed will be repeated");
            self.lose(&partitions, waiting.into_iter().collect());
        }
    }

    /// The group does not know us any more: whatever we hold is lost. Joins anew.
    pub(super) fn start_over(&mut self) {
        let ours: Vec<Partition> = self.slots.iter().map(|slot| slot.partition.clone()).collect();
        let going = self.going.take().map(|going| going.partitions).unwrap_or_default();
        self.lookup.take_if(|lookup| matches!(lookup.purpose, Purpose::Again(_)));
        self.rewinds.clear();
        self.forget(&ours);
        if !ours.is_empty() {
            self.ready.push_back(SourceEvent::Lost(ours));
        }
        if !going.is_empty() {
            self.let_go(&going);
        }
        if let Some(clients) = &self.clients {
            clients.group.unsubscribe();
        }
        if let Err(error) = self.subscribe() {
            self.complain(refused(error));
        }
    }
}
