//! Runs a consumer until Ctrl-C.

use std::io;

use tokio_util::sync::CancellationToken;

use crate::consumer::Consumer;
use crate::error::Error;
use crate::telemetry::Stats;

impl Consumer {
    /// Runs until Ctrl-C (SIGINT), then drains: stops intake, settles as many messages as possible
    /// within [`drain_deadline`](crate::Options::drain_deadline), commits and releases leases.
    ///
    /// A second Ctrl-C ends the run at once with [`Error::Interrupted`]. Nothing is lost then: the next
    /// run repeats what was in flight. For other signals, such as SIGTERM, cancel the token that is
    /// passed to [`run`](Self::run).
    ///
    /// ```no_run
    /// # async fn example(builder: lazaret_engine::Builder) -> Result<(), Box<dyn std::error::Error>> {
    /// let stats = builder.build()?.run_until_ctrl_c().await?;
    /// println!("{} handled", stats.handled);
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "signal")]
    pub async fn run_until_ctrl_c(self) -> Result<Stats, Error> {
        self.run_until(tokio::signal::ctrl_c).await
    }

    /// Drains at the first interrupt and ends the run at the second.
    async fn run_until<F>(self, interrupt: impl Fn() -> F) -> Result<Stats, Error>
    where
        F: Future<Output = io::Result<()>>,
    {
        let drain = CancellationToken::new();
        let mut run = Box::pin(self.run(drain.clone()));
        tokio::select! {
            // The listener is registered before the consumer starts.
            biased;
            caught = interrupt() => caught.map_err(Error::Signal)?,
            ended = &mut run => return ended,
        }
        tracing::info!("interrupt received, drain started");
        drain.cancel();
        tokio::select! {
            biased;
            caught = interrupt() => {
                caught.map_err(Error::Signal)?;
                tracing::warn!("second interrupt received, drain abandoned");
                Err(Error::Interrupted)
            }
            ended = &mut run => ended,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use lazaret_core::handler::Handler;
    use lazaret_memory::{MemoryLog, MemoryStore};
    use tokio::sync::Semaphore;

    use super::*;

    fn consumer<A: 'static>(log: &MemoryLog, h: impl Handler<A>) -> Consumer {
        let store = Arc::new(MemoryStore::default());
        Consumer::builder("c").source(log.join()).store(store).handler(h).build().expect("complete")
    }

    /// Interrupts as often as the semaphore has permits.
    async fn interrupt(pressed: &Semaphore) -> io::Result<()> {
        pressed.acquire().await.expect("never closed").forget();
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_interrupt_drains_what_is_in_flight() {
        let (log, pressed) = (MemoryLog::new("s", 1), Arc::new(Semaphore::new(0)));
        log.push(0, "a", "a1");
        let press = pressed.clone();
        let slow = move || {
            press.add_permits(1);
            tokio::time::sleep(Duration::from_secs(5))
        };
        let stats = consumer(&log, slow).run_until(|| interrupt(&pressed)).await.unwrap();
        assert_eq!(stats.handled, 1);
        assert_eq!(log.committed(0), Some(0));
    }

    #[tokio::test(start_paused = true)]
    async fn the_second_interrupt_ends_at_once_and_commits_nothing() {
        // I1
        let (log, pressed) = (MemoryLog::new("s", 1), Arc::new(Semaphore::new(0)));
        log.push(0, "a", "a1");
        let (press, pressed_twice) = (pressed.clone(), Arc::new(AtomicBool::new(false)));
        let noted = pressed_twice.clone();
        let hangs = move || {
            let (press, noted) = (press.clone(), noted.clone());
            async move {
                press.add_permits(1);
                tokio::time::sleep(Duration::from_secs(1)).await;
                noted.store(true, Ordering::SeqCst);
                press.add_permits(1);
                std::future::pending::<()>().await;
            }
        };
        let started = tokio::time::Instant::now();
        let ended = consumer(&log, hangs).run_until(|| interrupt(&pressed)).await;
        assert!(matches!(ended, Err(Error::Interrupted)), "{ended:?}");
        assert!(pressed_twice.load(Ordering::SeqCst));
        assert_eq!(started.elapsed(), Duration::from_secs(1));
        assert_eq!(log.committed(0), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_signal_that_cannot_be_listened_to_ends_the_run_before_it_starts() {
        let log = MemoryLog::new("s", 1);
        log.push(0, "a", "a1");
        async fn never() {
            panic!("the handler must not be called");
        }
        let broken = || std::future::ready(Err(io::Error::other("no signals here")));
        let ended = consumer(&log, never).run_until(broken).await;
        assert!(matches!(ended, Err(Error::Signal(_))), "{ended:?}");
    }
}
