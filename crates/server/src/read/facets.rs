//! What the letters of a group have in common.

use std::collections::{HashMap, HashSet};

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use lazaret_api::{
    Facet, FacetValue, GroupAssignment, GroupComment, GroupFacets, Operation, Scope, SequenceShare, Variant,
};
use lazaret_core::query::{GroupPattern, Query, Term, Text, TextField};
use lazaret_core::redaction::TextRules;
use lazaret_core::store::GroupId;
use lazaret_core::{Letter, LetterId, SequenceId};

use super::assignments::assignments;
use super::groups::find_group;
use super::plan_contents::may_use_plan;
use crate::api_error::Result;
use crate::app::App;
use crate::auth::Caller;
use crate::extract::Name;
use crate::shared_reads::SharedReads;

/// The most letters examined, and how many are in memory at a time (I7). The cost of a response does not grow with the group.
const MAX_LETTERS: usize = 200;
const STEP: usize = 100;
/// The most reads of the store for them. A read of closed letters may find none: there is no index over them.
const MAX_READS: usize = 3;
/// The most distinct values counted per field. Later ones count as others.
const MAX_DISTINCT: usize = 200;
/// The values, variants, sequences, headers and comments of a response.
const VALUES: usize = 6;
const VARIANTS: usize = 12;
const SEQUENCES: usize = 25;
const HEADERS: usize = 8;
const COMMENTS: usize = 10;
/// The operations of a response; how many of the latest are examined, and how many letters of each.
const OPERATIONS: usize = 5;
const OPERATIONS_EXAMINED: usize = 20;
const ITEMS_EXAMINED: usize = 100;
/// Longer values are no facet.
const MAX_VALUE_CHARS: usize = 200;

/// What a response depends on: the group, and the rights of the caller. Callers who differ in one of them share nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FacetsKey {
    group: GroupId,
    /// Whether the caller may see headers.
    headers: bool,
    /// The consumers that the caller is limited to; empty for all.
    consumers: Vec<String>,
}

/// Responses that are being made, encoded.
pub(crate) type FacetReads = SharedReads<FacetsKey, Result<Bytes>>;

pub(crate) async fn facets(State(app): State<App>, caller: Caller, Name(id): Name) -> Result<Response> {
    // Rights are checked for each caller.
    let group = find_group(&app, &caller, &id).await?.id;
    let consumers = caller.identity.consumers.clone();
    let key = FacetsKey { group: group.clone(), headers: caller.identity.may(Scope::Payload), consumers };
    let facets = app.facet_reads.read(key, encoded(&app, &caller, &group)).await?;
    Ok(([(header::CONTENT_TYPE, "application/json")], facets).into_response())
}

async fn encoded(app: &App, caller: &Caller, group: &GroupId) -> Result<Bytes> {
    // Not refused: the result may also be for others. There is one read of a group at a time.
    let _turn = app.scans.take_later(caller).await;
    let facets = read(app, caller, group).await?;
    // Serializing plain data cannot fail.
    Ok(Bytes::from(serde_json::to_vec(&facets).unwrap_or_default()))
}

async fn read(app: &App, caller: &Caller, id: &GroupId) -> Result<GroupFacets> {
    // The values of redacted headers are counted for nobody.
    let rules = &app.options.redaction;
    let shows_header = |name: &str| caller.identity.may(Scope::Payload) && !rules.covers_header(name);
    // Read here: the response is also for those who came after the caller.
    let is_open = app.store.group(id).await?.is_some_and(|group| group.counts.open() > 0);
    let state = if is_open { "state:open" } else { "state:closed" };
    let query = caller.limit(Query::parse(&format!("{} {state}", group_term(id)))?);
    let mut tally = Tally::default();
    let mut after = None;
    for _ in 0..MAX_READS {
        let page = app.store.find(&query, after.as_deref(), STEP).await?;
        page.letters.iter().for_each(|letter| tally.add(letter, rules.texts(), &shows_header));
        after = page.next;
        if after.is_none() || tally.examined >= MAX_LETTERS {
            break;
        }
    }
    let assignments = assignments(app, &tally.letters).await?;
    let operations = operations(app, caller, id, &tally.letters).await?;
    Ok(tally.finish(after.is_none(), assignments, operations))
}

