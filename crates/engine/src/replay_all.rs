//! Replays every open sequence of a queue, several at a time.
//!
//! Sequences are independent of each other (I2), so their claims and settlements can share commits of
//! the store.

use std::collections::HashSet;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use lazaret_core::store::Result;
use lazaret_core::{LetterId, SequenceId, Timestamp};

use crate::component::Component;
use crate::handle::{ReplayReport, Replayer};
use crate::hash::SequenceHash;
use crate::stored::RunEnd;

/// The page size for reading heads. A page holds whole letters, and a store may commit before it
/// answers.
const PAGE: usize = 256;

type Running<'a> = BoxFuture<'a, (Started, Result<Option<RunEnd>>)>;

/// A sequence that was started.
#[derive(Clone, Copy)]
struct Started {
    hash: SequenceHash,
    /// The hash under which the head continues if it leaves the sequence.
    detached: SequenceHash,
}

/// A replay in progress.
pub(crate) struct ReplayAll<'a> {
    replayer: &'a Replayer,
    component: &'a Component,
    operation: &'a str,
    /// The start of the replay. Sequences that were touched later were opened since, or have run.
    started: Timestamp,
    /// The maximum number of sequences that run at once: the share of the attempts that an operation may
    /// take (I3).
    at_once: usize,
    running: FuturesUnordered<Running<'a>>,
    /// The running sequences, and the sequences in which a letter failed. Heads are listed in the order
    /// of their last touch, and a head that fails moves to the end. The store's clock may lag behind
    /// ours or tick slowly, so the times alone do not show which sequences have run.
    known: HashSet<SequenceHash>,
    report: ReplayReport,
}

impl<'a> ReplayAll<'a> {
    pub(crate) fn new(replayer: &'a Replayer, component: &'a Component, operation: &'a str) -> Self {
        Self {
            replayer,
            component,
            operation,
            started: component.now(),
            at_once: component.options.replays_at_once(),
            running: FuturesUnordered::new(),
            known: HashSet::new(),
            report: ReplayReport::default(),
        }
    }

    /// Runs every sequence once. After an error, the running sequences finish first.
    pub(crate) async fn run(mut self) -> Result<ReplayReport> {
        let started = self.start_all().await;
        let mut ended = Ok(());
        while let Some((sequence, end)) = self.running.next().await {
            ended = ended.and(self.ended(sequence, end));
        }
        started.and(ended)?;
        Ok(self.report)
    }

    /// Starts every sequence.
    async fn start_all(&mut self) -> Result<()> {
        let Component { queue, store, .. } = self.component;
        let mut after = None;
        loop {
            let page = store.heads(queue, after.as_deref(), PAGE).await?;
            for head in page.heads {
                if head.last_touched_at > self.started {
                    // From here on, all heads were touched after this replay began.
                    return Ok(());
                }
                self.start(head.sequence, head.id).await?;
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(()),
            }
        }
    }

    /// Starts a sequence as soon as there is a place for it.
    async fn start(&mut self, sequence: SequenceId, head: LetterId) -> Result<()> {
        let hash = self.component.hash(&sequence);
        if !self.known.insert(hash) {
            return Ok(());
        }
        while self.running.len() >= self.at_once
            && let Some((ended, end)) = self.running.next().await
        {
            self.ended(ended, end)?;
        }
        let started = Started { hash, detached: self.component.hash(&sequence.detached(head)) };
        let (replayer, operation) = (self.replayer, self.operation);
        let run = async move { (started, replayer.run(&sequence, operation).await) };
        self.running.push(Box::pin(run));
        Ok(())
    }

    fn ended(&mut self, sequence: Started, end: Result<Option<RunEnd>>) -> Result<()> {
        let end = end?;
        match end {
            Some(RunEnd::Closed) => self.report.closed += 1,
            Some(RunEnd::Held) => self.report.held += 1,
            Some(RunEnd::Stopped) | None => self.report.skipped += 1,
        }
        match end {
            Some(RunEnd::Held) => self.known.insert(sequence.detached),
            _ => self.known.remove(&sequence.hash),
        };
        Ok(())
    }
}
