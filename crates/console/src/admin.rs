//! The admin page: your permissions, pauses, the audit with its verification, rules on trial, tokens,
//! grouping rules, the configuration, and the capabilities of the store.

mod grouping;
mod rules;
mod setup;

use axum::extract::Query;
use axum::response::Response;
use lazaret_api::numbers::count;
use lazaret_api::{AuditCheck, AuditEntry, AuditPage, Code, Problem, Scope, Status};
use lazaret_core::LetterId;
use lazaret_core::store::{OperationId, PlanId};
use maud::{Markup, html};
use serde::Deserialize;

use crate::api::{Result, with_query};
use crate::icon::icon;
use crate::layout::{Section, page_head, region};
use crate::pause::{pause_form, pause_line, resume_form};
use crate::text::visible;
use crate::time::{age, exact, exact_with_age};
use crate::visit::{Page, Visit};
use crate::{badge, cli_line, links, problem};

pub(crate) use rules::{PATH as RULES_PATH, show as show_rules};

/// The number of audit entries on a page.
const PAGE: &str = "50";

/// The page of the audit, and whether to verify the whole audit.
#[derive(Deserialize)]
pub(crate) struct AdminParams {
    after: Option<String>,
    #[serde(default)]
    verify: bool,
}

pub(crate) async fn show(Query(params): Query<AdminParams>, visit: Visit) -> Response {
    let page = page(&visit, &params).await;
    visit.respond(page)
}

async fn page(visit: &Visit, params: &AdminParams) -> Result<Page> {
    let status: Status = visit.api.get("/v1/status").await?;
    let values = [("order", Some("latest")), ("after", params.after.as_deref()), ("limit", Some(PAGE))];
    let audit: Result<AuditPage> = visit.api.get(&with_query("/v1/audit", &values)).await;
    let check: Option<Result<AuditCheck>> = match params.verify {
        true => Some(visit.api.get("/v1/audit/verify").await),
        false => None,
    };
    let setup = setup::sections(visit).await;
    let main = html! {
        (page_head(&html! { "Admin" }, &html! { "Permissions, pauses, and who did what" }, &rules::link(visit)))
        div.panels {
            (permissions(visit))
            (region("admin-pauses", &pauses(visit, &status)))
        }
        div.section-head #audit {
            h2 { "Audit" }
            @if visit.identity.consumers.is_empty() {
                a.button href="/console/admin?verify=true#audit" { (icon("admin")) "Verify the hash chain" }
            } @else { p.muted { "about your consumers" } }
        }
        @if let Some(check) = &check { (verified(check)) }
        @match &audit {
            Ok(page) => (region("admin-audit", &entries(visit, params, page))),
            Err(problem) => (problem::banner(problem)),
        }
        (setup)
        div.section-head { h2 { "Store" } }
        div.panel.pad { dl.facts {
            @let of = &status.store;
            @for (name, has) in [
                ("Survives a crash", of.durable), ("Shared by processes", of.shared_by_processes), ("Shared by machines", of.shared_by_machines),
                ("Hash chain of the audit", of.audit_chain), ("Outbox of ended letters", of.outbox), ("Inboxes", of.inbox),
            ] { dt { (name) } dd { @if has { (badge::good("yes")) } @else { (badge::quiet("cross", "no")) } } }
        } }
        (cli_line::line("cli", &cli_line::command(if params.verify { "audit verify" } else { "audit" }, &[], &[])))
    };
    Ok(Page::new("Admin", Section::Admin, main))
}

const fn meaning(scope: Scope) -> &'static str {
    match scope {
        Scope::Read => "read everything but payloads and headers",
        Scope::Payload => "read and search payloads and headers",
        Scope::Reveal => "read redacted values, with a reason, and search them",
        Scope::Triage => "retry, park, release, restore, resolve, comment, assign",
        Scope::Evict => "evict, purge, quarantine, set the expiry",
        Scope::Purge => "delete closed letters",
        Scope::Edit => "replace the payload of a letter",
        Scope::Import => "import letters",
        Scope::Pause => "pause and resume",
        Scope::Approve => "approve or reject operations of others",
        Scope::Ingest => "post to inboxes",
        Scope::Admin => "all permissions",
    }
}

