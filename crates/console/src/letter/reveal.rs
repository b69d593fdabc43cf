//! Redacted values: a list of them, and the form that shows them for a reason, which the audit records.

use axum::extract::Path;
use axum::http::Method;
use axum::response::Response;
use lazaret_api::numbers::plural;
use lazaret_api::{ActRequest, LetterDetail, Scope};
use maud::{Markup, html};

use super::{Shown, command, page_of};
use crate::api::{Result, escape, with_query};
use crate::form::{Fields, LineForm};
use crate::icon::icon;
use crate::links;
use crate::payload::INLINE_BYTES;
use crate::text::visible;
use crate::visit::{Page, Visit};

/// Renders what is redacted in a letter, or that nothing is at the moment.
pub(super) fn panel(visit: &Visit, detail: &LetterDetail, shown: Shown<'_>) -> Markup {
    let redacted = &detail.content.redacted;
    html! {
        @if let Shown::Revealed = shown {
            div.banner.info role="status" {
                strong { "Revealed on this page only." } " The " a href="/console/admin#audit" { "audit" } " has who saw it, and why. "
                a href=(links::letter(&detail.letter.id)) { "Hide it" }
            }
        }
        @if !redacted.is_empty() {
            div.banner.warn #redacted {
                strong { (plural(redacted.len() as u64, "redacted value")) } ": "
                @for (number, of) in redacted.iter().enumerate() { @if number > 0 { ", " } code { (visible(of)) } }
                (form(visit, &detail.letter.id))
            }
        }
    }
}

fn form(visit: &Visit, id: &str) -> Markup {
    let action = format!("{}/reveal", links::letter(id));
    let command = command(Shown::Revealed, id);
    LineForm::reason(action, Scope::Reveal, "Reason to reveal", command)
        .render(visit, &html! { (icon("eye")) "Reveal" })
}

/// Shows the letter with its redacted values as the response to the form. The values are in no address
/// and on no later page.
pub(crate) async fn reveal(Path(id): Path<String>, visit: Visit, fields: Fields) -> Response {
    let page = page(&visit, &id, fields.get("reason")).await;
    visit.respond(page)
}

async fn page(visit: &Visit, id: &str, reason: Option<&str>) -> Result<Page> {
    let most = INLINE_BYTES.to_string();
    let path = with_query(&format!("/v1/letters/{}/reveal", escape(id)), &[("payload-bytes", Some(&most))]);
    let request = ActRequest { reason: reason.map(str::to_owned) };
    let detail: LetterDetail = visit.api.change(Method::POST, &path, &request).await?;
    page_of(visit, &detail, Shown::Revealed).await
}
