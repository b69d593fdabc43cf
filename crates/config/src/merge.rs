//! Merges the values of a consumer with `defaults`.

use crate::table::{Kind, Section};
use crate::tree::{Data, Entry, Node};

/// Returns the values of a consumer, completed from `defaults`.
///
/// Sections and maps are merged key by key, at every depth. All other values are replaced as a whole: a
/// list of the consumer replaces the list in `defaults`. The same holds for a section where exactly one
/// key is allowed.
pub(crate) fn merged(section: &'static Section, own: &Node, defaults: &Node) -> Node {
    merged_section(section, own, defaults, false)
}

fn merged_section(section: &'static Section, own: &Node, defaults: &Node, one_of: bool) -> Node {
    let (Some(mine), Data::Map(theirs)) = (entries(own), &defaults.data) else { return own.clone() };
    // Unknown keys were reported when `defaults` was read.
    let theirs: Vec<_> = theirs.iter().filter(|default| section.key(&default.name).is_some()).collect();
    let mut result: Vec<Entry> = Vec::new();
    for entry in mine {
        let default = theirs.iter().find(|default| default.name == entry.name);
        let value = match (section.key(&entry.name), default) {
            (Some(key), Some(default)) => merged_value(&key.kind, &entry.value, &default.value),
            _ => entry.value.clone(),
        };
        result.push(Entry { value, ..entry.clone() });
    }
    let chosen = one_of && !mine.is_empty();
    let missing = theirs.iter().filter(|default| mine.iter().all(|entry| entry.name != default.name));
    result.extend(missing.filter(|_| !chosen).map(|default| (*default).clone()));
    Node { span: own.span, data: Data::Map(result) }
}

fn merged_value(kind: &Kind, own: &Node, defaults: &Node) -> Node {
    match kind {
        Kind::Section(section) => merged_section(section, own, defaults, false),
        Kind::OneOf(section) => merged_section(section, own, defaults, true),
        Kind::Or(_, kind) => merged_value(kind, own, defaults),
        Kind::Map { .. } => merged_map(own, defaults),
        _ => own.clone(),
    }
}

fn merged_map(own: &Node, defaults: &Node) -> Node {
    let (Some(mine), Data::Map(theirs)) = (entries(own), &defaults.data) else { return own.clone() };
    let missing = theirs.iter().filter(|default| mine.iter().all(|entry| entry.name != default.name));
    let all = mine.iter().chain(missing).cloned().collect();
    Node { span: own.span, data: Data::Map(all) }
}

/// Returns the entries of a section. An empty section may be written without a value.
fn entries(node: &Node) -> Option<&[Entry]> {
    match &node.data {
        Data::Map(entries) => Some(entries),
        Data::Null => Some(&[]),
        _ => None,
    }
}
