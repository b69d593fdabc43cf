//! The audit entries about a letter.

use lazaret_api::{AuditEntry, AuditPage, Letter};
use maud::{Markup, html};

use crate::api::{Result, with_query};
use crate::text::visible;
use crate::time::age;
use crate::visit::Visit;

/// The number of entries shown.
const SHOWN: &str = "20";

pub(super) async fn read(visit: &Visit, id: &str) -> Result<AuditPage> {
    let values = [("subject", Some(id)), ("limit", Some(SHOWN))];
    visit.api.get(&with_query("/v1/audit", &values)).await
}

/// Renders the entries, latest first. A letter that nobody changed has none.
pub(super) fn panel(visit: &Visit, audit: &AuditPage) -> Markup {
    html! {
        @if !audit.entries.is_empty() {
            section.panel #audit {
                div.section-head { h2 { "Audit" } p.muted { "who did what to it" } }
                ul.timeline { @for of in &audit.entries { li { (entry(visit, of)) } } }
            }
        }
    }
}

fn entry(visit: &Visit, of: &AuditEntry) -> Markup {
    html! {
        div.line {
            strong { (visible(&of.who)) } span { (visible(&of.action)) }
            span.muted { (age(of.at, visit.now)) " ago via " (visible(&of.via)) }
        }
        div {
            @if of.before.is_some() || of.after.is_some() {
                span.muted { (visible(of.before.as_deref().unwrap_or("–"))) " → " (visible(of.after.as_deref().unwrap_or("–"))) ": " }
            }
            (visible(&of.why))
        }
    }
}

/// Renders who brought a letter into its state and why, as far as the audit records it.
pub(super) fn cause_of_state(audit: &AuditPage, letter: &Letter) -> Markup {
    let entry = audit.entries.iter().find(|entry| entry.after.as_deref() == Some(letter.state.as_str()));
    html! { @if let Some(of) = entry { " By " strong { (visible(&of.who)) } ": " (visible(&of.why)) "." } }
}
