//! Streams that are deleted and created again at any moment, while their messages are being handled.
//!
//! A message of an earlier incarnation was deleted with it. If it was not settled by then, it may be handled, become a letter, or
//! be gone. If the store had its letter, the letter keeps its identity, and its place before the messages of its key that follow
//! in later incarnations. All messages of the current incarnation are settled, whatever positions and ids they share with deleted
//! ones (I1).
//!
//! The id of a message may therefore be that of another one. The history calls each message by a name of its own, which is its id
//! unless an earlier one has it.

use std::cmp::Ordering;

use lazaret_core::{Letter, LetterId, LetterState, Message, MessageId, SequenceId};
use lazaret_engine::DeadLetterOptions;

use crate::history::History;
use crate::plan::Plan;
use crate::random::Random;
use crate::world::World;

/// How many plans recreate their stream, per mille of those that can.
const RECREATED: u64 = 200;
/// More letters than one sequence has.
const LETTERS_LIMIT: usize = 1_000;

/// When the stream is recreated, and which ids its messages have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recreations {
    /// The numbers of the messages before which it is. Without any, it has one incarnation.
    before: Vec<u64>,
    ids: Ids,
}

/// The ids of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Ids {
    /// Senders give all messages different ones.
    #[default]
    Given,
    /// Senders give none: the source makes them from positions.
    Made,
    /// Senders give the same ones again in each incarnation.
    Repeated,
}

/// Draws whether the stream of the plan is recreated, apart from everything else.
pub(crate) fn draw(plan: &mut Plan) {
    let mut random = Random::new(plan.seed).fork(9);
    // The retry topic is a partition of the log that would be deleted with it. The topics of a broker are deleted one by one.
    if plan.topics || !random.chance(RECREATED) {
        return;
    }
    let times = random.between(1, 2);
    let mut before: Vec<u64> = (0..times).map(|_| random.between(1, plan.messages - 1)).collect();
    before.sort_unstable();
    before.dedup();
    let drawn = *random.pick(&[Ids::Made, Ids::Repeated]);
    let has_copies = plan.copies > 0;
    let supported = match drawn {
        Ids::Given => true,
        // Only a message whose sender gave it an id can have a copy.
        Ids::Made => !has_copies,
        // The flight recorder knows messages by their ids alone: a crash of an old one would be charged to a new one. And when letters
        // get ids of their own, those of two copies get two.
        Ids::Repeated => !has_copies && !plan.recorder,
    };
    plan.recreations = Recreations { before, ids: if supported { drawn } else { Ids::Given } };
    // A letter that was purged does not tell of which incarnation it was. The engine then handles its message once more.
    if let Some(dead_letter) = &mut plan.options.dead_letter {
        dead_letter.keep_closed = DeadLetterOptions::default().keep_closed;
    }
}

impl Recreations {
    /// Returns `true` when the stream is recreated during the run.
    pub(crate) fn happen(&self) -> bool {
        !self.before.is_empty()
    }

    /// The id of a message that the log made, and to which it has given the id of its position.
    pub(crate) fn id_of(&self, message: &Message) -> MessageId {
        let Message { id, stream, position, .. } = message;
        match self.ids {
            // An id as a sender gives it, so that copies can have it, too.
            Ids::Given => id.as_str().replace('/', "-").into(),
            Ids::Made => id.clone(),
            Ids::Repeated => format!("{stream}-{}-{}", position.partition, position.offset).into(),
        }
    }

    /// Returns `true` when this is the published message with its position as id: its letter has that if one of an earlier incarnation
    /// has its id already.
    pub(crate) fn is_renamed(&self, published: &Message, message: &Message) -> bool {
        self.ids == Ids::Repeated
            && published.position.incarnation > 0
            && *message == Message { id: published.position_id(), ..published.clone() }
    }
}

impl History {
    /// Names a message that is published under this id.
    pub(crate) fn new_name(&mut self, number: u64, id: &MessageId) -> MessageId {
        let name = match self.messages.contains_key(id) {
            true => MessageId::from(format!("{id}~{}", self.incarnation)),
            false => id.clone(),
        };
        self.names.insert(number, name.clone());
        name
    }

    fn incarnation_of(&self, name: &MessageId) -> u32 {
        self.messages.get(name).map_or(0, |original| original.incarnation)
    }

    /// Returns `true` when the message was deleted with its stream.
    pub(crate) fn is_deleted(&self, name: &MessageId) -> bool {
        self.incarnation_of(name) < self.incarnation
    }

    /// Returns `true` when nothing orders these messages of one key: they are of two incarnations, and the store had no letter of the
    /// earlier one when that of the later one began. A hand-off that was under way then may arrive at any time.
    pub(crate) fn are_apart(&self, component: usize, one: &MessageId, other: &MessageId) -> bool {
        let (of_one, of_other) = (self.incarnation_of(one), self.incarnation_of(other));
        let (earlier, later) = match of_one.cmp(&of_other) {
            Ordering::Equal => return false,
            Ordering::Less => (one, of_other),
            Ordering::Greater => (other, of_one),
        };
        let kept = self.kept.get(&(component, earlier.clone()));
        kept.is_none_or(|since| *since > later)
    }
}

