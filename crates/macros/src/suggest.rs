//! Finds the name that was meant by a misspelled one.

/// Names from FlowWarden and Spring, with our equivalents.
const OTHER_NAMES: [(&str, &str); 8] = [
    ("saveeveryn", "every"),
    ("saveintervalseconds", "interval"),
    ("idleheartbeatintervalseconds", "idle_heartbeat"),
    ("retentiondays", "ttl_days"),
    ("mongotemplateref", "client"),
    ("groupid", "group"),
    ("topic", "topics"),
    ("deployment", "deployment_mode"),
];

/// Returns the candidate nearest to the name, if one is near enough. Case and separators do not count.
pub(crate) fn nearest<'a>(name: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let plain = simple(name);
    if let Some((_, ours)) = OTHER_NAMES.iter().find(|(theirs, _)| *theirs == plain)
        && let Some(found) = candidates.iter().find(|candidate| *candidate == ours)
    {
        return Some(found);
    }
    let best = candidates.iter().map(|candidate| (distance(&plain, &simple(candidate)), *candidate));
    let (distance, found) = best.min_by_key(|(distance, _)| *distance)?;
    let allowed = match plain.len().max(found.len()) {
        ..=4 => 1,
        length => length.div_ceil(3).min(4),
    };
    (distance <= allowed && distance < plain.len()).then_some(found)
}

/// Returns `did you mean …?`, or the list of candidates.
pub(crate) fn hint(name: &str, candidates: &[&str]) -> String {
    match nearest(name, candidates) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => {
            let names: Vec<_> = candidates.iter().map(|candidate| format!("`{candidate}`")).collect();
            format!("it accepts {}", names.join(", "))
        }
    }
}

fn simple(name: &str) -> String {
    let letters = name.chars().take(64).filter(|c| !matches!(c, '_' | '-' | ' '));
    letters.map(|c| c.to_ascii_lowercase()).collect()
}

/// Returns the edit distance, in which two swapped neighbours count as one edit.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let changed = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = changed.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typos_other_spellings_and_names_of_other_frameworks_are_recognised() {
        let names = ["max_attempts", "max_delay", "jitter", "every", "ttl_days", "client"];
        let table = [
            ("max_atempts", Some("max_attempts")),
            ("maxAttempts", Some("max_attempts")),
            ("max-delay", Some("max_delay")),
            ("jiter", Some("jitter")),
            ("saveEveryN", Some("every")),
            ("retentionDays", Some("ttl_days")),
            ("mongo_template_ref", Some("client")),
            ("backoff", None),
            ("x", None),
        ];
        for (name, expected) in table {
            assert_eq!(nearest(name, &names), expected, "{name}");
        }
    }
}
