//! Runs one consumer, and restarts it after temporary errors and policy changes.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use lazaret_config::{Approval as ConfiguredApproval, Consumer as ConsumerConfig};
use lazaret_core::FlightRecorder;
use lazaret_engine::Consumer;
use lazaret_server::{Approval, Registry};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::assemble::{self, Shared};
use crate::error::ConsumerError;

/// The delays between restarts of a consumer that fails repeatedly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RestartPolicy {
    /// The first delay; doubled after each consecutive failure.
    pub(crate) min_delay: Duration,
    /// The maximum delay. A consumer that ran longer than this starts over with the first delay.
    pub(crate) max_delay: Duration,
}

impl RestartPolicy {
    fn delays(self) -> ExponentialBackoff {
        ExponentialBuilder::new()
            .with_min_delay(self.min_delay.min(self.max_delay))
            .with_max_delay(self.max_delay)
            .with_factor(2.0)
            .without_max_times()
            .build()
    }
}

/// How a runner ended.
#[derive(Debug)]
pub(crate) enum End {
    /// Drained, or all work done.
    Done,
    /// With a permanent error.
    Failed(String),
}

/// Runs one consumer until the daemon is drained.
pub(crate) struct Runner {
    pub(crate) name: String,
    /// The configuration; a new value, or the same one again, restarts the consumer.
    pub(crate) config: watch::Receiver<Arc<ConsumerConfig>>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) recorder_folder: Option<PathBuf>,
    pub(crate) restart: RestartPolicy,
    /// Whether the consumer has failed.
    pub(crate) has_failed: Arc<AtomicBool>,
    pub(crate) drain: CancellationToken,
    /// Opened at the first start and kept open: opening evaluates the records of a crashed process.
    pub(crate) recorder: Option<Arc<dyn FlightRecorder>>,
    /// The last run ended because the source waits: that is logged once.
    pub(crate) is_waiting: bool,
}

/// How one run of a consumer ended.
enum RunEnd {
    /// Drained, or all work done.
    Done,
    /// The configuration changed.
    Reconfigured,
}

impl Runner {
    /// Runs until the daemon is drained, all work is done, or, with `until_idle`, a permanent error.
    pub(crate) async fn run(mut self) -> End {
        let mut delays = self.restart.delays();
        loop {
            if self.drain.is_cancelled() {
                self.shared.registry.stopped(&self.name);
                return End::Done;
            }
            let config = self.config.borrow_and_update().clone();
            let started = Instant::now();
            if !self.is_waiting {
                register(&self.shared.registry, &config);
            }
            match self.run_once(&config).await {
                Ok(RunEnd::Reconfigured) => {
                    tracing::info!(consumer = self.name, "consumer restarted with new policies");
                }
                Ok(RunEnd::Done) => {
                    tracing::info!(consumer = self.name, "consumer stopped");
                    self.shared.registry.stopped(&self.name);
                    return End::Done;
                }
                Err(error) => {
                    if started.elapsed() > self.restart.max_delay {
                        delays = self.restart.delays();
                    }
                    let delay = match error.is_waiting() {
                        // What is waited for is to be read soon after it appears.
                        true => self.restart.min_delay,
                        false => delays.next().unwrap_or(self.restart.max_delay),
                    };
                    if let Some(end) = self.recover(&error, delay).await {
                        return end;
                    }
                }
            }
        }
    }

    /// Runs the consumer once, from opening the source to its end, with its background tasks.
    async fn run_once(&mut self, config: &ConsumerConfig) -> Result<RunEnd, ConsumerError> {
        if let (None, Some(folder)) = (&self.recorder, &self.recorder_folder) {
            self.recorder = Some(assemble::open_recorder(folder, &self.name, config.concurrency)?);
        }
        let shared = self.shared.clone();
        if shared.until_idle {
            assemble::adopt_to_end(&shared, config, &self.drain).await?;
        }
        let consumer = assemble::consumer(&shared, config, self.recorder.clone()).await?;
        shared.registry.running(consumer.handle());
        shared.telemetry.metrics.running(consumer.handle());
        self.has_failed.store(false, Ordering::Release);
        self.is_waiting = false;
        tracing::info!(consumer = self.name, source = config.source.kind(), "consumer started");
        let (drain, stop) = (self.drain.child_token(), CancellationToken::new());
        let background = Box::pin(assemble::background(&shared, config, stop.clone()));
        let background = async {
            let _drain = drain.clone().drop_guard();
            background.await
        };
        let foreground = async {
            let _stop = stop.drop_guard();
            let end = self.run_until_reconfigured(consumer, &drain).await?;
            if shared.until_idle {
                // A drain ends the wait early.
                let done = assemble::background_done(&shared, config);
                let _ = drain.run_until_cancelled(done).await;
            }
            Ok(end)
        };
        // The end of either stops the other.
        let (background, end) = tokio::join!(background, foreground);
        background?;
        end
    }

