//! Lists all sections, and finds the section that a key belongs to.

use super::top::TOP;
use super::types::{Kind, Section};

/// Returns all sections with their paths, parents first. `NAME` is a user-defined name.
pub(crate) fn sections() -> Vec<(String, &'static Section)> {
    let mut found = Vec::new();
    collect(&TOP, "", &mut found);
    found
}

fn collect(section: &'static Section, path: &str, found: &mut Vec<(String, &'static Section)>) {
    found.push((path.to_owned(), section));
    for key in section.keys {
        // `defaults` has the keys of a consumer.
        if matches!(key.kind, Kind::Partial(_)) {
            continue;
        }
        let Some(inner) = key.kind.section() else { continue };
        let dot = if path.is_empty() { "" } else { "." };
        let below = match key.kind.inner() {
            Kind::Named(_) => ".NAME",
            Kind::List { .. } => "[]",
            _ => "",
        };
        collect(inner, &format!("{path}{dot}{}{below}", key.name), found);
    }
}

/// Returns a hint that names the section of a misplaced key.
pub(crate) fn elsewhere(here: &'static Section, name: &str) -> Option<String> {
    let sections = sections();
    let found = sections.iter().filter(|(_, section)| !std::ptr::eq(*section, here));
    // A direct subsection comes first, then any other section.
    let below = |section: &&'static Section| {
        here.keys.iter().any(|key| key.kind.section().is_some_and(|s| std::ptr::eq(s, *section)))
    };
    let mut places: Vec<_> = found.filter(|(_, section)| section.key(name).is_some()).collect();
    places.sort_by_key(|(path, section)| (!below(section), path.len()));
    let (path, _) = places.first()?;
    Some(match path.as_str() {
        "" => format!("`{name}` belongs to the top level"),
        path => format!("`{name}` belongs to `{path}`"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_kebab_case_and_documented() {
        for (path, section) in sections() {
            let mut names: Vec<_> = section.names().collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), section.keys.len(), "{path} has a key twice");
            for key in section.keys {
                let kebab =
                    key.name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
                assert!(kebab, "{path}.{}", key.name);
                assert!(key.doc.ends_with('.'), "{path}.{} has no doc", key.name);
            }
        }
    }
}
