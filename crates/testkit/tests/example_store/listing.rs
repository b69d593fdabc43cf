//! Reading what is stored. Each scan here is an index in a database.

use std::collections::BTreeSet;

use lazaret_core::letter::{Letter, LetterId, LetterState};
use lazaret_core::query::Query;
use lazaret_core::store::rules::SequenceRow;
use lazaret_core::store::{
    Counts, ErrorKind, GroupId, GroupsPage, GroupsRequest, HeadsPage, LettersPage, OpenedPage, QueueSummary,
    Result, StoreError,
};
use lazaret_core::{QueueName, SequenceId, Timestamp};

use crate::DocumentStore;
use crate::database::LetterDoc;
use crate::effects::last_number;

/// How many letters a page of a search looks at.
const LOOKED_AT: usize = 10_000;

/// A place in a list: a number, and a name that keeps equals apart.
fn cursor(text: Option<&str>, operation: &'static str) -> Result<Option<(i128, String)>> {
    let parse = |text: &str| {
        let (number, name) = text.split_once('/').unwrap_or((text, ""));
        number.parse().ok().map(|number| (number, name.to_owned()))
    };
    text.map(|text| parse(text).ok_or_else(|| not_a_cursor(Some(text), operation))).transpose()
}

fn not_a_cursor(text: Option<&str>, operation: &'static str) -> StoreError {
    let context = format!("{:?} is not a cursor of this store", text.unwrap_or_default());
    StoreError::not_done(ErrorKind::Invalid, operation, context)
}

/// The first `limit` entries of a list in order, and the cursor behind them if there are more.
fn page<T>(
    list: Vec<((i128, String), T)>,
    after: Option<(i128, String)>,
    limit: usize,
) -> (Vec<T>, Option<String>) {
    let mut rest = list.into_iter().filter(|(place, _)| after.as_ref().is_none_or(|after| place > after));
    let (places, page): (Vec<_>, Vec<_>) = rest.by_ref().take(limit.max(1)).unzip();
    let more = rest.next().is_some();
    (page, places.last().filter(|_| more).map(|(number, name)| format!("{number}/{name}")))
}

impl DocumentStore {
    /// The rows of the open sequences of a queue.
    pub(crate) fn rows(&self, queue: &QueueName) -> Result<Vec<(SequenceId, SequenceRow)>> {
        self.catch_up()?;
        let rows = self.db.sequences.scan(.., |(of, sequence), doc| {
            doc.value.row.clone().filter(|_| of == queue).map(|row| (sequence.clone(), row))
        });
        let rows = rows.into_iter().map(|(sequence, row)| {
            let row = self.current(queue, &sequence, row);
            (sequence, row)
        });
        Ok(rows.collect())
    }

    pub(crate) fn open_sequences(&self, queue: &QueueName) -> u64 {
        let open =
            self.db.sequences.scan(.., |(of, _), doc| (of == queue && doc.value.row.is_some()).then_some(()));
        open.len() as u64
    }

    /// The open letters of every open sequence of a queue, in order.
    pub(crate) fn open_letters(&self, queue: &QueueName) -> Result<Vec<(SequenceId, Vec<LetterId>)>> {
        self.catch_up()?;
        Ok(self.db.sequences.scan(.., |(of, sequence), doc| {
            let letters = || doc.value.letters.values().copied().collect();
            (of == queue && doc.value.row.is_some()).then(|| (sequence.clone(), letters()))
        }))
    }

    /// The letters of a queue for which there is a time, by that time.
    pub(crate) fn letters_by_time(
        &self,
        queue: &QueueName,
        time: impl Fn(&LetterDoc) -> Option<Timestamp>,
    ) -> Result<Vec<(Timestamp, LetterId, SequenceId)>> {
        self.catch_up()?;
        let mut letters = self.db.letters.scan(.., |(of, id), doc| {
            time(doc).filter(|_| of == queue).map(|time| (time, *id, doc.sequence.clone()))
        });
        letters.sort_unstable();
        Ok(letters)
    }

    pub(crate) fn list(
        &self,
        queue: &QueueName,
        sequence: &SequenceId,
        from: u64,
        limit: usize,
    ) -> Result<Vec<Letter>> {
        self.change(queue, sequence, |view| Ok((view.open_from(from).take(limit).collect(), None)))
    }

    pub(crate) fn counts_of(&self, queue: &QueueName) -> Result<Counts> {
        self.catch_up()?;
        let docs = self.db.sequences.scan(.., |(of, _), doc| {
            (of == queue).then_some((u64::from(doc.value.row.is_some()), doc.value.by_state))
        });
        Ok(docs.into_iter().fold(Counts::default(), |mut counts, (open, by_state)| {
            counts.sequences += open;
            counts.by_state.iter_mut().zip(by_state).for_each(|(sum, more)| *sum += more);
            counts
        }))
    }

    pub(crate) fn list_heads(
        &self,
        queue: &QueueName,
        after: Option<&str>,
        limit: usize,
    ) -> Result<HeadsPage> {
        let after = cursor(after, "heads")?;
        let rows = self.rows(queue)?.into_iter();
        let mut heads: Vec<_> = rows
            .map(|(sequence, row)| ((row.head.touched.as_nanosecond(), sequence.to_string()), sequence))
            .collect();
        heads.sort_by(|(one, _), (other, _)| one.cmp(other));
        let (sequences, next) = page(heads, after, limit);
        let mut heads = Vec::new();
        for sequence in sequences {
            heads.extend(self.list(queue, &sequence, 0, 1)?);
        }
        Ok(HeadsPage { heads, next })
    }