    /// Runs the consumer until it ends, or drains it when its configuration changes.
    async fn run_until_reconfigured(
        &mut self,
        consumer: Consumer,
        drain: &CancellationToken,
    ) -> Result<RunEnd, ConsumerError> {
        let mut run = Box::pin(consumer.run(drain.clone()));
        let mut changed = false;
        loop {
            tokio::select! {
                ended = &mut run => {
                    ended?;
                    let restart = changed && !self.drain.is_cancelled();
                    return Ok(if restart { RunEnd::Reconfigured } else { RunEnd::Done });
                }
                result = self.config.changed(), if !changed => {
                    // Positions and letters are durable: unsettled messages are redelivered.
                    if result.is_ok() {
                        drain.cancel();
                    }
                    changed = true;
                }
            }
        }
    }

    /// Waits after an error until the consumer may restart. Returns an end if it must not.
    async fn recover(&mut self, error: &ConsumerError, delay: Duration) -> Option<End> {
        let (is_temporary, is_waiting) = (error.is_temporary(), error.is_waiting());
        if is_waiting {
            self.shared.registry.waits_for_source(&self.name, error.to_string());
        } else {
            self.shared.registry.failed(&self.name, error.to_string());
        }
        let metrics = &self.shared.telemetry.metrics;
        match is_waiting || is_temporary {
            true => metrics.failed(&self.name, !is_waiting),
            false => metrics.failed_permanently(&self.name),
        }
        let why = error.for_log(self.shared.telemetry.with_error_messages);
        let why = self.config.borrow().redact.texts().redact(&why).into_owned();
        self.has_failed.store(true, Ordering::Release);
        let was_waiting = std::mem::replace(&mut self.is_waiting, is_waiting);
        if !is_temporary && self.shared.until_idle {
            tracing::error!(consumer = self.name, error = why, "consumer failed permanently");
            return Some(End::Failed(why));
        }
        let may_restart = async {
            if is_waiting {
                if !was_waiting {
                    tracing::info!(consumer = self.name, why, "consumer waiting for its source");
                }
                tokio::time::sleep(delay).await;
            } else if is_temporary {
                tracing::error!(
                    consumer = self.name,
                    error = why,
                    ?delay,
                    "consumer failed, restart scheduled"
                );
                tokio::time::sleep(delay).await;
            } else {
                tracing::error!(
                    consumer = self.name,
                    error = why,
                    "consumer failed permanently; correct the cause and send SIGHUP, other consumers continue"
                );
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = self.drain.cancelled() => Some(End::Failed(why.clone())),
            Ok(()) = self.config.changed() => {
                self.is_waiting = false;
                None
            }
            () = may_restart => None,
        }
    }
}

/// Registers a consumer that is starting, with its settings of replays.
pub(crate) fn register(registry: &Registry, config: &ConsumerConfig) {
    registry.starting(&config.name, approval(config));
    if let Some(address) = assemble::handler_address(config) {
        registry.handler(&config.name, address);
    }
    registry.replay_rate(&config.name, config.replay.rate.map(|rate| rate.per_second()));
}

/// Registers a consumer that this process does not run, with its settings of replays.
pub(crate) fn register_elsewhere(registry: &Registry, config: &ConsumerConfig) {
    registry.elsewhere(&config.name, approval(config));
    registry.replay_rate(&config.name, config.replay.rate.map(|rate| rate.per_second()));
}

fn approval(config: &ConsumerConfig) -> Approval {
    match config.replay.approval {
        ConfiguredApproval::None => Approval::None,
        // Fail closed: an unknown kind of approval requires a second person.
        _ => Approval::SecondPerson,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_consecutive_failure_doubles_the_delay_up_to_the_maximum() {
        let policy = RestartPolicy { min_delay: Duration::from_secs(1), max_delay: Duration::from_secs(60) };
        let delays: Vec<_> = policy.delays().take(8).map(|delay| delay.as_secs()).collect();
        assert_eq!(delays, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(policy.delays().nth(1000), Some(Duration::from_secs(60)));
        let above = RestartPolicy { min_delay: Duration::from_secs(90), ..policy };
        assert_eq!(above.delays().next(), Some(Duration::from_secs(60)));
    }
}
