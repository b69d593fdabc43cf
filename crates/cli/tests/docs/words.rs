//! The concepts page lists every state and verdict, and the guide to retries every reason.

use lazaret_core::{LetterState, Reason, Verdict};

use crate::pages::Page;

#[test]
fn the_concepts_name_every_state_and_draw_it() {
    let page = Page::named("concepts.md").text;
    let drawn = std::fs::read_to_string(crate::pages::root().join("docs/states.svg")).unwrap();
    for state in LetterState::ALL {
        assert!(page.contains(&format!("| `{state}` |")) || page.contains(&format!("`{state}`")), "{state}");
        let class = if state.is_open() { "open" } else { "closed" };
        let boxed = drawn.lines().find(|line| line.contains(&format!(">{state}</text>")));
        assert!(
            boxed.is_some_and(|line| line.contains(&format!("class=\"{class}\""))),
            "{state} is not {class}"
        );
    }
}

#[test]
fn the_concepts_name_every_verdict() {
    let page = Page::named("concepts.md").text;
    for verdict in Verdict::ALL {
        assert!(
            page.contains(&format!("        {verdict} ")),
            "{verdict} is missing in the way of a message"
        );
    }
}

#[test]
fn the_guide_to_retries_names_every_reason_with_its_verdict() {
    let page = Page::named("retry-and-dead-letters.md").text;
    for reason in Reason::KNOWN {
        let row = page.lines().find(|line| line.starts_with('|') && line.contains(&format!("`{reason}`")));
        let row = row.unwrap_or_else(|| panic!("{reason} is missing"));
        let (verdict, _) = lazaret_core::policy::taxonomy(reason, lazaret_core::Phase::Handle, false);
        assert!(row.ends_with(&format!("| {verdict} |")), "{reason} is {verdict}: {row}");
    }
}
