//! The letters that a query looks at, along one index.

use std::collections::BTreeSet;

use bson::{Document, doc};
use lazaret_core::QueueName;
use lazaret_core::letter::{LetterId, LetterState};
use lazaret_core::message::MessageId;
use lazaret_core::query::{Query, Term, Text, TextField};
use lazaret_core::store::GroupId;

use super::condition::{Part, letter_id};

/// Maximum number of letters that are looked up by name instead of along an index.
const LIST_LIMIT: usize = 1000;
/// Maximum number of places of an index where a server begins to read at once. A server takes 200, and sorts if there are more.
const PLACES: usize = 100;

/// The letters that a query looks at.
pub(super) enum Rows {
    /// None.
    Nothing,
    /// These.
    Letters(Vec<LetterId>),
    /// Those of an index, from the newest to the oldest.
    Along(Along),
}

/// The letters with these values in the fields with which an index begins. The next field of the index is their number.
pub(super) struct Along {
    fields: Document,
    /// The terms that these values decide.
    decided: Decided,
}

/// The terms of a query that an index decides.
enum Decided {
    None,
    /// Every term about the state that has to hold.
    States,
    /// Every term about queue and state that has to hold.
    QueuesAndStates,
    /// This one.
    One(Term),
}

impl Rows {
    /// The letters that a query can match. `queues` are all that have letters.
    pub(super) fn of(query: &Query, queues: &[QueueName]) -> Self {
        let required = || query.expr().required();
        let exact = |wanted: TextField| required().find_map(|term| exact_texts(term, wanted));
        let wanted: Vec<&QueueName> = queues
            .iter()
            .filter(|queue| required().all(|term| term.matches_queue(queue) != Some(false)))
            .collect();
        let names_queues = required().any(is_about_queues);
        if names_queues && wanted.is_empty() {
            return Self::Nothing;
        }
        if let Some((_, texts)) = exact(TextField::Id) {
            return Self::Letters(texts.into_iter().filter_map(letter_id).collect());
        }
        // The id of a letter is derived from its queue and its message, and that of an import as well.
        if let Some((_, texts)) = exact(TextField::Message)
            && texts.len().saturating_mul(wanted.len()) <= LIST_LIMIT
        {
            let ids = |queue: &QueueName, message: &MessageId| {
                [LetterId::of(queue, message), LetterId::of_import(queue, message)]
            };
            let of = |text: &str| {
                let message = MessageId::from(text);
                wanted.iter().flat_map(|queue| ids(queue, &message)).collect::<Vec<_>>()
            };
            return Self::Letters(texts.into_iter().flat_map(of).collect());
        }
        let only_open = query.is_about_open();
        let open = if only_open {
            doc! { "$in": [true] }
        } else {
            doc! { "$in": [true, false] }
        };
        if let Some((term, texts)) = exact(TextField::Sequence)
            && texts.len() * 2 <= PLACES
        {
            let texts: Vec<&str> = texts.into_iter().collect();
            let fields = doc! { "lazaret.sequence": { "$in": texts }, "lazaret.open": open };
            return Self::Along(Along { fields, decided: Decided::One(term.clone()) });
        }
        if let Some((term, id)) = required().find_map(one_group) {
            let fields = doc! {
                "lazaret.queue": id.queue.as_str(), "lazaret.group": id.fingerprint.to_string(), "lazaret.open": open,
            };
            return Self::Along(Along { fields, decided: Decided::One(term.clone()) });
        }
        let states = states_of(query);
        let all = LetterState::ALL.iter().filter(|state| state.is_open() || !only_open);
        if !names_queues && all.clone().all(|state| states.contains(state)) {
            return Self::Along(Along { fields: doc! { "lazaret.open": open }, decided: Decided::States });
        }
        if states.is_empty() {
            return Self::Nothing;
        }
        if wanted.len() * states.len() <= PLACES {
            let queues: Vec<&str> = wanted.iter().map(|queue| queue.as_str()).collect();
            let states: Vec<&str> = states.iter().map(|state| state.as_str()).collect();
            let fields = doc! { "lazaret.queue": { "$in": queues }, "lazaret.state": { "$in": states } };
            return Self::Along(Along { fields, decided: Decided::QueuesAndStates });
        }
        Self::Along(Along { fields: doc! { "lazaret.open": open }, decided: Decided::None })
    }

    /// Whether the index alone decides about a term that has to hold.
    pub(super) fn decide(&self, term: &Term) -> bool {
        match self {
            Self::Along(along) => match &along.decided {
                Decided::None => false,
                Decided::States => matches!(term, Term::State(_)),
                Decided::QueuesAndStates => matches!(term, Term::State(_)) || is_about_queues(term),
                Decided::One(one) => one == term,
            },
            _ => false,
        }
    }
}

