//! The pieces of commands that are named as the next ones, such that they can be copied and run as they stand.

/// A word that the shell takes for one word, whatever stands in it.
pub(crate) fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+,=".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) && !text.starts_with('-') {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A value in the query language, in quotes where it needs them.
pub(crate) fn query_value(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_-./@".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) && !text.starts_with('-') {
        return text.to_owned();
    }
    format!("\"{}\"", text.replace('\\', r"\\").replace('"', "\\\""))
}

/// The first digits of a letter's id, by which it is found again.
pub(crate) fn short_id(id: &str) -> &str {
    id.get(..8).unwrap_or(id)
}

/// The first digits of a group's fingerprint, by which it is found again.
pub(crate) fn short_group(id: &str) -> &str {
    let fingerprint = id.split_once('@').map_or(id, |(fingerprint, _)| fingerprint);
    fingerprint.get(..11).unwrap_or(fingerprint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_stands_in_a_word_the_shell_takes_it_for_one() {
        assert_eq!(quoted("state:dead"), "state:dead");
        assert_eq!(quoted("it's $(me)"), r"'it'\''s $(me)'");
        assert_eq!((quoted(""), quoted("-x")), ("''".into(), "'-x'".into()));
    }

    #[test]
    fn values_in_queries_are_quoted_where_they_need_it() {
        assert_eq!(query_value("order-7"), "order-7");
        assert_eq!(query_value("a b"), "\"a b\"");
        assert_eq!(query_value("x*\"\\"), r#""x*\"\\""#);
        assert_eq!(query_value(""), "\"\"");
    }
}
