//! Every page is in the book, and every link resolves.

use std::collections::{BTreeMap, BTreeSet};

use crate::pages::{Page, pages, root};

#[test]
fn every_page_is_in_the_summary_once() {
    let summary = Page::named("SUMMARY.md");
    let listed: Vec<String> = summary.links().into_iter().map(|(_, link)| link).collect();
    let once: BTreeSet<&String> = listed.iter().collect();
    assert_eq!(once.len(), listed.len(), "a page stands twice in docs/SUMMARY.md");
    let there: Vec<String> = pages().into_iter().map(|page| page.path).collect();
    for path in there.iter().filter(|path| *path != "SUMMARY.md") {
        assert!(once.contains(path), "docs/{path} is not in docs/SUMMARY.md");
    }
    for path in listed {
        assert!(there.contains(&path), "docs/SUMMARY.md names {path}, which is not there");
    }
}

#[test]
fn every_link_resolves() {
    let pages = pages();
    let anchors: BTreeMap<&str, Vec<String>> =
        pages.iter().map(|page| (&*page.path, page.anchors())).collect();
    let docs = root().join("docs");
    let mut broken = Vec::new();
    for page in &pages {
        for (line, link) in page.links() {
            if link.starts_with("https://") || link.starts_with("http://") {
                continue;
            }
            let (path, anchor) = link.split_once('#').map_or((&*link, None), |(path, at)| (path, Some(at)));
            let target = if path.is_empty() { page.path.clone() } else { joined(&page.path, path) };
            let found = match (anchors.get(&*target), anchor) {
                (Some(places), Some(anchor)) => places.iter().any(|place| place == anchor),
                (Some(_), None) => true,
                // Files of the repository are shown as they are. A page outside of the book is none in HTML.
                (None, None) => !target.ends_with(".md") && docs.join(&target).exists(),
                (None, Some(_)) => false,
            };
            if !found {
                broken.push(format!("docs/{}:{line}: {link}", page.path));
            }
        }
    }
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
}

#[test]
fn pages_beside_the_book_link_to_what_is_there() {
    let mut links = 0;
    for path in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "deploy/README.md"] {
        let text = std::fs::read_to_string(root().join(path)).unwrap();
        let page = Page { path: path.to_owned(), text };
        for (line, link) in page.links().into_iter().filter(|(_, link)| !link.starts_with("http")) {
            links += 1;
            let (file, anchor) = link.split_once('#').map_or((&*link, None), |(file, at)| (file, Some(at)));
            let target = if file.is_empty() { path.to_owned() } else { joined(path, file) };
            assert!(root().join(&target).exists(), "{path}:{line}: {link} is not there");
            if let Some(anchor) = anchor {
                let text = std::fs::read_to_string(root().join(&target)).unwrap();
                let anchors = Page { path: target, text }.anchors();
                assert!(
                    anchors.iter().any(|place| place == anchor),
                    "{path}:{line}: {link} has no such place"
                );
            }
        }
    }
    assert!(links > 20, "only {links} links were found");
}

/// A relative path as seen from a page, below `docs` or out of it.
fn joined(page: &str, link: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "." | "" => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => _ = parts.pop(),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[test]
fn links_are_followed_from_where_they_stand() {
    assert_eq!(joined("decisions/0001.md", "../kafka.md"), "kafka.md");
    assert_eq!(joined("kafka.md", "../crates/x"), "../crates/x");
    assert_eq!(joined("decisions/0001.md", "0002.md"), "decisions/0002.md");
}