impl World {
    /// Deletes the stream and creates it again, if that is the plan before this message.
    pub(crate) async fn recreate_before(&self, number: u64) {
        if !self.plan.recreations.before.contains(&number) {
            return;
        }
        let mut random = Random::new(self.plan.seed).fork(6_000_000 + number);
        // By then nothing of the last messages was read, or some of it, or all is settled.
        let longest = *random.pick(&[1, 50, 2_000]);
        tokio::time::sleep(random.millis(0, longest)).await;
        self.recreate();
        // Messages may follow at once, or when the members have seen that there are none.
        let longest = *random.pick(&[1, 50, 2_000]);
        tokio::time::sleep(random.millis(0, longest)).await;
    }

    fn recreate(&self) {
        let names: Vec<MessageId> = self.history().messages.keys().cloned().collect();
        let mut letters = Vec::new();
        for component in 0..self.queues.len() {
            let states = self.states(component, &names).into_iter();
            let stored = names.iter().zip(states).filter(|(_, state)| state.is_some());
            letters.extend(stored.map(|(name, _)| (component, name.clone())));
        }
        self.log.recreate(self.log.partitions());
        let mut history = self.history();
        history.incarnation += 1;
        let number = history.incarnation;
        // Their offsets begin again.
        history.checked.clear();
        for letter in letters {
            history.kept.entry(letter).or_insert(number);
        }
        drop(history);
        self.trace(|| format!("the stream was recreated: incarnation {number}"));
    }

    /// The name of a message in the history.
    pub(crate) fn name(&self, message: &Message) -> MessageId {
        if !self.plan.recreations.happen() {
            return message.id.clone();
        }
        let number = message.headers.get("n").and_then(|n| std::str::from_utf8(n).ok()?.parse::<u64>().ok());
        let named = number.and_then(|number| self.history().names.get(&number).cloned());
        named.unwrap_or_else(|| message.id.clone())
    }

    /// The letter of the message with this name.
    pub(crate) fn letter(&self, component: usize, name: &MessageId) -> Option<Letter> {
        let queue = &self.queues[component];
        let get =
            |id: &MessageId| self.run(self.store.get(queue, LetterId::of(queue, id))).unwrap_or_default();
        let letters = self.ids_of(name);
        // Its id may be that of another one.
        letters.iter().filter_map(get).find(|letter| self.name(&letter.message) == *name)
    }

    /// The ids that the letter of this message can have.
    fn ids_of(&self, name: &MessageId) -> Vec<MessageId> {
        let history = self.history();
        let Some(original) = history.messages.get(name) else { return vec![name.clone()] };
        let mut ids = vec![original.message.id.clone()];
        if self.plan.recreations.ids == Ids::Repeated {
            ids.push(original.message.position_id());
        }
        ids
    }

    /// The states of the letters of the messages with these names.
    pub(crate) fn states(&self, component: usize, names: &[MessageId]) -> Vec<Option<LetterState>> {
        if self.plan.recreations.happen() {
            return names.iter().map(|name| Some(self.letter(component, name)?.state)).collect();
        }
        self.run(self.store.lookup(&self.queues[component], names)).unwrap_or_default()
    }

    /// The id of the letter of the message with this name, as the audit shows it. The letter may have been purged.
    pub(crate) fn letter_id(&self, component: usize, name: &MessageId) -> Option<String> {
        let id = match self.plan.recreations.happen() {
            true => self.letter(component, name)?.id,
            false => LetterId::of(&self.queues[component], name),
        };
        Some(id.to_string())
    }

    /// I2, I5 and I11: the letters that the store had when the stream was recreated are still there, as they were, and before those of
    /// later incarnations.
    pub(crate) fn check_kept(&self) {
        let (kept, sequences) = {
            let history = self.history();
            let kept: Vec<(usize, MessageId)> = history.kept.keys().cloned().collect();
            let sequences: Vec<SequenceId> = history.sequences.keys().cloned().collect();
            (kept, sequences)
        };
        for (component, name) in &kept {
            match self.letter(*component, name) {
                Some(letter) => self.check_identity(&letter.message),
                None => self.violated("I11", &format!("the letter of {name} is gone with its stream")),
            }
        }
        if kept.is_empty() {
            return;
        }
        for component in 0..self.queues.len() {
            for sequence in &sequences {
                self.check_places(component, sequence);
            }
        }
    }

    fn check_places(&self, component: usize, sequence: &SequenceId) {
        let listed = self.run(self.store.sequence(&self.queues[component], sequence, 0, LETTERS_LIMIT));
        let names: Vec<MessageId> =
            listed.unwrap_or_default().iter().map(|letter| self.name(&letter.message)).collect();
        let misplaced: Vec<String> = {
            let history = self.history();
            let mut misplaced = Vec::new();
            for (place, before) in names.iter().enumerate() {
                for behind in &names[place + 1..] {
                    let is_older = history.incarnation_of(behind) < history.incarnation_of(before);
                    if is_older && !history.are_apart(component, before, behind) {
                        misplaced
                            .push(format!("the letter of {behind} stands behind that of the later {before}"));
                    }
                }
            }
            misplaced
        };
        for text in misplaced {
            self.violated("I2", &text);
        }
    }
}
