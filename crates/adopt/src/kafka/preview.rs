//! The result of a preview of a topic's adoption.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::progress::{LISTED_LIMIT, Tally};
use crate::source::Content;

/// The maximum number of distinct origins, and of distinct causes, that are counted (I7).
const DISTINCT_LIMIT: usize = 10_000;

/// The result of a preview of an adoption.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Preview {
    /// The counts. `adopted` is the number of records that would become letters.
    pub counts: Tally,
    /// The 100 most frequent origins of the records. Includes other groups.
    pub origins: Vec<OriginCount>,
    /// The 100 most frequent causes of their failures. Includes other groups.
    pub causes: Vec<CauseCount>,
    /// The addresses of unknown records, at most 100.
    pub unknown_at: Vec<String>,
}

/// The number of records that come from the same partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct OriginCount {
    /// The format of the failure headers, as in the diagnostic `adopted-family`.
    pub format: String,
    /// The consumer group that failed. `None` if the headers do not name it.
    pub group: Option<String>,
    /// The original topic.
    pub topic: String,
    /// The original partition.
    pub partition: u32,
    /// The number of records.
    pub records: u64,
}

/// The number of records with the same cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct CauseCount {
    /// The type of the exception.
    pub error_type: String,
    /// The reason code.
    pub reason: String,
    /// The number of records.
    pub records: u64,
}

/// A summary of the records that a preview reads.
#[derive(Debug, Default)]
pub(super) struct Summary {
    origins: BTreeMap<(&'static str, Option<String>, String, u32), u64>,
    causes: BTreeMap<(String, String), u64>,
}

impl Summary {
    pub(super) fn add(&mut self, content: &Content) {
        let Content::Letter(letter) = content else { return };
        let (topic, partition) = (letter.message.stream.to_string(), letter.message.position.partition);
        count(&mut self.origins, (letter.framework, letter.group.clone(), topic, partition));
        if let Some(cause) = &letter.cause {
            count(&mut self.causes, (cause.error_type.clone(), cause.reason.to_string()));
        }
    }

    pub(super) fn into_preview(self, counts: Tally, unknown_at: Vec<String>) -> Preview {
        let origins = largest(self.origins).map(|((format, group, topic, partition), records)| OriginCount {
            format: format.to_owned(),
            group,
            topic,
            partition,
            records,
        });
        let causes = largest(self.causes).map(|((error_type, reason), records)| CauseCount {
            error_type,
            reason,
            records,
        });
        Preview { counts, origins: origins.collect(), causes: causes.collect(), unknown_at }
    }
}

fn count<K: Ord>(counts: &mut BTreeMap<K, u64>, key: K) {
    if counts.len() < DISTINCT_LIMIT || counts.contains_key(&key) {
        *counts.entry(key).or_default() += 1;
    }
}

/// Returns the largest counts in descending order, and equal counts by key.
fn largest<K>(counts: BTreeMap<K, u64>) -> impl Iterator<Item = (K, u64)> {
    let mut counts: Vec<(K, u64)> = counts.into_iter().collect();
    counts.sort_by_key(|(_, records)| std::cmp::Reverse(*records));
    counts.into_iter().take(LISTED_LIMIT)
}

#[cfg(test)]
mod tests {
    use lazaret_core::{Failure, Message, Position, Reason};

    use super::*;
    use crate::foreign::ForeignLetter;

    fn letter(group: Option<&str>, partition: u32, error: &str) -> Content {
        let message = Message::new("m", "orders", Position::new(partition, 1));
        let cause = Failure::new(Reason::TIMEOUT, error, "no");
        let letter =
            ForeignLetter { group: group.map(str::to_owned), ..ForeignLetter::new("spring", message, cause) };
        Content::Letter(Box::new(letter))
    }

    #[test]
    fn records_are_counted_by_origin_and_cause_the_most_frequent_first() {
        let mut summary = Summary::default();
        for content in
            [letter(None, 0, "A"), letter(Some("billing"), 1, "B"), letter(Some("billing"), 1, "A")]
        {
            summary.add(&content);
        }
        summary.add(&Content::Unknown(None));
        let preview = summary.into_preview(Tally::default(), Vec::new());
        let origins: Vec<_> =
            preview.origins.iter().map(|o| (o.group.as_deref(), o.partition, o.records)).collect();
        assert_eq!(origins, [(Some("billing"), 1, 2), (None, 0, 1)]);
        let causes: Vec<_> = preview.causes.iter().map(|c| (c.error_type.as_str(), c.records)).collect();
        assert_eq!(causes, [("A", 2), ("B", 1)]);
        assert_eq!(
            (preview.origins[0].topic.as_str(), preview.causes[0].reason.as_str()),
            ("orders", "TIMEOUT")
        );
    }

    #[test]
    fn the_number_of_distinct_causes_is_bounded() {
        // I7: class names may be different for each record.
        let mut summary = Summary::default();
        for n in 0..DISTINCT_LIMIT + 5 {
            summary.add(&letter(None, 0, &format!("Error{n}")));
        }
        assert_eq!(summary.causes.len(), DISTINCT_LIMIT);
        let preview = summary.into_preview(Tally::default(), Vec::new());
        assert_eq!(
            (preview.causes.len(), preview.origins[0].records),
            (LISTED_LIMIT, DISTINCT_LIMIT as u64 + 5)
        );
    }
}
