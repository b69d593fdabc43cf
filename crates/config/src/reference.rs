//! The reference of all keys for users, from the table.

use std::fmt::Write as _;

use crate::table::{Key, Kind, Preset, Reload, Section, sections};

/// Every key with its type, its default, whether a change of it is taken over while the consumer runs, and its meaning, as
/// Markdown: one table per section.
///
/// ```
/// let reference = lazaret_config::keys_markdown();
/// assert!(reference.contains("| `max-attempts` | whole number, at least 1 | `3` | live |"));
/// ```
pub fn keys_markdown() -> String {
    let mut out = String::new();
    for (path, section, reload) in with_reload() {
        if section.keys.is_empty() {
            continue;
        }
        let title = if path.is_empty() { "The top of the file".to_owned() } else { format!("`{path}`") };
        let _ = writeln!(out, "## {title}\n\n{}\n", section.doc);
        out.push_str("| key | type | default | change | meaning |\n|---|---|---|---|---|\n");
        for key in section.keys {
            let change = match key.reload.unwrap_or(reload) {
                Reload::Live => "live",
                Reload::Restart => "restart",
            };
            let cells =
                [kind(&key.kind), preset(key), change.to_owned(), meaning(key)].map(|cell| escaped(&cell));
            let _ = writeln!(out, "| `{}` | {} |", key.name, cells.join(" | "));
        }
        out.push('\n');
    }
    out
}

/// The sections with what a change inside of them needs, unless a key says otherwise: what holds around them.
fn with_reload() -> Vec<(String, &'static Section, Reload)> {
    let mut known: Vec<(String, &'static Section, Reload)> = Vec::new();
    for (path, section) in sections() {
        let around = known.iter().rev().find(|(outer, _, _)| path.starts_with(outer.as_str()));
        let key = around.and_then(|(_, outer, _)| {
            outer.keys.iter().find(|key| key.kind.section().is_some_and(|inner| std::ptr::eq(inner, section)))
        });
        let reload = key.and_then(|key| key.reload).or(around.map(|(_, _, reload)| *reload));
        known.push((path, section, reload.unwrap_or(Reload::Restart)));
    }
    known
}

fn escaped(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

fn preset(key: &Key) -> String {
    match (key.preset, &key.kind) {
        (Preset::Required, _) => "required".to_owned(),
        (Preset::Is("{}"), kind) if kind.section().is_some() => "see its keys".to_owned(),
        (Preset::Is(text), _) => format!("`{text}`"),
        (Preset::Absent("none"), _) => "—".to_owned(),
        (Preset::Absent(meaning), _) => meaning.to_owned(),
    }
}

/// What the key is for, and what each of its words means.
fn meaning(key: &Key) -> String {
    let mut text = key.doc.to_owned();
    if let Kind::Choice(words) = words_of(&key.kind) {
        let words: Vec<_> = words.iter().map(|word| format!("`{}`: {}", word.0, word.1)).collect();
        let _ = write!(text, " {}.", words.join("; "));
    }
    text
}

fn words_of(kind: &Kind) -> &Kind {
    match kind {
        Kind::List { of, .. } => of,
        kind => kind.inner(),
    }
}

/// The type in a few words.
pub(crate) fn kind(kind: &Kind) -> String {
    match kind {
        Kind::Flag => "`true` or `false`".to_owned(),
        Kind::Count { least, most } if *most >= u64::from(u32::MAX) => {
            format!("whole number, at least {least}")
        }
        Kind::Count { least, most } => format!("whole number, {least} to {most}"),
        Kind::Number { least, most, above: true } => format!("number above {least}, at most {most}"),
        Kind::Number { least, most, above: false } => format!("number, {least} to {most}"),
        Kind::Jitter => "number, 0 to 1, or `true` or `false`".to_owned(),
        Kind::Duration { zero: true } => "duration".to_owned(),
        Kind::Duration { zero: false } => "duration above 0".to_owned(),
        Kind::Size { .. } => "size".to_owned(),
        Kind::Rate => "rate".to_owned(),
        Kind::Text(_) => "text".to_owned(),
        Kind::Choice(words) => {
            words.iter().map(|word| format!("`{}`", word.0)).collect::<Vec<_>>().join(", ")
        }
        Kind::Any => "anything".to_owned(),
        Kind::List { of, .. } => match of.section() {
            Some(_) => "list of sections".to_owned(),
            None => format!("list of: {}", self::kind(of)),
        },
        Kind::Map { .. } => "names and texts".to_owned(),
        Kind::Section(_) => "section".to_owned(),
        Kind::Partial(_) => "section with the keys of a consumer".to_owned(),
        Kind::OneOf(_) => "section, exactly one key".to_owned(),
        Kind::Named(_) => "sections by name".to_owned(),
        Kind::Or(word, inner) => format!("{}, or `{word}`", self::kind(inner)),
    }
}
