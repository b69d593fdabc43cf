//! Small texts: commands that can be pasted, plurals, bars of numbers.

/// A word that the shell takes for one word, whatever stands in it.
///
/// ```
/// use lazaret_cli::words::quoted;
/// assert_eq!(quoted("state:dead"), "state:dead");
/// assert_eq!(quoted("it's $(me)"), r"'it'\''s $(me)'");
/// ```
pub fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+,=".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) && !text.starts_with('-') {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// `1 letter`, `2 letters`.
pub fn plural(number: u64, word: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    format!("{} {word}{s}", crate::output::count(number))
}

/// A value in the query language, in quotes where it needs them.
pub fn query_value(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_-./@".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) && !text.starts_with('-') {
        return text.to_owned();
    }
    format!("\"{}\"", text.replace('\\', r"\\").replace('"', "\\\""))
}

/// Numbers as a row of bars, the largest one full.
pub fn bars(numbers: &[u64]) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = numbers.iter().copied().max().unwrap_or(0).max(1);
    let bar = |number: &u64| {
        // A little is more than nothing.
        let height = (u128::from(*number) * 7).div_ceil(u128::from(most));
        BARS[usize::try_from(height).unwrap_or(7).min(7)]
    };
    numbers.iter().map(bar).collect()
}

/// The first digits of a letter's id, by which it is found again.
pub fn short_id(id: &str) -> &str {
    id.get(..8).unwrap_or(id)
}

/// The first digits of a group's fingerprint, by which it is found again.
pub fn short_group(id: &str) -> &str {
    let fingerprint = id.split_once('@').map_or(id, |(fingerprint, _)| fingerprint);
    fingerprint.get(..11).unwrap_or(fingerprint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_show_shape_and_the_least_bit() {
        assert_eq!(bars(&[0, 1, 50, 100]), "▁▂▅█");
        assert_eq!(bars(&[0, 0]), "▁▁");
        assert_eq!(bars(&[u64::MAX, 0]), "█▁");
        assert_eq!(bars(&[]), "");
    }

    #[test]
    fn values_in_queries_are_quoted_where_they_need_it() {
        assert_eq!(query_value("order-7"), "order-7");
        assert_eq!(query_value("a b"), "\"a b\"");
        assert_eq!(query_value("x*\"\\"), r#""x*\"\\""#);
        assert_eq!(query_value(""), "\"\"");
    }

    #[test]
    fn a_letter_and_many() {
        assert_eq!(
            (plural(1, "letter"), plural(1284, "letter")),
            ("1 letter".into(), "1,284 letters".into())
        );
    }
}
