//! One consumer over time: it is put together, runs, and is started anew when it may help or when its policies change.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lazaret_config::{Approval as Agreement, Consumer as Wanted};
use lazaret_core::FlightRecorder;
use lazaret_engine::Consumer;
use lazaret_server::Approval;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::assemble::{self, Shared};
use crate::error::Trouble;

/// How long a consumer that failed waits before it is started anew: longer each time, until one life lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Backoff {
    pub(crate) first: Duration,
    pub(crate) most: Duration,
}

impl Backoff {
    /// The wait after so many failures in a row, of which the last one is counted.
    fn after(self, failures: u32) -> Duration {
        let doubled = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        self.first.saturating_mul(doubled).min(self.most)
    }
}

/// How the time of a consumer in this process ended.
#[derive(Debug)]
pub(crate) enum End {
    /// Everything is settled that could be.
    Done,
    /// With an error that waiting does not mend.
    Failed(String),
}

/// What one consumer needs to run again and again.
pub(crate) struct Runner {
    pub(crate) name: String,
    /// What is wanted of it; a new value, or the same one again, starts it anew.
    pub(crate) wanted: watch::Receiver<Arc<Wanted>>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) recorder_folder: Option<PathBuf>,
    pub(crate) backoff: Backoff,
    /// Whether it has failed and waits for somebody to mend it.
    pub(crate) has_failed: Arc<AtomicBool>,
    pub(crate) drain: CancellationToken,
    /// Opened with the first life and kept: who opens it judges the dead.
    pub(crate) recorder: Option<Arc<dyn FlightRecorder>>,
}

/// How one life of a consumer ended.
enum Life {
    /// It was asked to stop, or there was nothing left to do.
    Over,
    /// Its policies changed.
    Changed,
}

impl Runner {
    /// Runs until it is drained, has nothing left to do, or has failed for good in a run that is to end by itself.
    pub(crate) async fn run(mut self) -> End {
        let mut failures = 0;
        loop {
            if self.drain.is_cancelled() {
                self.shared.registry.stopped(&self.name);
                return End::Done;
            }
            let wanted = self.wanted.borrow_and_update().clone();
            let begun = Instant::now();
            self.shared.registry.starting(&self.name, approval(&wanted));
            self.shared.registry.replay_rate(&self.name, wanted.replay.rate.map(|rate| rate.per_second()));
            match self.live(&wanted).await {
                Ok(Life::Changed) => tracing::info!(consumer = self.name, "starts anew with other policies"),
                Ok(Life::Over) => {
                    tracing::info!(consumer = self.name, "stopped");
                    self.shared.registry.stopped(&self.name);
                    return End::Done;
                }
                Err(trouble) => {
                    let lasted = begun.elapsed() > self.backoff.most;
                    failures = if lasted { 1 } else { failures + 1 };
                    if let Some(end) = self.recover(&trouble, failures).await {
                        return end;
                    }
                }
            }
        }
    }

    /// One life, from opening the source to its end, with what runs beside it.
    async fn live(&mut self, wanted: &Wanted) -> Result<Life, Trouble> {
        if let (None, Some(folder)) = (&self.recorder, &self.recorder_folder) {
            self.recorder = Some(assemble::open_recorder(folder, &self.name, wanted.concurrency)?);
        }
        let shared = self.shared.clone();
        let consumer = assemble::consumer(&shared, wanted, self.recorder.clone()).await?;
        shared.registry.running(consumer.handle());
        shared.telemetry.metrics.running(consumer.handle());
        self.has_failed.store(false, Ordering::Release);
        tracing::info!(consumer = self.name, source = wanted.source.kind(), "running");
        let (drain, stop) = (self.drain.child_token(), CancellationToken::new());
        let beside = Box::pin(assemble::beside(&shared, wanted, stop.clone()));
        let together = async {
            let _drain = drain.clone().drop_guard();
            beside.await
        };
        let alone = async {
            let _stop = stop.drop_guard();
            let life = self.until_over(consumer, &drain).await?;
            if shared.until_idle {
                // Ends early when somebody does not want to wait.
                let done = assemble::beside_is_done(&shared, wanted);
                let _ = drain.run_until_cancelled(done).await;
            }
            Ok(life)
        };
        // Whichever of the two ends makes the other one end.
        let (beside, life) = tokio::join!(together, alone);
        beside?;
        life
    }

    /// Runs the consumer until it ends, or drains it when other policies are wanted.
    async fn until_over(&mut self, consumer: Consumer, drain: &CancellationToken) -> Result<Life, Trouble> {
        let mut run = Box::pin(consumer.run(drain.clone()));
        let mut changed = false;
        loop {
            tokio::select! {
                ended = &mut run => {
                    ended?;
                    let anew = changed && !self.drain.is_cancelled();
                    return Ok(if anew { Life::Changed } else { Life::Over });
                }
                told = self.wanted.changed(), if !changed => {
                    // Positions are durable and letters are in the store: what is not settled by then comes again.
                    if told.is_ok() {
                        drain.cancel();
                    }
                    changed = true;
                }
            }
        }
    }

    /// Waits after a failure until the consumer may be started anew; or it is over.
    async fn recover(&mut self, trouble: &Trouble, failures: u32) -> Option<End> {
        let may_pass = trouble.may_pass();
        self.shared.registry.failed(&self.name, trouble.to_string());
        self.shared.telemetry.metrics.failed(&self.name, true);
        let why = trouble.for_log(self.shared.telemetry.with_error_messages);
        self.has_failed.store(true, Ordering::Release);
        if !may_pass && self.shared.until_idle {
            tracing::error!(consumer = self.name, error = why, "failed for good");
            return Some(End::Failed(why));
        }
        let wait = self.backoff.after(failures);
        let over = async {
            if may_pass {
                tracing::error!(
                    consumer = self.name,
                    error = why,
                    ?wait,
                    "failed; it is started anew after a while"
                );
                tokio::time::sleep(wait).await;
            } else {
                tracing::error!(
                    consumer = self.name,
                    error = why,
                    "failed; mend it and send SIGHUP, the others go on"
                );
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = self.drain.cancelled() => Some(End::Failed(why.clone())),
            Ok(()) = self.wanted.changed() => None,
            () = over => None,
        }
    }
}

fn approval(wanted: &Wanted) -> Approval {
    match wanted.replay.approval {
        Agreement::None => Approval::None,
        Agreement::SecondPerson => Approval::SecondPerson,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_in_a_row_waits_twice_as_long_up_to_the_most() {
        let backoff = Backoff { first: Duration::from_secs(1), most: Duration::from_secs(60) };
        let waits: Vec<_> = (1..=8).map(|failures| backoff.after(failures).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(backoff.after(u32::MAX), Duration::from_secs(60));
    }
}
