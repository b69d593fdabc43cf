//! Turns of reads that may examine many letters: counts, lists, facets, plans.
//!
//! A caller makes a few such reads at once. Further ones wait in a queue of the caller's own, and the callers with a queue are served in
//! turn: however many reads one of them asks for, those of another do not wait behind them. A full queue refuses more.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lazaret_api::Code;
use lazaret_core::query::Query;
use tokio::sync::oneshot;

use crate::api_error::{ApiError, Result};
use crate::auth::Caller;
use crate::options::Limits;

/// The turns. Clones share them.
#[derive(Clone)]
pub(crate) struct ScanTurns {
    table: Arc<Mutex<Table>>,
    total: usize,
    per_token: usize,
    waiting_per_token: usize,
}

#[derive(Default)]
struct Table {
    /// The number of turns that are taken.
    taken: usize,
    /// Those who have a turn, or wait for one.
    callers: HashMap<Name, OfCaller>,
    /// Those with a queue, each once. The first one is served next.
    order: VecDeque<Name>,
}

/// The name of a token or person; `None` for everybody on a server without tokens, where names are only claimed.
type Name = Option<String>;

#[derive(Default)]
struct OfCaller {
    taken: usize,
    waiting: VecDeque<oneshot::Sender<Turn>>,
}

/// A turn. Given back when dropped.
pub(crate) struct Turn {
    turns: ScanTurns,
    name: Name,
}

/// The queue of a caller is full.
struct Full;

impl ScanTurns {
    pub(crate) fn new(limits: &Limits) -> Self {
        let total = limits.scans.max(1);
        Self {
            table: Arc::default(),
            total,
            per_token: limits.scans_per_token.clamp(1, total),
            waiting_per_token: limits.scans_waiting_per_token,
        }
    }

    /// Waits for a turn; refuses if too many reads of the caller wait already. A caller has one turn in a request.
    pub(crate) async fn take(&self, caller: &Caller) -> Result<Turn> {
        let name = name_of(caller);
        // Those who cannot be told apart have no limit but that of all requests.
        let most = if name.is_some() { self.waiting_per_token } else { usize::MAX };
        self.wait(name, most).await.map_err(|Full| {
            let detail = format!("{most} reads of {} are waiting: make fewer at once", caller.identity.name);
            ApiError::new(Code::Busy, detail).retry_after(1)
        })
    }

    /// Waits for a turn if a store may have to examine many letters for this query.
    pub(crate) async fn take_for(&self, caller: &Caller, query: &Query) -> Result<Option<Turn>> {
        if query.needs_scan() { self.take(caller).await.map(Some) } else { Ok(None) }
    }

    /// Waits for a turn, and is never refused: for reads whose number has another limit, such as the parts of a stream, which would have to
    /// begin anew.
    pub(crate) async fn take_later(&self, caller: &Caller) -> Option<Turn> {
        self.wait(name_of(caller), usize::MAX).await.ok()
    }

    async fn wait(&self, name: Name, most: usize) -> std::result::Result<Turn, Full> {
        let turn = self.ask(name, most)?;
        // The other end is kept until it sends, or until this one is dropped.
        turn.await.map_err(|_| Full)
    }

    /// Asks for a turn. A free one is there at once.
    fn ask(&self, name: Name, most: usize) -> std::result::Result<oneshot::Receiver<Turn>, Full> {
        let per_caller = self.per_caller(&name);
        let (give, turn) = oneshot::channel();
        let mut table = self.lock();
        let Table { taken, callers, order } = &mut *table;
        let of_caller = callers.entry(name.clone()).or_default();
        of_caller.waiting.retain(|waiting| !waiting.is_closed());
        if *taken < self.total && of_caller.taken < per_caller && of_caller.waiting.is_empty() {
            *taken += 1;
            of_caller.taken += 1;
            drop(table);
            // The other end is in this function.
            let _ = give.send(Turn { turns: self.clone(), name });
            return Ok(turn);
        }
        if of_caller.waiting.len() >= most {
            if of_caller.is_gone() {
                callers.remove(&name);
            }
            return Err(Full);
        }
        of_caller.waiting.push_back(give);
        if !order.contains(&name) {
            order.push_back(name);
        }
        Ok(turn)
    }

    /// Frees a turn, and gives free ones to those who wait.
    fn give_back(&self, name: &Name) {
        let mut given = Vec::new();
        let mut table = self.lock();
        table.taken -= 1;
        if let Some(of_caller) = table.callers.get_mut(name) {
            of_caller.taken -= 1;
            if of_caller.is_gone() {
                table.callers.remove(name);
            }
        }
        while let Some((name, give)) = table.next(self) {
            given.push((give, Turn { turns: self.clone(), name }));
        }
        drop(table);
        // Without the lock: the turn of somebody who has gone comes back here.
        for (give, turn) in given {
            drop(give.send(turn));
        }
    }

