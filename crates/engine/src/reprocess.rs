//! Scheduled reprocessing, which replays the oldest dead letters at the times of a cron schedule.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use croner::Cron;
use croner::parser::{CronParser, Seconds};
use jiff::tz::TimeZone;
use lazaret_core::store::{Action, Actor, PlanRequest, Result, RolloutPolicy, Selection};
use lazaret_core::{LetterId, LetterState, QueueName, Timestamp};

use crate::component::Component;

/// The number of heads that are read in one step.
const PAGE: usize = 256;
/// The validity of a plan that begins at once.
const VALID_FOR: Duration = Duration::from_secs(60);

/// Configures the automatic reprocessing of dead letters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reprocess {
    /// Dead letters wait for a person to act.
    #[default]
    Manual,
    /// The oldest dead letters are replayed at the times of a schedule.
    Cron {
        /// The times of the replays.
        schedule: Schedule,
        /// The maximum number of letters per replay.
        batch_size: u64,
    },
}

/// A schedule in cron notation, in UTC: second (optional), minute, hour, day of the month, month, day of
/// the week.
///
/// ```
/// use lazaret_engine::Schedule;
/// let every_quarter: Schedule = "0 */15 * * * *".parse().unwrap();
/// let now = "2026-01-01T10:07:00Z".parse().unwrap();
/// assert_eq!(every_quarter.next_after(now).unwrap().to_string(), "2026-01-01T10:15:00Z");
/// assert!("every day".parse::<Schedule>().is_err());
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Schedule(Box<Cron>);

/// The error for a text that is not a cron schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a schedule: {why}; expected five or six fields in cron notation, as in \"0 */15 * * * *\""
)]
#[non_exhaustive]
pub struct InvalidSchedule {
    /// The text.
    pub text: String,
    /// The reason why the text is not valid.
    pub why: String,
}

impl FromStr for Schedule {
    type Err = InvalidSchedule;

    fn from_str(text: &str) -> std::result::Result<Self, InvalidSchedule> {
        let parsed = CronParser::builder().seconds(Seconds::Optional).build().parse(text);
        let wrong = |why: String| InvalidSchedule { text: text.to_owned(), why };
        parsed.map(|cron| Self(Box::new(cron))).map_err(|error| wrong(error.to_string()))
    }
}

impl Schedule {
    /// Returns the first scheduled time after `time`, or `None` if there is none.
    pub fn next_after(&self, time: Timestamp) -> Option<Timestamp> {
        let time = time.to_zoned(TimeZone::UTC);
        self.0.find_next_occurrence(&time, false).ok().map(|next| next.timestamp())
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str())
    }
}

impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0.as_str())
    }
}

/// Begins an operation at each time of the schedule until the consumer drains.
pub(crate) async fn reprocess(component: Arc<Component>) {
    let Some(Reprocess::Cron { schedule, batch_size }) =
        component.options.dead_letter.as_ref().map(|options| options.reprocess.clone())
    else {
        return;
    };
    let mut last = component.now();
    while let Some(next) = schedule.next_after(last) {
        tokio::select! {
            biased;
            () = component.lifecycle.drain.cancelled() => return,
            () = component.sleep_until(next) => {}
        }
        // Times that passed meanwhile are skipped.
        last = component.now().max(next);
        if let Err(error) = begin(&component, batch_size).await {
            tracing::warn!(%error, queue = %component.queue, "dead letters not reprocessed");
        }
    }
}

/// Begins to replay the oldest dead heads.
async fn begin(component: &Component, batch_size: u64) -> Result<()> {
    let letters = oldest_dead(component, batch_size).await?;
    if letters.is_empty() {
        return Ok(());
    }
    let by = Actor::engine("scheduled reprocessing");
    let request = PlanRequest {
        action: Action::Retry,
        selection: Selection::Letters(letters),
        valid_for: VALID_FOR,
        max_letters: batch_size,
    };
    let plan = component.store.freeze(&request, &by).await?;
    if plan.letters == 0 {
        // All letters are already part of an operation.
        return Ok(());
    }
    let rollout = RolloutPolicy { rate: component.options.replay.rate, ..RolloutPolicy::unlimited() };
    component.store.begin(plan.id, &rollout, &by).await?;
    component.signals.replay.notify_one();
    Ok(())
}

async fn oldest_dead(component: &Component, at_most: u64) -> Result<Vec<(QueueName, LetterId)>> {
    let at_most = usize::try_from(at_most).unwrap_or(usize::MAX);
    let mut letters = Vec::new();
    let mut after = None;
    loop {
        let store = &component.store;
        let page = store.heads(&component.queue, after.as_deref(), PAGE).await?;
        let dead = page.heads.iter().filter(|head| head.state == LetterState::Dead && !head.payload_left_out);
        letters.extend(dead.map(|head| (component.queue.clone(), head.id)));
        after = page.next;
        if letters.len() >= at_most || after.is_none() {
            letters.truncate(at_most);
            return Ok(letters);
        }
    }
}