    pub(crate) fn list_opened(&self, queue: &QueueName, revision: u64, limit: usize) -> Result<OpenedPage> {
        self.catch_up()?;
        let last = last_number(&self.db.opened).max(revision);
        let opened = self.db.opened.scan(revision + 1.., |number, entry| {
            let (of, sequence) = &entry.value;
            (of == queue).then(|| (*number, sequence.clone()))
        });
        let is_open = |sequence: &SequenceId| {
            let doc = self.db.sequences.get(&(queue.clone(), sequence.clone()));
            doc.is_some_and(|doc| doc.value.value.row.is_some())
        };
        let mut opened: Vec<_> = opened.into_iter().filter(|(_, sequence)| is_open(sequence)).collect();
        let more = opened.len() > limit.max(1);
        opened.truncate(limit.max(1));
        let revision = opened.last().filter(|_| more).map_or(last, |(number, _)| *number);
        Ok(OpenedPage {
            sequences: opened.into_iter().map(|(_, sequence)| sequence).collect(),
            revision,
            more,
        })
    }

    pub(crate) fn search(&self, query: &Query, after: Option<&str>, limit: usize) -> Result<LettersPage> {
        let number = |text: &str| text.parse().ok().filter(|number: &u64| number.to_string() == text);
        let before = after.map_or(Some(u64::MAX), number).ok_or_else(|| not_a_cursor(after, "find"))?;
        self.catch_up()?;
        let now = self.clock.now();
        let mut arrivals =
            self.db.arrivals.scan(..before, |number, entry| Some((*number, entry.value.clone())));
        let mut letters = Vec::new();
        for looked_at in 1.. {
            let Some((number, key)) = arrivals.pop() else { break };
            let letter = self.db.letters.get(&key).and_then(|stored| stored.value.letter);
            letters.extend(letter.filter(|letter| query.matches(letter, now)));
            if letters.len() == limit.max(1) || looked_at == LOOKED_AT {
                let next = (!arrivals.is_empty()).then(|| number.to_string());
                return Ok(LettersPage { letters, next });
            }
        }
        Ok(LettersPage { letters, next: None })
    }

    pub(crate) fn list_groups(&self, request: &GroupsRequest) -> Result<GroupsPage> {
        let after = cursor(request.after.as_deref(), "groups")?;
        self.catch_up()?;
        let now = self.clock.now();
        let rows = self.db.groups.scan(.., |(queue, fingerprint), doc| {
            let id = GroupId { queue: queue.clone(), fingerprint: *fingerprint };
            let row = doc.row.clone().filter(|_| request.queue.as_ref().is_none_or(|wanted| wanted == queue));
            row.map(|row| (id, row))
        });
        let groups = rows.into_iter().map(|(id, row)| {
            let of_group = |letter: &Letter| {
                letter.cause.as_ref().is_some_and(|cause| cause.fingerprint == id.fingerprint)
            };
            let oldest = self.oldest(&id.queue, of_group);
            let next_expiry = self.next_expiry(&id.queue, of_group);
            row.to_group(id, oldest, next_expiry, now)
        });
        let groups = groups.filter(|group| request.closed || group.counts.open() > 0);
        let mut groups: Vec<_> =
            groups.map(|group| ((-i128::from(group.counts.open()), group.id.to_string()), group)).collect();
        groups.sort_by(|(one, _), (other, _)| one.cmp(other));
        let (groups, next) = page(groups, after, request.limit);
        Ok(GroupsPage { groups, next })
    }

    /// When the oldest open letter of these was taken in.
    fn oldest(&self, queue: &QueueName, wanted: impl Fn(&Letter) -> bool) -> Option<Timestamp> {
        let open = self.db.letters.scan(.., |(of, _), doc| {
            let letter = doc.letter.as_ref().filter(|letter| of == queue && letter.state.is_open());
            letter.filter(|letter| wanted(letter)).map(|letter| letter.enqueued_at)
        });
        open.into_iter().min()
    }

    pub(crate) fn summaries(&self) -> Result<Vec<QueueSummary>> {
        self.catch_up()?;
        let names = self.db.letters.scan(.., |(queue, _), _| Some(queue.clone()));
        let names: BTreeSet<QueueName> = names.into_iter().collect();
        let summaries = names.into_iter().map(|queue| {
            let (counts, oldest) = (self.counts_of(&queue)?, self.oldest(&queue, |_| true));
            let next_expiry = self.next_expiry(&queue, |_| true);
            Ok(QueueSummary { queue, counts, oldest, next_expiry })
        });
        summaries.collect()
    }

    /// When the next open letter of these expires. Letters that wait do not.
    fn next_expiry(&self, queue: &QueueName, wanted: impl Fn(&Letter) -> bool) -> Option<Timestamp> {
        let ends = self.db.letters.scan(.., |(of, _), doc| {
            let letter = doc.letter.as_ref().filter(|letter| of == queue && letter.state.is_open());
            letter.filter(|letter| letter.state != LetterState::Waiting && wanted(letter))?.expires_at
        });
        ends.into_iter().min()
    }
}
