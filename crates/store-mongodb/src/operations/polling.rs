//! Handing out the letters of operations, and doing acts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bson::{Document, doc};
use futures_util::future;
use lazaret_core::letter::LetterId;
use lazaret_core::store::rules::{
    self, ItemAction, ItemView, LeaseKind, Pending, Poll, PollDecision, PollStep, StageCursor,
};
use lazaret_core::store::{
    Action, Claim, Operation, OperationId, OperationMachine, Outcome, PayloadDigest, PolledWork, Result,
};
use lazaret_core::{QueueName, SequenceId, Timestamp};

use crate::commit::View;
use crate::database::{by_ids, project};
use crate::documents::left::{Left, OutcomeDoc};
use crate::documents::letter::Held;
use crate::documents::plan::Begun;
use crate::documents::sequence::{SequenceDoc, sequence_key};
use crate::indexes::is_above_zero;
use crate::leases::lease_head;
use crate::store::MongoStore;
use crate::values::uint;

/// Maximum number of letters without an outcome that are read at once, those in flight included (I7).
const PAGE: usize = 512;
/// How many letters the first page has beside twice as many as are asked for: most of those in flight.
const FIRST_PAGE: usize = 64;
/// Number of sequences that are loaded together at least.
const AT_ONCE: usize = 64;

/// One call: who asks, and what it has handed out.
struct Poller<'a> {
    store: &'a MongoStore,
    queue: &'a QueueName,
    owner: &'a str,
    lease: Duration,
    now: Timestamp,
    limit: usize,
    /// Whether there are several operations, which are served in turns.
    takes_turns: bool,
    poll: Poll,
    /// Number of letters that were leased for the operation that is being served, and are not deducted from its rate yet.
    unspent: u64,
}

/// What a poll has read and decided ahead.
#[derive(Default)]
struct Ahead {
    items: VecDeque<(Pending, SequenceId)>,
    /// What was decided, by ordinal.
    turns: BTreeMap<u64, Turn>,
    /// Number of pages that were read.
    pages: usize,
    /// Whether no letters are behind the page.
    is_last: bool,
}

/// What was decided about a letter of an operation.
enum Turn {
    /// Its sequence was leased.
    Tried(Box<Claim>),
    /// The act was done.
    Acted,
    Postpone,
    Skip,
    /// It has its outcome by now: an interrupted call had left that to be written.
    Pass,
}

impl MongoStore {
    pub(crate) async fn poll(
        &self,
        queue: &QueueName,
        owner: &str,
        lease: Duration,
        limit: usize,
    ) -> Result<PolledWork> {
        let now = self.now().await?;
        // The one served longest ago comes first. All are read: none says of which queues its letters are, and a limit would leave out those
        // of this queue behind as many of others.
        let (pending, fields) = (doc! { "pending": is_above_zero() }, doc! { "operation.id": 1 });
        let sort = doc! { "servedAt": 1, "operation.id": 1 };
        let begun: Vec<Begun> = project(&self.db().plans, pending, fields, sort).await?;
        let poll = Poll::new(limit, now);
        let takes_turns = begun.len() > 1;
        let mut poller =
            Poller { store: self, queue, owner, lease, now, limit, takes_turns, poll, unspent: 0 };
        for Begun { plan, operation } in begun {
            if self.next_pending(plan, queue, 0).await?.is_some() {
                Box::pin(poller.serve(OperationId(uint(operation.id)), plan)).await?;
            }
        }
        Ok(poller.poll.finish())
    }
}