/// The latest operations that selected the group by its id, or that have one of these letters among their first.
async fn operations(
    app: &App,
    caller: &Caller,
    group: &GroupId,
    letters: &HashSet<LetterId>,
) -> Result<Vec<Operation>> {
    let mut found = Vec::new();
    for operation in app.store.operations(None, OPERATIONS_EXAMINED).await?.operations {
        let query = app.store.plan(operation.plan).await?.and_then(|plan| plan.query);
        let selected = query.is_some_and(|query| selects(&query, group));
        let touched = selected || {
            let items = app.store.plan_items(operation.plan, 0, ITEMS_EXAMINED).await?;
            items.iter().any(|item| letters.contains(&item.letter))
        };
        if touched && may_use_plan(app, caller, operation.plan).await? {
            found.push(Operation::from(&operation));
        }
        if found.len() == OPERATIONS {
            break;
        }
    }
    Ok(found)
}

/// Returns `true` if a query requires the letters to be in this group.
fn selects(query: &str, group: &GroupId) -> bool {
    let Ok(query) = Query::parse(query) else { return false };
    let fingerprint = group.fingerprint.to_string();
    let of_group = |term: &Term| match term {
        Term::Group(any) => any.iter().any(|pattern| pattern.matches(&fingerprint, &group.queue)),
        _ => false,
    };
    query.expr().required().any(of_group)
}

/// The condition that a letter is in a group.
fn group_term(id: &GroupId) -> Term {
    Term::Group(vec![GroupPattern::from(id)])
}

/// Counts values. Beyond a number of distinct ones, new values count as others.
struct Counter<K>(HashMap<K, u64>, u64);

impl<K: std::hash::Hash + Eq + Clone + Ord> Counter<K> {
    fn add(&mut self, key: &K) {
        let has_room = self.0.len() < MAX_DISTINCT;
        match self.0.get_mut(key) {
            Some(count) => *count += 1,
            None if has_room => {
                self.0.insert(key.clone(), 1);
            }
            None => self.1 += 1,
        }
    }

    /// The most frequent values, and the number of others.
    fn top(self, most: usize) -> (Vec<(K, u64)>, u64) {
        let Self(counts, mut others) = self;
        let mut counts: Vec<(K, u64)> = counts.into_iter().collect();
        counts.sort_by(|(a, x), (b, y)| y.cmp(x).then_with(|| a.cmp(b)));
        others += counts.iter().skip(most).map(|(_, count)| count).sum::<u64>();
        counts.truncate(most);
        (counts, others)
    }

    fn sum(&self) -> u64 {
        self.0.values().sum::<u64>() + self.1
    }
}

impl<K> Default for Counter<K> {
    fn default() -> Self {
        Self(HashMap::new(), 0)
    }
}

/// The counts of the letters examined so far.
#[derive(Default)]
struct Tally {
    examined: usize,
    letters: HashSet<LetterId>,
    fields: HashMap<&'static str, Counter<String>>,
    headers: HashMap<String, Counter<String>>,
    variants: Counter<(String, String)>,
    latest: HashMap<(String, String), String>,
    sequences: HashMap<SequenceId, SequenceShare>,
    comments: Vec<GroupComment>,
}

/// The fields that a letter has outside of its headers.
const FIELDS: [(&str, TextField); 5] = [
    ("type", TextField::Type),
    ("stream", TextField::Stream),
    ("reason", TextField::Reason),
    ("owner", TextField::Owner),
    ("assignee", TextField::Assignee),
];

fn value_of(letter: &Letter, field: TextField) -> Option<String> {
    match field {
        TextField::Type => letter.message.event_type.as_deref().map(str::to_owned),
        TextField::Stream => Some(letter.message.stream.to_string()),
        TextField::Reason => letter.cause.as_ref().map(|cause| cause.reason.to_string()),
        TextField::Owner => letter.owner.as_deref().map(str::to_owned),
        TextField::Assignee => letter.assignee.as_deref().map(str::to_owned),
        _ => None,
    }
}

