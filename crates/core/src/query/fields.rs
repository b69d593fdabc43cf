//! The names of the fields, and the one that was probably meant.

use super::ast::{CountField, TextField, TimeField};

/// A field as it is written before the colon, without those that carry a name of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Text(TextField),
    State,
    Error,
    Count(CountField),
    Time(TimeField),
    Group,
    Poison,
}

const FIELDS: [(&str, Field); 23] = [
    ("id", Field::Text(TextField::Id)),
    ("queue", Field::Text(TextField::Queue)),
    ("consumer", Field::Text(TextField::Consumer)),
    ("stream", Field::Text(TextField::Stream)),
    ("state", Field::State),
    ("type", Field::Text(TextField::Type)),
    ("reason", Field::Text(TextField::Reason)),
    ("phase", Field::Text(TextField::Phase)),
    ("error", Field::Error),
    ("age", Field::Time(TimeField::Age)),
    ("attempts", Field::Count(CountField::Attempts)),
    ("crashes", Field::Count(CountField::Crashes)),
    ("replays", Field::Count(CountField::Replays)),
    ("seq", Field::Text(TextField::Sequence)),
    ("key", Field::Text(TextField::Key)),
    ("message", Field::Text(TextField::Message)),
    ("group", Field::Group),
    ("owner", Field::Text(TextField::Owner)),
    ("assignee", Field::Text(TextField::Assignee)),
    ("poison", Field::Poison),
    ("enqueued", Field::Time(TimeField::Enqueued)),
    ("failed", Field::Time(TimeField::Failed)),
    ("due", Field::Time(TimeField::Due)),
];

/// Aliases from other systems, and the names in the output.
const OTHER_NAMES: [(&str, &str); 12] = [
    ("sequence", "seq"),
    ("status", "state"),
    ("event-type", "type"),
    ("event_type", "type"),
    ("fingerprint", "group"),
    ("crash-attempts", "crashes"),
    ("replay-attempts", "replays"),
    ("message-id", "message"),
    ("enqueued-at", "enqueued"),
    ("last-failed-at", "failed"),
    ("due-at", "due"),
    ("topic", "stream"),
];

/// The field of this name.
pub(super) fn find(name: &str) -> Option<Field> {
    FIELDS.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, field)| *field)
}

/// The name of a field.
pub(super) fn name(field: Field) -> &'static str {
    FIELDS.iter().find(|(_, known)| *known == field).map_or("", |(name, _)| name)
}

/// The field that was probably meant.
pub(super) fn nearest(wrong: &str) -> Option<&'static str> {
    let wrong = wrong.to_ascii_lowercase();
    alias(&wrong).or_else(|| nearest_of(&wrong, FIELDS.iter().map(|(name, _)| *name)))
}

/// The field that another system, or the output, calls by this name.
pub(super) fn alias(other: &str) -> Option<&'static str> {
    OTHER_NAMES.iter().find(|(known, _)| known.eq_ignore_ascii_case(other)).map(|(_, name)| *name)
}

/// The most similar name, if one is similar.
pub(super) fn nearest_of<'w>(wrong: &str, words: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    // A long text is no typo, and comparing it would take long.
    if wrong.len() > 32 {
        return None;
    }
    let near = words.map(|word| (distance(wrong, word), word)).min_by_key(|(distance, _)| *distance);
    near.filter(|(distance, word)| *distance <= if word.len() > 4 { 2 } else { 1 }).map(|(_, word)| word)
}

/// The edit distance between two words. Two neighbours that
/// changed places count as one.
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in other.iter().enumerate() {
            let mut best = (last[j] + usize::from(a != b)).min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == other[j - 1] && one[i - 1] == *b {
                best = best.min(before[j - 1] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_is_near_what_was_meant() {
        let table = [
            ("staet", Some("state")),
            ("stat", Some("state")),
            ("reasn", Some("reason")),
            ("QUEUES", Some("queue")),
            ("sequence", Some("seq")),
            ("sqe", Some("seq")),
            ("ownr", Some("owner")),
            ("banana", None),
            ("", None),
        ];
        for (wrong, meant) in table {
            assert_eq!(nearest(wrong), meant, "{wrong}");
        }
        assert_eq!(nearest(&"state".repeat(1000)), None);
    }

    #[test]
    fn every_field_has_one_name() {
        for (known, field) in FIELDS {
            assert_eq!((find(known), name(field)), (Some(field), known));
        }
    }
}
