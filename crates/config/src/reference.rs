//! Generates the key reference from the table.

use std::fmt::Write as _;

use crate::table::{DefaultValue, Key, Kind, Reload, Section, sections};

/// Returns the reference of all keys as Markdown. Each section has one table, with type, default, how a
/// change is applied, and meaning.
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
        let title = if path.is_empty() { "Top level".to_owned() } else { format!("`{path}`") };
        let _ = writeln!(out, "## {title}\n\n{}\n", section.doc);
        out.push_str("| key | type | default | change | meaning |\n|---|---|---|---|---|\n");
        for key in section.keys {
            let change = match key.reload.unwrap_or(reload) {
                Reload::Live => "live",
                Reload::Restart => "restart",
            };
            let cells =
                [kind(&key.kind), default(key), change.to_owned(), meaning(key)].map(|cell| escaped(&cell));
            let _ = writeln!(out, "| `{}` | {} |", key.name, cells.join(" | "));
        }
        out.push('\n');
    }
    out
}

/// Returns the sections, each with the reload behaviour that its keys inherit.
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

fn default(key: &Key) -> String {
    match (key.default, &key.kind) {
        (DefaultValue::Required, _) => "required".to_owned(),
        (DefaultValue::Literal("{}"), kind) if kind.section().is_some() => "see keys below".to_owned(),
        (DefaultValue::Literal(text), _) => format!("`{text}`"),
        (DefaultValue::Absent("none"), _) => "—".to_owned(),
        (DefaultValue::Absent(meaning), _) => meaning.to_owned(),
    }
}

/// Returns the description of a key and of its allowed values.
fn meaning(key: &Key) -> String {
    let mut text = key.doc.to_owned();
    if let Kind::Enum(words) = enum_kind(&key.kind) {
        let words: Vec<_> = words.iter().map(|word| format!("`{}`: {}", word.0, word.1)).collect();
        let _ = write!(text, " {}.", words.join("; "));
    }
    text
}

fn enum_kind(kind: &Kind) -> &Kind {
    match kind {
        Kind::List { of, .. } => of,
        kind => kind.inner(),
    }
}

/// Names the type of a value.
pub(crate) fn kind(kind: &Kind) -> String {
    match kind {
        Kind::Flag => "`true` or `false`".to_owned(),
        Kind::Count { min, max } if *max >= u64::from(u32::MAX) => {
            format!("whole number, at least {min}")
        }
        Kind::Count { min, max } => format!("whole number, {min} to {max}"),
        Kind::Number { min, max, exclusive: true } => format!("number above {min}, at most {max}"),
        Kind::Number { min, max, exclusive: false } => format!("number, {min} to {max}"),
        Kind::Jitter => "number, 0 to 1, or `true` or `false`".to_owned(),
        Kind::Duration { zero: true } => "duration".to_owned(),
        Kind::Duration { zero: false } => "duration above 0".to_owned(),
        Kind::Size { .. } => "size".to_owned(),
        Kind::Rate => "rate".to_owned(),
        Kind::Text(_) => "string".to_owned(),
        Kind::Enum(words) => words.iter().map(|word| format!("`{}`", word.0)).collect::<Vec<_>>().join(", "),
        Kind::Any => "any value".to_owned(),
        Kind::List { of, .. } => match of.section() {
            Some(_) => "list of sections".to_owned(),
            None => format!("list of: {}", self::kind(of)),
        },
        Kind::Map { .. } => "map of strings".to_owned(),
        Kind::Section(_) => "section".to_owned(),
        Kind::Partial(_) => "section with the keys of a consumer".to_owned(),
        Kind::OneOf(_) => "section, exactly one key".to_owned(),
        Kind::Named(_) => "map of sections".to_owned(),
        Kind::Or(word, inner) => format!("{}, or `{word}`", self::kind(inner)),
    }
}