impl Poller<'_> {
    /// Moves an operation on, and returns it as it stands then.
    async fn advanced(&self, id: OperationId) -> Result<Option<OperationMachine>> {
        while let Some(mut view) = self.store.load_plan(id).await? {
            let before = view.machine.clone();
            self.store.advance(&mut view, self.now).await?;
            let machine = view.machine.clone();
            if machine == before || self.store.commit_plan(view).await? {
                return Ok(Some(machine));
            }
        }
        Ok(None)
    }

    /// Changes the machine of an operation.
    async fn with_machine(
        &self,
        id: OperationId,
        change: impl Fn(&mut OperationMachine) + Send,
    ) -> Result<()> {
        while let Some(mut view) = self.store.load_plan(id).await? {
            change(&mut view.machine);
            if self.store.commit_plan(view).await? {
                break;
            }
        }
        Ok(())
    }

    /// Does for one operation what can be done now.
    async fn serve(&mut self, id: OperationId, plan: i64) -> Result<()> {
        let given = self.poll.given();
        let Some(mut machine) = self.advanced(id).await? else { return Ok(()) };
        match self.poll.begin(&machine) {
            PollDecision::Nothing => {}
            PollDecision::Run(stage) => {
                let stopped = self.run(&mut machine, plan, stage).await?;
                let left = self.store.next_pending(plan, self.queue, 0).await?.is_some();
                self.poll.end(&machine, stopped, left);
            }
            PollDecision::Sweep => self.sweep(id, plan).await?,
        }
        // The only operation needs no turn. One that begins later was never served, and comes first.
        if self.poll.given() > given && self.takes_turns {
            self.store.serve_plan(id, self.now).await?;
        }
        Ok(())
    }

    /// Gives the letters of a running operation their turn, stage by stage. When to go on, if that is known.
    async fn run(
        &mut self,
        machine: &mut OperationMachine,
        plan: i64,
        mut stage: StageCursor,
    ) -> Result<Option<Timestamp>> {
        let id = machine.operation.id;
        let mut ahead = Ahead::default();
        loop {
            let item = Box::pin(self.next_item(machine, plan, stage.from(), &mut ahead)).await?;
            if let Some((item, _)) = &item
                && let Some(turn) = ahead.turns.remove(&item.ordinal)
            {
                self.record(machine, &mut stage, item, turn);
                continue;
            }
            match (self.poll.step(machine, &stage, item.as_ref().map(|(item, _)| item)), item) {
                (PollStep::Inspect, Some((item, sequence))) => {
                    self.look(machine, &mut stage, &item, &sequence).await?;
                }
                (PollStep::Stop(at), _) => {
                    self.record_all(machine, &mut stage, ahead).await?;
                    return Ok(Some(at));
                }
                _ => {
                    self.record_all(machine, &mut stage, std::mem::take(&mut ahead)).await?;
                    if let Some(advanced) = self.advanced(id).await? {
                        *machine = advanced;
                    }
                    let Some(next) = self.poll.next_stage(machine, &stage) else { return Ok(None) };
                    stage = next;
                }
            }
        }
    }

    /// The next letter of the queue without an outcome. For a replay, the sequences of those that are to be tried are leased together.
    async fn next_item(
        &self,
        machine: &OperationMachine,
        plan: i64,
        from: u64,
        ahead: &mut Ahead,
    ) -> Result<Option<(Pending, SequenceId)>> {
        if machine.operation.action != Action::Retry {
            return self.store.next_pending(plan, self.queue, from).await;
        }
        loop {
            while ahead.items.front().is_some_and(|(item, _)| item.ordinal < from) {
                ahead.items.pop_front();
            }
            if !ahead.items.is_empty() || ahead.is_last {
                return Ok(ahead.items.front().cloned());
            }
            let page = if ahead.pages == 0 { 2 * self.limit + FIRST_PAGE } else { PAGE };
            let page = page.min(PAGE);
            let items = self.store.pending_page(plan, self.queue, from, page).await?;
            ahead.pages += 1;
            ahead.is_last = items.len() < page;
            ahead.items = items.into();
            let room = self.limit.saturating_sub(self.poll.given());
            let paced = usize::try_from(machine.pace(self.now)).unwrap_or(usize::MAX);
            self.lease_ahead(machine, ahead, room.min(paced)).await?;
        }
    }

    /// Leases the sequences of the first letters of a page that are to be tried, at most so many, and notes those that are to be postponed.
    /// Whatever else is to be done is left to [`look`](Self::look).
    async fn lease_ahead(&self, machine: &OperationMachine, ahead: &mut Ahead, room: usize) -> Result<()> {
        let (operation, allowance) = (&machine.operation, machine.allowance());
        let (mut from, mut first) = (0, Vec::new());
        for (item, sequence) in &ahead.items {
            // Letters behind one that is tried or postponed wait for it.
            if item.ordinal >= from && item.ordinal < allowance {
                from = item.last + 1;
                first.push((*item, sequence.clone()));
            }
        }
        let mut first = VecDeque::from(first);
        let mut room = room;
        while room > 0 && !first.is_empty() {
            let some: Vec<(Pending, SequenceId)> =
                first.drain(..first.len().min(AT_ONCE.max(room))).collect();
            let leased = self.lease_some(operation, some, room).await?;
            room -= leased.iter().filter(|(_, turn)| matches!(turn, Turn::Tried(_))).count();
            ahead.turns.extend(leased);
        }
        Ok(())
    }

    /// The turns of letters of different sequences, by ordinal: those that were leased, at most `room`, and those that are postponed.
    async fn lease_some(
        &self,
        operation: &Operation,
        items: Vec<(Pending, SequenceId)>,
        room: usize,
    ) -> Result<Vec<(u64, Turn)>> {
        let mut turns = Vec::new();
        let mut free = Vec::new();
        for (item, sequence) in items {
            // Its settlement is under way here.
            if self.store.under_way().has(&sequence_key(self.queue, &sequence)) {
                turns.push((item.ordinal, Turn::Postpone));
            } else {
                free.push((item, sequence));
            }
        }
        let ids: Vec<String> = free.iter().map(|(_, sequence)| sequence_key(self.queue, sequence)).collect();
        let (docs, paused) = future::try_join(
            by_ids::<SequenceDoc>(&self.store.db().sequences, &ids, Document::new()),
            self.store.paused_sequences(self.queue),
        )
        .await?;
        // Another process may be at it. If there is nothing else to do, it is finished when it is looked at alone.
        let (unfinished, docs): (Vec<_>, Vec<_>) = docs.into_iter().partition(|doc| doc.unfinished);
        let unfinished: BTreeSet<SequenceId> = unfinished.into_iter().map(|doc| doc.sequence).collect();
        let docs = self.store.finished_docs(self.queue, docs).await?;
        let mut views = self.store.views(self.queue, docs, &paused).await?;
        let (mut chosen, mut busy) = (Vec::new(), Vec::new());
        for (item, sequence) in free {
            if unfinished.contains(&sequence) {
                busy.push((item.ordinal, Turn::Postpone));
            }
            let Some(view) = views.get(&sequence) else { continue };
            // Any other letter than the head is looked at alone.
            let id = item.letter.to_string();
            let row =
                view.row.as_ref().filter(|_| view.doc.ahead.first().is_some_and(|(_, head)| *head == id));
            match row {
                Some(row) if row.is_leased(view.now) || row.paused => {
                    turns.push((item.ordinal, Turn::Postpone));
                }
                Some(_) => chosen.push((item, sequence)),
                None => {}
            }
        }
        chosen.truncate(room);
        let chosen_sequences: BTreeSet<&SequenceId> = chosen.iter().map(|(_, sequence)| sequence).collect();
        views.retain(|sequence, _| chosen_sequences.contains(sequence));
        let mut heads = self.store.first_open_of(&mut views, 1).await?;
        let letters: Vec<LetterId> = chosen.iter().map(|(item, _)| item.letter).collect();
        let planned = self.store.operation_letters(operation.id, &letters).await?;
        let mut claims = BTreeMap::new();
        for (item, sequence) in chosen {
            let head = heads.remove(&sequence).and_then(|heads| heads.into_iter().next());
            // One that has its outcome by now is looked at alone.
            let head = head.filter(|head| head.letter.id == item.letter && planned.is_pending(item.letter));
            let (Some(head), Some(view)) = (head, views.get_mut(&sequence)) else { continue };
            let asked = ItemView {
                letter: Some(&head.letter),
                digest: PayloadDigest::of(head.letter.message.payload.as_deref()),
                row: view.row.as_ref(),
                in_earlier: planned.is_in_earlier(item.letter),
                now: view.now,
            };
            if rules::item_action(operation, &item, &asked) == ItemAction::Try {
                let kind = LeaseKind::Operation(operation.id);
                let claim = lease_head(view, head, self.owner, self.lease, kind);
                claims.extend(claim.map(|claim| (sequence, (item.ordinal, claim))));
            }
        }
        let late = self.store.decide_all(views).await?;
        claims.retain(|sequence, _| !late.contains(sequence));
        if !claims.is_empty() {
            turns.extend(busy);
        }
        turns.extend(claims.into_values().map(|(ordinal, claim)| (ordinal, Turn::Tried(Box::new(claim)))));
        Ok(turns)
    }

    /// Records a turn that was decided ahead.
    fn record(
        &mut self,
        machine: &mut OperationMachine,
        stage: &mut StageCursor,
        item: &Pending,
        turn: Turn,
    ) {
        match turn {
            Turn::Tried(claim) => {
                self.poll.tried(machine, stage, item, *claim);
                self.unspent += 1;
            }
            _ => self.poll.postponed(machine, stage, item),
        }
    }

    /// Records what was leased ahead: nobody else finds it before the lease ends. Then deducts all that was leased from the rate.
    async fn record_all(
        &mut self,
        machine: &mut OperationMachine,
        stage: &mut StageCursor,
        mut ahead: Ahead,
    ) -> Result<()> {
        for (item, _) in ahead.items {
            if let Some(turn @ Turn::Tried(_)) = ahead.turns.remove(&item.ordinal) {
                self.record(machine, stage, &item, turn);
            }
        }
        let (spent, now) = (std::mem::take(&mut self.unspent), self.now);
        if spent > 0 && machine.has_rate() {
            self.with_machine(machine.operation.id, |machine| machine.spend(spent, now)).await?;
        }
        Ok(())
    }

    /// Looks at one letter and does what its turn asks for. The document of the plan has the last word on what was counted;
    /// the machine in memory follows it.
    async fn look(
        &mut self,
        machine: &mut OperationMachine,
        stage: &mut StageCursor,
        item: &Pending,
        sequence: &SequenceId,
    ) -> Result<()> {
        let (id, now) = (machine.operation.id, self.now);
        let mut sequence = sequence.clone();
        let turn = loop {
            let mut view = self.store.load(self.queue, &sequence).await?;
            let held = self.store.letter_of(&view, item.letter).await?;
            if let Some(held) = &held
                && held.letter.state.is_open()
                && held.letter.sequence != sequence
            {
                // It left the sequence that it had at the freeze.
                sequence = held.letter.sequence.clone();
                continue;
            }
            let turn = self.decide(machine, item, held, &mut view).await;
            if let Some(turn) = self.store.commit(view, turn).await? {
                break turn;
            }
        };
        match turn {
            Turn::Tried(claim) => {
                self.poll.tried(machine, stage, item, *claim);
                self.unspent += 1;
            }
            Turn::Acted => {
                self.poll.acted(machine, stage, item);
                self.pace(machine, item, &sequence).await?;
            }
            Turn::Postpone => self.poll.postponed(machine, stage, item),
            Turn::Pass => stage.pass(item),
            Turn::Skip => {
                while let Some(mut view) = self.store.load_plan(id).await? {
                    let (ordinal, outcome) = (item.ordinal, Outcome::SkippedChanged);
                    let ordinals = ordinal..=ordinal;
                    self.store.write_items(&mut view, ordinals, Vec::new(), outcome, now).await?;
                    if self.store.commit_plan(view).await? {
                        break;
                    }
                }
                self.poll.skipped(machine, stage, item);
            }
        }
        Ok(())
    }

    /// Decides about one letter, and leases its sequence or acts on it, in one write on the version that the rule was asked about.
    /// With two, another call could come between: the lease would be that of another letter, or a letter would be skipped that
    /// has become the head meanwhile.
    async fn decide(
        &self,
        machine: &OperationMachine,
        item: &Pending,
        held: Option<Held>,
        view: &mut View,
    ) -> Result<Turn> {
        let (operation, by) = (&machine.operation, machine.actor());
        let planned = self.store.operation_letters(operation.id, &[item.letter]).await?;
        if !planned.is_pending(item.letter) {
            return Ok(Turn::Pass);
        }
        let letter = held.as_ref().map(|held| &held.letter);
        let asked = ItemView {
            letter,
            digest: PayloadDigest::of(letter.and_then(|letter| letter.message.payload.as_deref())),
            row: view.row.as_ref(),
            in_earlier: planned.is_in_earlier(item.letter),
            now: view.now,
        };
        let action = rules::item_action(operation, item, &asked);
        match (action, held) {
            (ItemAction::Try, Some(held)) => {
                let kind = LeaseKind::Operation(operation.id);
                let taken = lease_head(view, held, self.owner, self.lease, kind);
                Ok(taken.map_or(Turn::Postpone, |claim| Turn::Tried(Box::new(claim))))
            }
            (ItemAction::Act(act), Some(held)) => {
                let next = self.store.next_of(view, held.letter.index).await?;
                let effects = rules::act(act, &held.letter, view.row.as_ref(), next, &by, view.now)?;
                view.apply(held, effects)?;
                let outcome = OutcomeDoc::new(operation.id, item.letter, Outcome::Ok, self.now);
                view.leave(Left::Outcome(outcome.spending()));
                Ok(Turn::Acted)
            }
            (ItemAction::Postpone, _) => Ok(Turn::Postpone),
            (ItemAction::Skip | ItemAction::Try | ItemAction::Act(_), _) => Ok(Turn::Skip),
        }
    }

    /// Gives the letters that an act lets run automatically the pace of the operation.
    async fn pace(
        &self,
        machine: &mut OperationMachine,
        item: &Pending,
        sequence: &SequenceId,
    ) -> Result<()> {
        let paced = loop {
            let mut view = self.store.load(self.queue, sequence).await?;
            let paced = self.decide_pace(machine, item, &mut view).await;
            if let Some(paced) = self.store.commit(view, paced).await? {
                break paced;
            }
        };
        if paced > 0 {
            let now = self.now;
            machine.pace_released(paced, now);
            self.with_machine(machine.operation.id, |machine| _ = machine.pace_released(paced, now)).await?;
        }
        Ok(())
    }

    async fn decide_pace(&self, machine: &OperationMachine, item: &Pending, view: &mut View) -> Result<u64> {
        let Some(row) = view.row.clone() else { return Ok(0) };
        let Some(from) = self.poll.released_from(machine, item, &row) else { return Ok(0) };
        let letters = self.store.released_letters(view, from).await?;
        let Some(row) = self.poll.paced(&mut machine.clone(), letters, &row) else { return Ok(0) };
        let letters = row.pace.map_or(0, |pace| pace.left);
        view.put(Some(row));
        Ok(letters)
    }

    /// Skips the letters of a cancelled operation whose lease was lost.
    async fn sweep(&mut self, id: OperationId, plan: i64) -> Result<()> {
        let Some(view) = self.store.load_plan(id).await? else { return Ok(()) };
        let tried = self.store.tried(&view.machine.operation).await?;
        let mut counted = view.machine.clone();
        let mut from = 0;
        while let Some((item, _)) = self.store.next_pending(plan, self.queue, from).await? {
            from = item.ordinal + 1;
            if !self.poll.swept(&mut counted, tried.contains(&item.letter)) {
                continue;
            }
            while let Some(mut view) = self.store.load_plan(id).await? {
                let (ordinals, outcome) = (item.ordinal..=item.ordinal, Outcome::SkippedCancelled);
                self.store.write_items(&mut view, ordinals, Vec::new(), outcome, self.now).await?;
                if self.store.commit_plan(view).await? {
                    break;
                }
            }
        }
        Ok(())
    }
}
