//! The frame of every page: navigation, search, the current person, and the help on keys.

use lazaret_api::Scope;
use lazaret_api::text::sanitize;
use maud::{DOCTYPE, Markup, html};

use crate::icon::icon;
use crate::text::visible;
use crate::visit::{Page, Visit};
use crate::{assets, login};

/// The part of the console that a page belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    Overview,
    Groups,
    Letters,
    Operations,
    Admin,
    /// No section, for example for an error.
    None,
}

/// The entries of the navigation: section, path, name, icon and key.
const NAVIGATION: [(Section, &str, &str, &str, &str); 5] = [
    (Section::Overview, "/console/overview", "Overview", "overview", "o"),
    (Section::Groups, "/console/groups", "Groups", "groups", "g"),
    (Section::Letters, "/console/letters", "Letters", "letter", "l"),
    (Section::Operations, "/console/operations", "Operations", "operation", "p"),
    (Section::Admin, "/console/admin", "Admin", "admin", "a"),
];

/// The keys that the help lists.
const KEYS: [(&str, &str); 13] = [
    ("?", "this help"),
    ("/", "search"),
    ("j k", "next and previous row"),
    ("Enter", "open the row"),
    ("x", "mark the row"),
    ("R", "plan a retry of what the page shows, or of the marked rows"),
    ("E", "plan an eviction"),
    ("A", "write the reason for an approval"),
    ("[ ]", "previous and next letter"),
    ("g o, g g, g l", "go to overview, groups, letters"),
    ("g p, g a", "go to operations, admin"),
    ("t", "theme: system, light, dark"),
    ("Esc", "leave a field, close this help"),
];

/// Renders the whole document of a page.
pub(crate) fn document(visit: &Visit, page: &Page) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            (head(&page.title, true))
            body data-now=(visit.now.as_millisecond()) {
                a.skip href="#main" { "Skip to the content" }
                (sidebar(visit, page.section))
                main #main tabindex="-1" { (page.main) }
                div #status role="status" aria-live="polite" .sr-only {}
                (help())
            }
        }
    }
}

/// Renders a document without navigation, for unknown callers.
pub(crate) fn bare(title: &str, main: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            (head(title, false))
            body.bare {
                div.brand { (icon("brand")) "Lazaret" }
                main #main { (main) }
            }
        }
    }
}

fn head(title: &str, has_scripts: bool) -> Markup {
    html! {
        head {
            meta charset="utf-8";
            meta name="viewport" content="width=device-width, initial-scale=1";
            meta name="color-scheme" content="light dark";
            title { (sanitize(title)) " · Lazaret" }
            link rel="icon" href=(assets::ICON.path()) type="image/svg+xml";
            link rel="stylesheet" href=(assets::STYLE.path());
            // Loaded before the first paint, so that the wrong theme does not flash.
            script src=(assets::THEME.path()) {}
            @if has_scripts {
                @for module in [&assets::PAGE, &assets::KEYS, &assets::LIVE] {
                    script type="module" src=(module.path()) {}
                }
            }
        }
    }
}

fn sidebar(visit: &Visit, section: Section) -> Markup {
    html! {
        header.sidebar {
            a.brand href="/console/overview" { (icon("brand")) span { "Lazaret" } }
            form.search.global role="search" action="/console/letters" method="get" {
                label.sr-only for="global-search" { "Search letters" }
                (icon("search"))
                input #global-search type="search" name="q" placeholder="Search letters" autocomplete="off"
                    spellcheck="false" data-search="global";
                kbd aria-hidden="true" { "/" }
            }
            nav aria-label="Console" {
                @for (of, path, name, symbol, key) in NAVIGATION {
                    a href=(path) data-go=(key) aria-current=[(of == section).then_some("page")] {
                        (icon(symbol)) span { (name) }
                    }
                }
            }
            div.account {
                (live_pill())
                div.who title=(rights(visit)) {
                    (icon("person"))
                    a href="/console/admin#you" { (visible(&visit.identity.person)) }
                    @if !visit.identity.authenticated { span.muted { "no tokens configured" } }
                }
                (login::sign_out_form(visit))
                div.tools {
                    button type="button" data-theme-button hidden { "Theme" }
                    button type="button" data-help-button hidden { "Keys" kbd aria-hidden="true" { "?" } }
                }
            }
        }
    }
}

/// Returns the rights of the caller, as an explanation for disabled buttons.
fn rights(visit: &Visit) -> String {
    let held: Vec<&str> =
        Scope::ALL.iter().filter(|scope| visit.may(**scope)).map(|scope| scope.as_str()).collect();
    format!("rights: {}", held.join(", "))
}

/// Renders the state of live updates. Without scripts there are none, and it stays hidden.
fn live_pill() -> Markup {
    html! {
        div.live hidden data-live-pill data-state="connecting" {
            span.dot aria-hidden="true" {}
            span data-live-text { "Connecting" }
            button type="button" data-live-apply hidden { "Apply" }
        }
    }
}

fn help() -> Markup {
    html! {
        dialog #help aria-labelledby="help-title" {
            h2 #help-title { "Keys" }
            dl.keys {
                @for (keys, what) in KEYS {
                    dt { @for key in keys.split(' ') { kbd { (key.trim_end_matches(',')) } " " } }
                    dd { (what) }
                }
            }
            form method="dialog" {
                label.check { input type="checkbox" data-keys-toggle; " Use single keys as shortcuts" }
                button { "Close" }
            }
        }
    }
}

/// Renders the head of a page: its title, its subject, and its actions.
pub(crate) fn page_head(title: &Markup, about: &Markup, actions: &Markup) -> Markup {
    html! {
        div.page-head {
            div { h1 { (title) } div.about { (about) } }
            div.actions { (actions) }
        }
    }
}

/// Renders a part of a page that live updates replace.
pub(crate) fn region(id: &str, content: &Markup) -> Markup {
    html! { div id=(id) data-region { (content) } }
}

/// Renders an empty state that says what would be shown here.
pub(crate) fn empty(symbol: &str, title: &str, body: &Markup) -> Markup {
    html! { div.state.empty { (icon(symbol)) h2 { (title) } div { (body) } } }
}
