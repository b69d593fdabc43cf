//! Generated pages are up to date. `cargo xtask book` regenerates them.

use std::fs;

use crate::pages::{Page, pages, root};

#[track_caller]
fn is_up_to_date(page: &str, made: &str) {
    let path = root().join("docs").join(page);
    if std::env::var_os("LAZARET_UPDATE_DOCS").is_some() {
        fs::write(&path, made).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(written == made, "docs/{page} is out of date: regenerate it with `cargo xtask book`");
}

// Only with the demo: the reference includes its command.
#[test]
#[cfg(feature = "demo")]
fn the_reference_of_the_command_line_is_up_to_date() {
    is_up_to_date("cli.md", &lazaret_cli::reference());
}

#[test]
fn the_pages_of_error_codes_are_up_to_date() {
    is_up_to_date("errors.md", &lazaret_cli::error_codes());
}

/// The summary ends with the decisions by number and title.
#[test]
fn the_summary_lists_every_decision_by_its_title() {
    const HEAD: &str = "- [Decisions](decisions/index.md)\n";
    let summary = Page::named("SUMMARY.md").text;
    let (written_by_hand, _) = summary.split_once(HEAD).unwrap();
    let pages = pages();
    let decisions = pages.iter().filter(|page| page.path.starts_with("decisions/0"));
    let lines = decisions.map(|page| {
        let title = page.text.lines().next().unwrap().trim_start_matches("# ");
        format!("    - [{title}]({})\n", page.path)
    });
    is_up_to_date("SUMMARY.md", &format!("{written_by_hand}{HEAD}{}", lines.collect::<String>()));
}
