//! Finds the message that kills the process.
//!
//! Every attempt stands in the flight recorder while it runs. After a death, what stood there is suspect. While there are
//! suspects, each of them runs alone: should the process die again, there is no doubt who did it, and the recorder
//! charges that message with a crash. All others run side by side as ever, only not beside a suspect.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lazaret_core::recorder::{FlightRecorder, Slot, Suspect};
use lazaret_core::{Message, MessageId, Partition, QueueName};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::time::Instant;

/// How long a suspect that does not come is waited for. It may belong to somebody else by now.
const PATIENCE: Duration = Duration::from_secs(600);

/// The recorder of one consumer, and whom it suspects.
pub(crate) struct Flight {
    recorder: Option<Arc<dyn FlightRecorder>>,
    suspects: Mutex<Vec<Known>>,
    /// Whether anybody is still to be run alone.
    suspicious: AtomicBool,
    until: Instant,
    /// Suspects hold it alone, others together. Nobody takes it when there is no suspect.
    alone: RwLock<()>,
}

struct Known {
    suspect: Suspect,
    /// It has had its turn alone and we are still here.
    cleared: bool,
    /// It was handled; as long as its position is not committed, it may come again.
    handled: bool,
}

/// An attempt that stands in the recorder for as long as this lives.
pub(crate) struct Recorded {
    recorder: Arc<dyn FlightRecorder>,
    slot: Slot,
}

impl Drop for Recorded {
    fn drop(&mut self) {
        self.recorder.leave(std::mem::replace(&mut self.slot, Slot::NOT_RECORDED));
    }
}

/// An attempt that may be a suspect's.
pub(crate) struct Watched<'a> {
    flight: &'a Flight,
    suspect: Option<(&'a QueueName, &'a MessageId)>,
    recorded: Option<Recorded>,
    _company: Company<'a>,
}

/// Who else may run meanwhile.
enum Company<'a> {
    Anybody,
    NoSuspect(#[expect(dead_code, reason = "held, not read")] RwLockReadGuard<'a, ()>),
    Nobody(#[expect(dead_code, reason = "held, not read")] RwLockWriteGuard<'a, ()>),
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        self.recorded = None;
        if let Some((queue, message)) = self.suspect {
            self.flight.clear(queue, message);
        }
    }
}

impl Flight {
    pub(crate) fn new(recorder: Option<Arc<dyn FlightRecorder>>) -> Self {
        let suspects = recorder.as_ref().map(|recorder| recorder.suspects()).unwrap_or_default();
        for suspect in &suspects {
            tracing::warn!(
                queue = %suspect.queue, message = %suspect.message, attempt = suspect.attempt,
                crashes = suspect.crashes, "was in flight when the process died"
            );
        }
        Self {
            recorder,
            suspicious: AtomicBool::new(!suspects.is_empty()),
            suspects: Mutex::new(
                suspects
                    .into_iter()
                    .map(|suspect| Known { suspect, cleared: false, handled: false })
                    .collect(),
            ),
            until: Instant::now() + PATIENCE,
            alone: RwLock::new(()),
        }
    }

    /// Whether a message may be waiting for its turn alone. All attempts must be [watched](Self::watch) then.
    pub(crate) fn is_suspicious(&self) -> bool {
        self.suspicious.load(Ordering::Acquire)
    }

    /// The recorder, for attempts that end at their first poll.
    pub(crate) fn recorder(&self) -> Option<&Arc<dyn FlightRecorder>> {
        self.recorder.as_ref()
    }

