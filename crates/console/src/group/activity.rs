//! The activity of people on a group's letters: comments and assignments.

use jiff::Timestamp;
use lazaret_api::numbers::plural;
use lazaret_api::{GroupAssignment, GroupComment, GroupFacets};
use maud::{Markup, html};

use crate::text::{block, visible};
use crate::time::age;
use crate::visit::Visit;
use crate::{letters, links};

/// Renders the activity, latest first.
pub(super) fn activity(visit: &Visit, facets: &GroupFacets) -> Markup {
    let comments = facets.comments.iter().map(|of| (of.at, comment(visit, of)));
    let assignments = facets.assignments.iter().map(|of| (of.at, assignment(visit, of)));
    let mut lines: Vec<(Timestamp, Markup)> = comments.chain(assignments).collect();
    lines.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
    html! {
        section.panel {
            div.section-head { h2 { "Activity" } }
            @if lines.is_empty() {
                div.pad { p.muted { "Comments on the letters of this group, and to whom they are assigned, appear here. They survive every retry." } }
            } @else {
                ul.timeline { @for (_, line) in &lines { li { (line) } } }
            }
        }
    }
}

fn comment(visit: &Visit, of: &GroupComment) -> Markup {
    html! {
        div.line {
            strong { (visible(&of.by)) } span.muted { (age(of.at, visit.now)) " ago" }
            a href=(links::letter(&of.letter)) { "letter " (letters::short(&of.letter)) }
        }
        div.error-text { (block(&of.text)) }
    }
}

fn assignment(visit: &Visit, of: &GroupAssignment) -> Markup {
    html! {
        div.line {
            strong { (visible(&of.by)) } span.muted { (age(of.at, visit.now)) " ago" }
            span {
                @if let Some(name) = &of.name { "assigned " (plural(of.letters, "letter")) " to " strong { (visible(name)) } }
                @else { "assigned " (plural(of.letters, "letter")) " to nobody" }
            }
        }
        @if !of.why.is_empty() { div.error-text { (block(&of.why)) } }
    }
}
