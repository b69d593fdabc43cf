//! Processes that are stopped for longer than their session and their leases, and go on: others have taken over meanwhile.
//!
//! A process is stopped between two attempts: one that is stopped within a call of a handler ends that call when it goes on, and
//! nothing can prevent it.

use std::time::Duration;

use lazaret_core::Message;
use lazaret_core::source::Ownership;
use tokio::time::Instant;

use crate::chaos::RunningEngine;
use crate::random::Random;
use crate::world::{Process, World};

/// How long the group waits for a sign of life.
pub(crate) const SESSION: Duration = Duration::from_secs(6);
/// How long a process looks for a moment without attempts.
const LOOKS_FOR: Duration = Duration::from_millis(500);

/// When the processes of one place are stopped.
pub(crate) struct Suspensions {
    random: Option<Random>,
}

impl Suspensions {
    pub(crate) fn of(world: &World, place: u64) -> Self {
        Self { random: world.plan.suspends.then(|| Random::new(world.plan.seed).fork(90_000 + place)) }
    }

    /// Stops the process at some time of its life. Returns when it is stopped.
    pub(crate) async fn begin(&mut self, world: &World, engine: &RunningEngine) {
        let Some(random) = &mut self.random else { return std::future::pending().await };
        loop {
            tokio::time::sleep(random.millis(200, 8_000)).await;
            let until = Instant::now() + LOOKS_FOR;
            while Instant::now() < until {
                if !world.is_attempting(engine.process.number) {
                    engine.process.suspension.suspend();
                    return world.suspended(&engine.process);
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }

    /// Lets the process go on when others have had time to take over. It then runs for a while.
    pub(crate) async fn end(&mut self, world: &World, engine: &RunningEngine) {
        let Some(random) = &mut self.random else { return };
        tokio::time::sleep(SESSION + random.millis(0, 1_000)).await;
        world.expel(&engine.process);
        // Its leases have ended, too.
        tokio::time::sleep(world.plan.options.lease + random.millis(0, 8_000)).await;
        world.resumed(&engine.process);
        engine.process.suspension.resume();
        let crash = engine.process.crash.clone();
        tokio::select! {
            biased;
            () = crash.cancelled() => {}
            () = tokio::time::sleep(random.millis(0, 6_000)) => {}
        }
    }
}

impl World {
    /// An ownership by the time of the checks: the clock of a process may be wrong.
    pub(crate) fn ownership(&self) -> Ownership {
        match self.plan.suspends {
            true => Ownership::leased_by(std::sync::Arc::new(self.clock.apart())),
            false => Ownership::default(),
        }
    }

    fn is_attempting(&self, process: u64) -> bool {
        self.history().running.iter().any(|running| running.process == process)
    }

    /// The process is stopped: what it has handled may not be marked in the duplicate filter before others repeat it.
    fn suspended(&self, process: &Process) {
        self.trace(|| format!("process {} suspended", process.number));
        self.forget_handled_in(process.number);
    }

    /// The group expels the process.
    pub(crate) fn expel(&self, process: &Process) {
        self.trace(|| format!("process {} expelled", process.number));
        let is_owned = |index: &u32| self.log.owner(*index) == Some(process.member);
        let owned: Vec<u32> = (0..self.log.partitions()).filter(is_owned).collect();
        self.log.expel(process.member);
        // Also when it drains before it reads that they are lost.
        self.process_lost(process.number, Some(&owned));
    }

    fn resumed(&self, process: &Process) {
        self.trace(|| format!("process {} goes on", process.number));
        self.history().woken.insert(process.number);
    }

    /// The process has asked its group.
    pub(crate) fn has_asked(&self, process: &Process) {
        self.history().woken.remove(&process.number);
    }

    /// I6: a process that was stopped starts nothing of a partition that others have got, before it has asked.
    pub(crate) fn check_owned(&self, process: &Process, message: &Message, live: bool) {
        let partition = message.place().1.partition;
        let lost = live
            && self.history().woken.contains(&process.number)
            && self.log.owner(partition) != Some(process.member);
        if lost {
            let number = process.number;
            self.violated(
                "I6",
                &format!("{} starts in process {number}, which was stopped and has lost it", message.id),
            );
        }
    }
}