    /// Waits until the attempt may run beside the others, or alone, and records it.
    pub(crate) async fn watch<'a>(
        &'a self,
        queue: &'a QueueName,
        message: &'a Message,
        attempt: u32,
    ) -> Watched<'a> {
        let mut suspect = None;
        let company = if !self.is_suspicious() {
            Company::Anybody
        } else if self.is_suspect(queue, &message.id) {
            suspect = Some((queue, &message.id));
            Company::Nobody(self.alone.write().await)
        } else {
            Company::NoSuspect(self.alone.read().await)
        };
        let recorded = self.recorder.as_ref().map(|recorder| record(recorder, queue, message, attempt));
        Watched { flight: self, suspect, recorded, _company: company }
    }

    fn is_suspect(&self, queue: &QueueName, message: &MessageId) -> bool {
        self.with(|suspects| suspects.iter().any(|known| !known.cleared && known.suspect.is(queue, message)))
    }

    /// How often this message was charged with the death of the process, and what is known of it.
    pub(crate) fn charged(&self, queue: &QueueName, message: &MessageId) -> Option<Suspect> {
        self.recorder.as_ref()?;
        self.with(|suspects| {
            let known = suspects.iter().find(|known| known.suspect.is(queue, message))?;
            (known.suspect.crashes > 0).then(|| known.suspect.clone())
        })
    }

    /// A suspect has had its turn and we are still here. What it was charged with before stays until its fate is durable.
    fn clear(&self, queue: &QueueName, message: &MessageId) {
        let charged = self.with(|suspects| {
            let known = suspects.iter_mut().find(|known| known.suspect.is(queue, message));
            let charged = known.is_some_and(|known| {
                known.cleared = true;
                known.suspect.crashes > 0
            });
            self.suspicious.store(suspects.iter().any(|known| !known.cleared), Ordering::Release);
            charged
        });
        if !charged {
            self.forget(queue, message);
        }
    }

    /// The fate of the message is durable: its crashes count no longer, or they stand in its letter. That of a message that
    /// was handled live is durable when its position is [committed](Self::committed).
    pub(crate) fn forget(&self, queue: &QueueName, message: &MessageId) {
        let Some(recorder) = &self.recorder else { return };
        let known = self.with(|suspects| {
            let before = suspects.len();
            suspects.retain(|known| !known.suspect.is(queue, message));
            self.suspicious.store(suspects.iter().any(|known| !known.cleared), Ordering::Release);
            suspects.len() < before
        });
        if known {
            recorder.forget(queue, message);
        }
    }

    /// A live message was handled.
    pub(crate) fn handled(&self, queue: &QueueName, message: &MessageId) {
        if self.recorder.is_some() {
            self.with(|suspects| {
                let known = suspects.iter_mut().find(|known| known.suspect.is(queue, message));
                known.into_iter().for_each(|known| known.handled = true);
            });
        }
    }

    /// No message of this partition up to here comes again. Letters of it may still be tried.
    pub(crate) fn committed(&self, partition: &Partition, offset: u64) {
        let Some(recorder) = &self.recorder else { return };
        let gone = self.with(|suspects| {
            let is_gone = |known: &mut Known| {
                let Suspect { partition: of, offset: at, .. } = &known.suspect;
                known.handled && of == partition && *at <= offset
            };
            let gone: Vec<Known> = suspects.extract_if(.., is_gone).collect();
            self.suspicious.store(suspects.iter().any(|known| !known.cleared), Ordering::Release);
            gone
        });
        for Known { suspect, .. } in gone {
            recorder.forget(&suspect.queue, &suspect.message);
        }
    }

    /// Stops waiting for suspects that do not come.
    pub(crate) fn lose_patience(&self) {
        if self.is_suspicious() && Instant::now() >= self.until {
            tracing::warn!("some messages that were in flight when the process died did not come again");
            let gone = self.with(|suspects| {
                suspects.iter_mut().for_each(|known| known.cleared = true);
                let gone: Vec<Suspect> = suspects.iter().map(|known| known.suspect.clone()).collect();
                suspects.retain(|known| known.suspect.crashes > 0);
                gone
            });
            self.suspicious.store(false, Ordering::Release);
            for suspect in gone.iter().filter(|suspect| suspect.crashes == 0) {
                self.recorder.iter().for_each(|recorder| recorder.forget(&suspect.queue, &suspect.message));
            }
        }
    }

    fn with<T>(&self, look: impl FnOnce(&mut Vec<Known>) -> T) -> T {
        look(&mut self.suspects.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Puts an attempt into the recorder.
pub(crate) fn record(
    recorder: &Arc<dyn FlightRecorder>,
    queue: &QueueName,
    message: &Message,
    attempt: u32,
) -> Recorded {
    let slot = recorder.enter(queue, message, attempt);
    Recorded { recorder: recorder.clone(), slot }
}

impl Recorded {
    /// The attempt ended, and another one will follow it.
    pub(crate) fn rest(&self) {
        self.recorder.rest(&self.slot);
    }

    /// Another attempt begins.
    pub(crate) fn again(&self, queue: &QueueName, message: &Message, attempt: u32) {
        self.recorder.enter_again(&self.slot, queue, message, attempt);
    }
}
