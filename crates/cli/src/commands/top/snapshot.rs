//! Reads what the screen shows. Polled rather than driven by the event stream: counters change without events, and in a storm of
//! failures a poll costs what it always costs, while the stream carries each of them.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use lazaret_api::{Group, Letter, QueueStatus, Sequence, Status};

use crate::client::{Client, LetterQuery};
use crate::error::Result;

/// The most blocked keys whose lanes are read (I7).
const MAX_KEYS: usize = 24;
/// The most letters that are inspected to find them: a sequence may have several that failed.
const MAX_INSPECTED: usize = 100;
/// The most letters of a lane.
const MAX_LANE: usize = 12;
/// The most groups.
const MAX_GROUPS: usize = 24;
/// How many refreshes a lane may be old while nothing tells of a change.
const MAX_LANE_AGE: u32 = 10;
/// Letters with a cause of their own: the heads of lanes are among them.
const FAILED: &str = "state:retrying,dead,parked,quarantined";

/// What the screen shows.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub(super) status: Status,
    /// The largest groups.
    pub(super) groups: Vec<Group>,
    /// Whether there are more groups.
    pub(super) has_more_groups: bool,
    /// The lanes of the keys that failed last.
    pub(super) lanes: Vec<Sequence>,
    /// The number of blocked keys, if all letters that failed were inspected.
    pub(super) blocked: Option<u64>,
    /// When it was read.
    pub(super) at: Timestamp,
}

/// A lane, and what it was read for.
struct KnownLane {
    lane: Sequence,
    failed: Letter,
    queue: Option<QueueStatus>,
    age: u32,
}

/// Reads snapshots. One costs three requests, and one for each key whose lane may have changed.
pub(super) struct Reader {
    client: Client,
    known: HashMap<(String, String), KnownLane>,
}

impl Reader {
    pub(super) fn new(client: Client) -> Self {
        Self { client, known: HashMap::new() }
    }

    pub(super) async fn read(&mut self) -> Result<Snapshot> {
        let status = self.client.status().await?;
        let page =
            |query: &str, limit| LetterQuery { query: query.to_owned(), after: None, limit: Some(limit) };
        let groups = self.client.groups(&page("", MAX_GROUPS), false).await?;
        let failed = self.client.letters(&page(FAILED, MAX_INSPECTED)).await?;
        let are_all = failed.next.is_none();
        let mut seen = HashSet::new();
        let mut known = HashMap::new();
        let mut lanes = Vec::new();
        // One that left its sequence blocks no key.
        for letter in failed.letters.into_iter().filter(|letter| letter.left_sequence.is_none()) {
            let key = (letter.queue.clone(), letter.sequence.clone());
            if !seen.insert(key.clone()) || lanes.len() == MAX_KEYS {
                continue;
            }
            let lane = self.lane(&status, letter).await?;
            // It may have been closed since.
            if lane.lane.size > 0 {
                lanes.push(lane.lane.clone());
                known.insert(key, lane);
            }
        }
        self.known = known;
        let has_more_groups = groups.next.is_some();
        let blocked = are_all.then_some(seen.len() as u64);
        Ok(Snapshot { status, groups: groups.groups, has_more_groups, lanes, blocked, at: Timestamp::now() })
    }

    /// Returns the lane of a letter; read again only when the letter, the counts of the queue or some time tell that it may differ.
    async fn lane(&mut self, status: &Status, failed: Letter) -> Result<KnownLane> {
        let mut queues = status.consumers.iter().flat_map(|consumer| &consumer.queues);
        let queue = queues.find(|queue| queue.queue == failed.queue).cloned();
        let key = (failed.queue.clone(), failed.sequence.clone());
        if let Some(known) = self.known.remove(&key)
            && known.failed == failed
            && known.queue == queue
            && known.age < MAX_LANE_AGE
        {
            return Ok(KnownLane { age: known.age + 1, ..known });
        }
        let lane = self.client.sequence(&failed.queue, &failed.sequence, None, Some(MAX_LANE)).await?;
        Ok(KnownLane { lane, failed, queue, age: 0 })
    }
}