    fn per_caller(&self, name: &Name) -> usize {
        if name.is_some() { self.per_token } else { self.total }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Takes a turn for the next one who waits and may have it.
    fn next(&mut self, turns: &ScanTurns) -> Option<(Name, oneshot::Sender<Turn>)> {
        if self.taken >= turns.total {
            return None;
        }
        for _ in 0..self.order.len() {
            let name = self.order.pop_front()?;
            let Some(of_caller) = self.callers.get_mut(&name) else { continue };
            of_caller.waiting.retain(|waiting| !waiting.is_closed());
            if of_caller.taken >= turns.per_caller(&name) {
                if !of_caller.waiting.is_empty() {
                    self.order.push_back(name);
                }
                continue;
            }
            let Some(give) = of_caller.waiting.pop_front() else {
                if of_caller.is_gone() {
                    self.callers.remove(&name);
                }
                continue;
            };
            of_caller.taken += 1;
            self.taken += 1;
            if !of_caller.waiting.is_empty() {
                self.order.push_back(name.clone());
            }
            return Some((name, give));
        }
        None
    }
}

impl OfCaller {
    fn is_gone(&self) -> bool {
        self.taken == 0 && self.waiting.is_empty()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.turns.give_back(&self.name);
    }
}

fn name_of(caller: &Caller) -> Name {
    caller.identity.authenticated.then(|| caller.identity.name.clone())
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn turns(scans: usize, scans_per_token: usize) -> ScanTurns {
        ScanTurns::new(&Limits { scans, scans_per_token, ..Limits::default() })
    }

    /// Asks for a turn, of which at most so many may wait.
    fn ask(turns: &ScanTurns, who: &str, most: usize) -> Option<oneshot::Receiver<Turn>> {
        turns.ask(Some(who.to_owned()), most).ok()
    }

    /// The turn, if it is there.
    fn given(turn: &mut oneshot::Receiver<Turn>) -> Option<Turn> {
        turn.now_or_never().map(|turn| turn.unwrap_or_else(|_| panic!("the queue is kept")))
    }

    #[test]
    fn a_caller_has_few_turns_and_a_queue_with_an_end() {
        let turns = turns(3, 2);
        let mut asked: Vec<_> = (0..4).map(|_| ask(&turns, "ada", 2).unwrap()).collect();
        assert!(ask(&turns, "ada", 2).is_none(), "two are waiting");
        let mut held: Vec<_> = asked.iter_mut().filter_map(given).collect();
        assert_eq!(held.len(), 2);
        let mut other = ask(&turns, "bob", 0).unwrap();
        let _other = given(&mut other).unwrap();
        drop(held.pop());
        for waiting in &mut asked[2..] {
            assert!(given(waiting).is_some(), "one after the other");
        }
        assert!(ask(&turns, "ada", 2).is_some());
    }

    #[test]
    fn callers_are_served_in_turn() {
        let turns = turns(1, 1);
        let mut first = ask(&turns, "ada", 9).unwrap();
        let mut turn = given(&mut first);
        let mut waiting: Vec<_> = ["ada", "ada", "ada", "bob", "bob", "eve"]
            .map(|who| (who, ask(&turns, who, 9).unwrap()))
            .into_iter()
            .collect();
        let mut served = Vec::new();
        while turn.take().is_some() {
            turn = waiting.iter_mut().find_map(|(who, asked)| {
                // One that was served before is at its end.
                let turn = asked.try_recv().ok()?;
                served.push(*who);
                Some(turn)
            });
        }
        assert_eq!(served, ["ada", "bob", "eve", "ada", "bob", "ada"]);
        let table = turns.lock();
        assert!(table.callers.is_empty() && table.order.is_empty(), "nothing is kept");
    }

    #[test]
    fn those_who_have_gone_take_no_turn_and_no_place_in_the_queue() {
        let turns = turns(1, 1);
        let mut first = ask(&turns, "ada", 1).unwrap();
        let held = given(&mut first);
        drop(ask(&turns, "ada", 1).unwrap());
        drop(ask(&turns, "bob", 1).unwrap());
        let next = ask(&turns, "ada", 1).expect("the one before it has gone");
        drop(held);
        let mut last = ask(&turns, "bob", 1).unwrap();
        assert!(given(&mut last).is_none(), "the turn was given to the one before");
        drop(next);
        assert!(given(&mut last).is_some());
        assert!(turns.lock().callers.is_empty(), "nothing is kept");
    }

    #[test]
    fn those_who_cannot_be_told_apart_share_all_turns() {
        let turns = turns(2, 1);
        let mut asked: Vec<_> = (0..3).map(|_| turns.ask(None, usize::MAX).ok().unwrap()).collect();
        let held: Vec<_> = asked.iter_mut().filter_map(given).collect();
        assert_eq!(held.len(), 2);
    }
}
