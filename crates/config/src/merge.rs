//! A consumer's own values over those of `defaults`.

use crate::table::{Kind, Section};
use crate::tree::{Data, Entry, Node};

/// The values of a consumer, with those of `defaults` where it has none of its own.
///
/// Sections and maps are merged key by key, at every depth. Everything else is one value: a consumer's own list replaces that
/// of `defaults`. Where exactly one of several can be chosen, a consumer's own choice replaces another one.
pub(crate) fn merged(section: &'static Section, own: &Node, defaults: &Node) -> Node {
    merged_section(section, own, defaults, false)
}

fn merged_section(section: &'static Section, own: &Node, defaults: &Node, one_of: bool) -> Node {
    let (Some(mine), Data::Map(theirs)) = (entries(own), &defaults.data) else { return own.clone() };
    // Keys that do not exist were told when `defaults` was read.
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

/// The entries of a section. One without any may be written as nothing at all.
fn entries(node: &Node) -> Option<&[Entry]> {
    match &node.data {
        Data::Map(entries) => Some(entries),
        Data::Null => Some(&[]),
        _ => None,
    }
}