impl Tally {
    fn add(&mut self, letter: &Letter, texts: &TextRules, shows_header: &impl Fn(&str) -> bool) {
        self.examined += 1;
        self.letters.insert(letter.id);
        for (name, field) in FIELDS {
            let value = value_of(letter, field).filter(|value| is_short(value));
            if let Some(value) = value {
                self.fields.entry(name).or_default().add(&value);
            }
        }
        let headers = letter.message.headers.iter().filter(|(name, _)| shows_header(name));
        let headers = headers.filter_map(|(name, value)| {
            Some((name, std::str::from_utf8(value).ok().filter(|value| is_short(value))?))
        });
        for (name, value) in headers {
            if self.headers.len() < MAX_DISTINCT || self.headers.contains_key(name) {
                self.headers.entry(name.to_owned()).or_default().add(&value.to_owned());
            }
        }
        if let Some(cause) = &letter.cause {
            let mut shown = cause.clone();
            texts.apply_to_failure(&mut shown);
            let variant = (shown.error_type, shown.message);
            self.variants.add(&variant);
            if self.latest.len() < MAX_DISTINCT {
                // The latest comes first.
                self.latest.entry(variant).or_insert_with(|| letter.id.to_string());
            }
        }
        self.add_sequence(letter);
        for comment in &letter.comments {
            let (by, at, text) = (comment.by.clone(), comment.at, texts.redact(&comment.text).into_owned());
            self.comments.push(GroupComment { letter: letter.id.to_string(), by, at, text });
        }
        if self.comments.len() > 2 * COMMENTS {
            self.keep_latest_comments();
        }
    }

    fn add_sequence(&mut self, letter: &Letter) {
        // Letters that left their sequence are counted with it.
        let sequence = letter.sequence.origin().unwrap_or_else(|| letter.sequence.clone());
        if self.sequences.len() >= MAX_LETTERS && !self.sequences.contains_key(&sequence) {
            return;
        }
        let share = self.sequences.entry(sequence.clone()).or_insert_with(|| SequenceShare {
            queue: letter.queue.to_string(),
            sequence: sequence.to_string(),
            letters: 0,
            letter: letter.id.to_string(),
            enqueued_at: letter.enqueued_at,
        });
        share.letters += 1;
        if letter.enqueued_at <= share.enqueued_at {
            (share.letter, share.enqueued_at) = (letter.id.to_string(), letter.enqueued_at);
        }
    }

    fn keep_latest_comments(&mut self) {
        self.comments.sort_by_key(|comment| std::cmp::Reverse(comment.at));
        self.comments.truncate(COMMENTS);
    }

    fn finish(
        mut self,
        exact: bool,
        assignments: Vec<GroupAssignment>,
        operations: Vec<Operation>,
    ) -> GroupFacets {
        self.keep_latest_comments();
        let mut facets = Vec::new();
        for (name, field) in FIELDS {
            if let Some(counter) = self.fields.remove(name) {
                facets.push(facet(name.to_owned(), counter, |value| {
                    Term::Text(field, vec![Text::Exact(value.to_owned())]).to_string()
                }));
            }
        }
        let mut headers: Vec<(String, Counter<String>)> = self.headers.into_iter().collect();
        headers.sort_by(|(a, x), (b, y)| y.sum().cmp(&x.sum()).then_with(|| a.cmp(b)));
        for (name, counter) in headers.into_iter().filter(|(_, counter)| is_telling(counter)).take(HEADERS) {
            facets.push(facet(format!("header.{name}"), counter, |value| {
                Term::Header { name: name.to_lowercase(), any: vec![Text::Exact(value.to_owned())] }
                    .to_string()
            }));
        }
        let variants = self.variants.top(VARIANTS).0.into_iter().map(|(variant, letters)| {
            let letter = self.latest.get(&variant).cloned().unwrap_or_default();
            Variant { error_type: variant.0, message: variant.1, letters, letter }
        });
        let variants = variants.collect();
        let mut sequences: Vec<SequenceShare> = self.sequences.into_values().collect();
        sequences.sort_by(|a, b| b.letters.cmp(&a.letters).then_with(|| a.enqueued_at.cmp(&b.enqueued_at)));
        sequences.truncate(SEQUENCES);
        GroupFacets {
            examined: self.examined as u64,
            exact,
            facets,
            variants,
            sequences,
            comments: self.comments,
            assignments,
            operations,
        }
    }
}

fn is_short(value: &str) -> bool {
    value.chars().nth(MAX_VALUE_CHARS).is_none()
}

/// Returns `false` for a header whose every value is another one, such as an id.
fn is_telling(counter: &Counter<String>) -> bool {
    counter.sum() < 3 || (counter.0.len() as u64) * 2 <= counter.sum()
}

fn facet(field: String, counter: Counter<String>, query: impl Fn(&str) -> String) -> Facet {
    let (values, others) = counter.top(VALUES);
    let values =
        values.into_iter().map(|(value, letters)| FacetValue { query: query(&value), value, letters });
    Facet { field, values: values.collect(), others }
}