fn permissions(visit: &Visit) -> Markup {
    let identity = &visit.identity;
    html! {
        section.panel #you {
            div.section-head { h2 { "Your permissions" } }
            div.pad {
                dl.facts {
                    dt { "You are" } dd { strong { (visible(&identity.person)) } @if identity.name != identity.person { " with the token " (visible(&identity.name)) } }
                    dt { "Authenticated" }
                    dd { @if identity.authenticated { "yes" } @else { "no: no tokens are configured, and only this machine can reach the server" } }
                    @if let Some(at) = identity.expires_at { dt { "Expires" } dd { (exact_with_age(at, visit.now)) } }
                    dt { "Consumers" } dd { @if identity.consumers.is_empty() { "all" } @else { (visible(&identity.consumers.join(", "))) } }
                }
            }
            table { tbody { @for scope in Scope::ALL { tr {
                td { @if identity.may(scope) { (badge::good(scope.as_str())) } @else { (badge::quiet("cross", scope.as_str())) } }
                td.muted { (meaning(scope)) }
            } } } }
            div.pad { p.muted { "Tokens are part of the configuration. This command creates one, with the lines to add:" }
                (cli_line::line("cli-token", &cli_line::command("token", &[("--name", "ada"), ("--scope", "read,payload")], &[]))) }
        }
    }
}

fn pauses(visit: &Visit, status: &Status) -> Markup {
    html! {
        section.panel #pauses {
            div.section-head { h2 { "Pauses" } }
            ul.timeline {
                @for of in &status.consumers {
                    @for pause in &of.pauses { li { (pause_line(&of.name, pause, visit.now)) (resume_form(visit, &of.name, pause, "/console/admin#pauses")) } }
                    @if of.paused.is_none() {
                        li {
                            div.line { strong { (visible(&of.name)) } (badge::consumer(of.state)) }
                            (pause_form(visit, &of.name, "/console/admin#pauses"))
                        }
                    }
                }
                @if status.consumers.is_empty() { li.muted { "No consumer to pause." } }
            }
        }
    }
}

fn verified(check: &Result<AuditCheck>) -> Markup {
    html! {
        @match check {
            Ok(check) if check.ok => div.banner.good role="status" {
                (badge::good("intact")) " " (count(check.intact)) " entries. The last hash is " code { (check.hash) } ". Note it elsewhere to detect a truncation."
            },
            Ok(check) => div.banner.bad role="alert" {
                (badge::bad("broken")) " at entry " (check.broken.unwrap_or_default()) ", after " (count(check.intact)) " intact ones."
            },
            Err(problem) => (problem::banner(problem)),
        }
    }
}

fn entries(visit: &Visit, params: &AdminParams, page: &AuditPage) -> Markup {
    html! {
        @if page.entries.is_empty() { p.muted { "Every change is recorded here: who, when, through which client, and why." } } @else {
            div.panel.scroll { table {
                thead { tr { th.num { "#" } th { "When" } th { "Who" } th { "Action" } th { "Subject" } th.optional { "Change" } th { "Reason" } } }
                tbody data-rows { @for entry in &page.entries { (row(visit, entry)) } }
            } }
        }
        @if params.after.is_some() || page.next.is_some() {
            div.pager {
                @if params.after.is_some() { a.button href="/console/admin#audit" { "Latest" } }
                @if let Some(next) = &page.next { a.button href={ (with_query("/console/admin", &[("after", Some(next))])) "#audit" } { "Earlier" } }
            }
        }
    }
}

fn row(visit: &Visit, entry: &AuditEntry) -> Markup {
    html! {
        tr data-row {
            td.num { (entry.number) }
            td.nowrap { (exact(entry.at)) span.sub { (age(entry.at, visit.now)) " ago" } }
            td { (visible(&entry.who)) span.sub { (visible(&entry.via)) } }
            td { (visible(&entry.action)) }
            td.mono { (subject(&entry.subject)) }
            td.optional { @if let Some(before) = &entry.before { (visible(before)) " → " } @if let Some(after) = &entry.after { (visible(after)) } }
            td { (visible(&entry.why)) }
        }
    }
}

/// Renders the subject of an entry, with a link if it has a page.
fn subject(subject: &str) -> Markup {
    let link = if subject.parse::<OperationId>().is_ok() {
        Some(links::operation(subject))
    } else if subject.parse::<PlanId>().is_ok() {
        Some(links::plan(subject))
    } else if subject.parse::<LetterId>().is_ok() {
        Some(links::letter(subject))
    } else {
        None
    };
    html! { @if let Some(link) = link { a href=(link) { (visible(subject)) } } @else { (visible(subject)) } }
}

/// Shows the page for a path of the console that does not exist.
pub(crate) async fn not_found(visit: Visit) -> Response {
    let problem = Problem::new(Code::NoRoute).with_detail(visit.uri.path());
    visit.respond::<Page>(Err(Box::new(problem)))
}