impl Along {
    /// The letters of the index below a number, and down to the end of a part, that can match.
    pub(super) fn filter(&self, end: Option<i64>, before: i64, part: &Part) -> Document {
        let mut filter = self.fields.clone();
        // Those that were purged have none.
        filter.insert("lazaret.number", doc! { "$gte": end.unwrap_or(1), "$lt": before });
        if let Part::Sometimes(condition) = part {
            filter.insert("$and", [condition.clone()]);
        }
        filter
    }

    /// From the newest to the oldest.
    pub(super) fn order() -> Document {
        doc! { "lazaret.number": -1 }
    }

    /// The number of a letter, which is in the index.
    pub(super) fn number_only() -> Document {
        doc! { "_id": 0, "lazaret.number": 1 }
    }
}

fn is_about_queues(term: &Term) -> bool {
    matches!(term, Term::Text(TextField::Queue | TextField::Consumer, _))
}

/// A term for one group that is completely named.
fn one_group(term: &Term) -> Option<(&Term, GroupId)> {
    match term {
        Term::Group(any) => match any.as_slice() {
            [one] => one.group().map(|id| (term, id)),
            _ => None,
        },
        _ => None,
    }
}

/// The states in which a letter can match.
fn states_of(query: &Query) -> BTreeSet<LetterState> {
    let fits = |state: &LetterState| {
        let of_terms = query.expr().required().all(|term| match term {
            Term::State(states) => states.contains(state),
            _ => true,
        });
        of_terms && (state.is_open() || query.names_state())
    };
    LetterState::ALL.into_iter().filter(fits).collect()
}

/// A term for this field, with its texts if none of them is a pattern.
fn exact_texts(term: &Term, wanted: TextField) -> Option<(&Term, BTreeSet<&str>)> {
    let Term::Text(field, any) = term else { return None };
    if *field != wanted {
        return None;
    }
    let texts: Option<BTreeSet<&str>> = any
        .iter()
        .map(|text| match text {
            Text::Exact(exact) => Some(exact.as_str()),
            Text::Glob(_) => None,
        })
        .collect();
    texts.map(|texts| (term, texts))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fields that decide along which index a query goes.
    fn along(text: &str, queues: &[QueueName]) -> Vec<String> {
        match Rows::of(&Query::parse(text).unwrap(), queues) {
            Rows::Along(along) => along.fields.keys().cloned().collect(),
            Rows::Letters(ids) => vec![format!("{} ids", ids.len())],
            Rows::Nothing => vec!["nothing".to_owned()],
        }
    }

    #[test]
    fn a_query_goes_along_the_index_that_suits_it_best() {
        let queues: [QueueName; 2] = ["a/b".into(), "c/d".into()];
        let table: [(&str, &[&str]); 14] = [
            ("", &["lazaret.open"]),
            ("state:open", &["lazaret.open"]),
            ("type:x", &["lazaret.open"]),
            ("state:dead or attempts:1", &["lazaret.open"]),
            ("queue:a", &["lazaret.queue", "lazaret.state"]),
            ("state:dead", &["lazaret.queue", "lazaret.state"]),
            ("state:resolved consumer:c", &["lazaret.queue", "lazaret.state"]),
            ("queue:none", &["nothing"]),
            ("state:dead state:parked", &["nothing"]),
            ("seq:k", &["lazaret.sequence", "lazaret.open"]),
            ("seq:k*", &["lazaret.open"]),
            ("group:g1_0000000000000000@a/b", &["lazaret.queue", "lazaret.group", "lazaret.open"]),
            ("id:none", &["0 ids"]),
            ("message:m queue:a", &["2 ids"]),
        ];
        for (text, fields) in table {
            assert_eq!(along(text, &queues), fields, "{text:?}");
        }
    }

    #[test]
    fn with_many_queues_the_index_of_all_letters_is_read() {
        let queues: Vec<QueueName> = (0..200).map(|n| QueueName::of(&n.to_string(), "x")).collect();
        assert_eq!(along("state:dead", &queues), ["lazaret.open"], "instead of sorting");
        assert_eq!(along("state:dead queue:7", &queues), ["lazaret.queue", "lazaret.state"]);
    }

    #[test]
    fn a_letter_that_was_purged_is_in_no_part() {
        let Rows::Along(along) = Rows::of(&Query::everything(), &[]) else { panic!("it has an index") };
        let numbers = |end| along.filter(end, 9, &Part::Always).get("lazaret.number").cloned();
        assert_eq!(numbers(None), Some(doc! { "$gte": 1_i64, "$lt": 9_i64 }.into()));
        assert_eq!(numbers(Some(4)), Some(doc! { "$gte": 4_i64, "$lt": 9_i64 }.into()));
    }
}
