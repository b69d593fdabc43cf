//! Finds the candidate for a "did you mean" hint.

/// Returns the nearest candidate if its edit distance is small enough.
///
/// Differences in case and separators do not count. Up to a third of the letters may differ.
pub(crate) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = simple(word);
    let distance = |candidate: &str| distance(&plain, &simple(candidate));
    let best = candidates.into_iter().map(|c| (distance(c), c)).min_by_key(|(distance, _)| *distance)?;
    // Two letters are half of a short word. `drop` is not a typo of `stop`.
    let allowed = match plain.len().max(best.1.len()) {
        ..=4 => 1,
        length => length.div_ceil(3).min(4),
    };
    (best.0 <= allowed && best.0 < plain.len()).then_some(best.1)
}

/// Terms that other systems use for verdicts and keys.
const SYNONYMS: [(&str, &[&str]); 6] = [
    ("skip", &["drop", "ignore", "discard", "ack", "pass"]),
    ("dead-letter", &["dlq", "dlt", "dead", "reject", "fail", "nack"]),
    ("park", &["hold", "pause", "defer", "wait"]),
    ("stop", &["halt", "abort", "exit", "crash"]),
    ("brokers", &["bootstrap-servers", "bootstrap.servers", "servers"]),
    ("initial-delay", &["backoff", "delay", "interval"]),
];

/// Returns the candidate that corresponds to a term of another system.
pub(crate) fn synonym<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word: String = simple(word).into_iter().collect();
    let (meant, _) = SYNONYMS.iter().find(|(_, others)| others.contains(&word.as_str()))?;
    candidates.into_iter().find(|candidate| candidate == meant)
}

/// Normalizes up to 64 characters to lower case with dashes. Longer words are not typos.
fn simple(word: &str) -> Vec<char> {
    let mut plain = Vec::new();
    let mut lower = false;
    for c in word.chars().take(64) {
        // `maxAttempts` becomes `max-attempts`.
        if c.is_uppercase() && lower {
            plain.push('-');
        }
        lower = c.is_lowercase();
        plain.push(if c == '_' || c == ' ' { '-' } else { c.to_ascii_lowercase() });
    }
    plain
}

/// Returns the Damerau-Levenshtein distance (optimal string alignment).
fn distance(a: &[char], b: &[char]) -> usize {
    let mut rows: [Vec<usize>; 3] = [Vec::new(), (0..=b.len()).collect(), vec![0; b.len() + 1]];
    for i in 1..=a.len() {
        rows[2][0] = i;
        for j in 1..=b.len() {
            let changed = rows[1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut min = changed.min(rows[1][j] + 1).min(rows[2][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                min = min.min(rows[0][j - 2] + 1);
            }
            rows[2][j] = min;
        }
        rows.rotate_left(1);
        rows[2] = vec![0; b.len() + 1];
    }
    rows[1][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typos_are_recognised_and_other_words_are_not() {
        let keys = ["max-attempts", "max-elapsed", "hold", "retry", "jitter"];
        let table = [
            ("max-atempts", Some("max-attempts")),
            ("maxAttempts", Some("max-attempts")),
            ("max_attempts", Some("max-attempts")),
            ("MAX-ATTEMPTS", Some("max-attempts")),
            ("jiter", Some("jitter")),
            ("rerty", Some("retry")),
            ("retries", Some("retry")),
            ("holds", Some("hold")),
            ("backoff", None),
            ("hodl", Some("hold")),
            ("cold", Some("hold")),
            ("bald", None),
            ("x", None),
            ("", None),
        ];
        for (word, expected) in table {
            assert_eq!(nearest(word, keys), expected, "{word}");
        }
        assert_eq!(nearest(&"a".repeat(1_000_000), keys), None);
    }

    #[test]
    fn terms_of_other_systems_are_recognised_where_there_is_such_a_key() {
        let kafka = ["brokers", "topics", "group"];
        for word in ["bootstrap-servers", "bootstrap.servers", "bootstrapServers", "BOOTSTRAP_SERVERS"] {
            assert_eq!(synonym(word, kafka), Some("brokers"), "{word}");
        }
        assert_eq!(synonym("backoff", kafka), None);
        assert_eq!(synonym("backoff", ["max-attempts", "initial-delay"]), Some("initial-delay"));
        assert_eq!(synonym("DLQ", ["skip", "dead-letter"]), Some("dead-letter"));
    }

    #[test]
    fn the_distance_counts_insertions_deletions_changes_and_swaps() {
        let chars = |text: &str| text.chars().collect::<Vec<_>>();
        let table =
            [("", "abc", 3), ("abc", "", 3), ("kitten", "sitting", 3), ("ab", "ba", 1), ("x", "x", 0)];
        for (a, b, expected) in table {
            assert_eq!(distance(&chars(a), &chars(b)), expected, "{a} {b}");
        }
    }
}
