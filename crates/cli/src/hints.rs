//! Builds the commands that hints suggest, quoted so that they can be copied and run.

pub(crate) use lazaret_api::text::quoted;
use lazaret_api::{Pause, PauseScope};

/// Returns the command that ends a pause. `None` when a name contains a NUL byte, which arguments cannot.
pub(crate) fn resume_command(consumer: &str, pause: &Pause) -> Option<String> {
    let part = match (pause.scope, pause.stream.as_deref(), pause.partition, pause.sequence.as_deref()) {
        (PauseScope::Consumer, ..) => String::new(),
        (PauseScope::Replay, ..) => " --replay".to_owned(),
        (PauseScope::Stream, Some(stream), ..) => format!(" --stream {}", quoted(stream)),
        (PauseScope::Partition, Some(stream), Some(number), _) => {
            format!(" --stream {} --partition {number}", quoted(stream))
        }
        (PauseScope::Sequence, .., Some(sequence)) => format!(" --sequence {}", quoted(sequence)),
        _ => return None,
    };
    let words = [Some(consumer), pause.stream.as_deref(), pause.sequence.as_deref()];
    let has_nul = words.into_iter().flatten().any(|word| word.contains('\0'));
    (!has_nul).then(|| format!("lazaret resume {}{part} --reason TEXT", quoted(consumer)))
}

/// Formats a query as a command argument with a leading space; empty for an empty query.
pub(crate) fn query_argument(query: &str) -> String {
    if query.is_empty() { String::new() } else { format!(" {}", quoted(query)) }
}

/// Formats a value of the query language, quoted where needed.
pub(crate) fn query_value(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_-./@".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) && !text.starts_with('-') {
        return text.to_owned();
    }
    format!("\"{}\"", text.replace('\\', r"\\").replace('"', "\\\""))
}

/// Returns the prefix of a letter's id that is printed; commands accept it.
pub(crate) fn short_id(id: &str) -> &str {
    id.get(..8).unwrap_or(id)
}

/// Returns the prefix of a group's fingerprint that is printed; commands accept it.
pub(crate) fn short_group(id: &str) -> &str {
    let fingerprint = id.split_once('@').map_or(id, |(fingerprint, _)| fingerprint);
    fingerprint.get(..11).unwrap_or(fingerprint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_is_quoted_as_one_shell_word() {
        assert_eq!(quoted("state:dead"), "state:dead");
        assert_eq!(quoted("it's $(me)"), r"'it'\''s $(me)'");
        assert_eq!((quoted(""), quoted("-x")), ("''".into(), "'-x'".into()));
        // Characters that the screen escapes are escaped for the shell.
        assert_eq!(quoted("s\u{1b}[31m"), r"$'s\x1b[31m'");
        assert_eq!(quoted("it's \\ ü\n\u{202e}"), r"$'it\'s \\ \xc3\xbc\x0a\xe2\x80\xae'");
        assert_eq!(quoted("ü 7"), "'ü 7'");
    }

    #[test]
    fn a_pause_is_resumed_with_the_flags_of_its_scope() {
        let pause = |scope, stream: Option<&str>, partition, sequence: Option<&str>| Pause {
            scope,
            stream: stream.map(str::to_owned),
            partition,
            sequence: sequence.map(str::to_owned),
            who: "ada".into(),
            via: "cli".into(),
            why: "deploy".into(),
            since: jiff::Timestamp::UNIX_EPOCH,
        };
        let part = |pause: &Pause| {
            let command = resume_command("shop", pause)?;
            let part = command.strip_prefix("lazaret resume shop")?.strip_suffix(" --reason TEXT")?;
            Some(part.to_owned())
        };
        let of = |scope, stream, partition, sequence| part(&pause(scope, stream, partition, sequence));
        assert_eq!(of(PauseScope::Consumer, None, None, None).unwrap(), "");
        assert_eq!(of(PauseScope::Replay, None, None, None).unwrap(), " --replay");
        assert_eq!(of(PauseScope::Stream, Some("a b"), None, None).unwrap(), " --stream 'a b'");
        assert_eq!(of(PauseScope::Partition, Some("s"), Some(3), None).unwrap(), " --stream s --partition 3");
        assert_eq!(of(PauseScope::Sequence, None, None, Some("x")).unwrap(), " --sequence x");
        assert_eq!(of(PauseScope::Sequence, None, None, Some("x\0")), None);
        assert_eq!(of(PauseScope::Sequence, None, None, Some(r"\x00")).unwrap(), r" --sequence '\x00'");
    }

    #[test]
    fn query_values_are_quoted_where_needed() {
        assert_eq!(query_value("order-7"), "order-7");
        assert_eq!(query_value("a b"), "\"a b\"");
        assert_eq!(query_value("x*\"\\"), r#""x*\"\\""#);
        assert_eq!(query_value(""), "\"\"");
    }
}
