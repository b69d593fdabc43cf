//! The overview: consumers and instances, problems, pauses with their reasons, throughput, and running
//! operations.

use axum::response::Response;
use lazaret_api::numbers::{count, plural, span};
use lazaret_api::{Activity, Breaker, Consumer, Fuse, GroupPage, Instance, Scope, Status};
use maud::{Markup, html};

use crate::api::Result;
use crate::icon::icon;
use crate::layout::{Section, empty, page_head, region};
use crate::pause::pause_line;
use crate::query::term;
use crate::starts::Starts;
use crate::text::visible;
use crate::time::age;
use crate::visit::{Page, Visit};
use crate::{badge, chart, cli_line, groups, links, operations, pause};
use lazaret_core::query::TextField;

/// The age in seconds from which a running attempt is shown.
const LONG_ATTEMPT_SECONDS: f64 = 60.0;

pub(crate) async fn show(visit: Visit) -> Response {
    let page = page(&visit).await;
    visit.respond(page)
}

async fn page(visit: &Visit) -> Result<Page> {
    let status: Status = visit.api.get("/v1/status").await?;
    let activity: Activity = visit.api.get("/v1/activity").await?;
    let groups: GroupPage = visit.api.get("/v1/groups?limit=5").await?;
    let store = if status.store.durable { "" } else { ", the store keeps nothing across a restart" };
    let about = html! {
        (plural(status.consumers.len() as u64, "consumer"))
        @if !status.instances.is_empty() { ", " (plural(status.instances.len() as u64, "instance")) }
        (store)
    };
    let main = html! {
        (page_head(&html! { "Overview" }, &about, &html! {}))
        (region("overview-numbers", &numbers(visit, &status)))
        (region("overview-alerts", &alerts(visit, &status)))
        @if status.consumers.is_empty() { (nothing_runs()) } @else {
            (region("overview-throughput", &throughput(&activity)))
            (region("overview-consumers", &consumers(visit, &status.consumers)))
        }
        (region("overview-operations", &running(visit, &status)))
        (region("overview-groups", &html! {
            @if !groups.groups.is_empty() {
                div.section-head { h2 { "Groups with the most letters" } a href="/console/groups" { "All groups" } }
                div.panel.scroll { (groups::table(visit, &groups.groups, &Starts::of(&status.instances), false)) }
                (groups::trends(&groups.groups))
            }
        }))
        (region("overview-instances", &instances(visit, &status.instances)))
        (cli_line::line("cli", &cli_line::command("status", &[], &[])))
    };
    Ok(Page::new("Overview", Section::Overview, main))
}

fn numbers(visit: &Visit, status: &Status) -> Markup {
    let sum = |pick: fn(&Consumer) -> u64| status.consumers.iter().map(pick).sum::<u64>();
    let held = sum(|of| of.dead + of.parked + of.quarantined);
    let (retrying, waiting) = (sum(|of| of.retrying), sum(|of| of.waiting));
    let sequences: u64 = status.consumers.iter().flat_map(|of| &of.queues).map(|queue| queue.sequences).sum();
    let oldest = status.consumers.iter().filter_map(|of| of.oldest_with_topics(visit.now)).reduce(f64::max);
    let lag: Option<u64> = status.consumers.iter().filter_map(|of| of.lag).reduce(|a, b| a + b);
    html! {
        div.numbers {
            a href="/console/groups" { span.value.bad[held > 0] { (count(held)) } span.label { "held letters" } }
            a href=(links::letters("state:retrying")) { span.value { (count(retrying)) } span.label { "retrying" } }
            a href=(links::letters("state:waiting")) {
                span.value.warn[waiting > 0] { (count(waiting)) } span.label { "waiting behind them" }
            }
            a href=(links::letters("")) { span.value { (count(sequences)) } span.label { "blocked sequences" } }
            div { span.value { (oldest.map_or_else(|| "–".to_owned(), span)) } span.label { "oldest letter, retry or attempt" } }
            div { span.value { (lag.map_or_else(|| "–".to_owned(), count)) } span.label { "unread in sources" } }
            a href="/console/operations" {
                span.value { (count(status.operations.len() as u64)) } span.label { "operations under way" }
            }
        }
    }
}

/// Renders what needs a person, worst first.
fn alerts(visit: &Visit, status: &Status) -> Markup {
    html! {
        @for of in &status.consumers {
            @if let Some(limit) = &of.held_by {
                div.banner.bad role="alert" {
                    (icon("warn")) " " strong { (visible(&of.name)) } " is held by its limit " (visible(limit)) ". Its source waits, nothing is lost."
                }
            } @else if of.store_trouble {
                div.banner.bad role="alert" {
                    (icon("warn")) " " strong { (visible(&of.name)) } " is blocked: the store does not accept letters. Its source waits, nothing is lost."
                }
            }
            @if let Some(error) = &of.error {
                div.banner.bad { (icon("warn")) " " strong { (visible(&of.name)) } " " (of.state.as_str()) ": " (visible(error)) }
            }
            @if let Some(age) = of.attempt_age_seconds.filter(|age| *age >= LONG_ATTEMPT_SECONDS) {
                div.banner.warn {
                    (icon("warn")) " " strong { (visible(&of.name)) } ": an attempt has been running for " (span(age)) "."
                }
            }
            @if matches!(of.breaker, Breaker::Open | Breaker::HalfOpen) { (breaker(visit, of)) }
            @if of.fuse == Fuse::Blown && of.pauses.is_empty() {
                div.banner.bad { (icon("warn")) " " strong { (visible(&of.name)) } ": the fuse has blown" }
            }
            @if let Some(at) = of.expires_soon(visit.now) {
                div.banner.warn {
                    (icon("warn")) " " strong { (visible(&of.name)) } ": letters expire, the next one in "
                    (span(at.duration_since(visit.now).as_secs_f64().max(0.0)))
                    ", unless it is replayed or resolved. "
                    a href=(links::letters(&format!("{} state:open", term(TextField::Consumer, &of.name)))) { "Open letters" }
                }
            }
            @for life in of.incarnations.iter().filter(|life| life.is_recent(visit.now)) {
                div.banner.warn {
                    (icon("warn")) " " strong { (visible(&of.name)) } ": " (visible(&life.name())) " was recreated and is read from its beginning"
                }
            }
            @if let Some(counts) = of.in_broker.filter(|counts| counts.dead > 0) {
                div.banner.warn {
                    (icon("warn")) " " strong { (visible(&of.name)) } " has " (count(counts.dead)) " in dead-letter topics and "
                    (count(counts.retrying)) " in retry topics, counted in the broker. They are no letters of the store."
                }
            }
            @for pause in &of.pauses {
                div.banner.warn {
                    (pause_line(&of.name, pause, visit.now))
                    (pause::resume_form(visit, &of.name, pause, "/console/overview"))
                }
            }
        }
    }
}

fn breaker(visit: &Visit, of: &Consumer) -> Markup {
    html! {
        div.banner.bad {
            (icon("warn")) " " strong { (visible(&of.name)) } ": circuit breaker " (of.breaker.as_str())
            @match of.breaker {
                Breaker::HalfOpen => ". Probe calls decide whether it closes.",
                _ => ". The handler fails, and its calls are suspended.",
            }
            @if let Some(cause) = &of.breaker_cause {
                " " (visible(&cause.reason)) ": " (visible(&cause.error.message))
                @if let Some(address) = &of.handler { " at " (visible(address)) }
                "."
                @if let Some(at) = cause.next_probe_at { " Next probe " (age(at, visit.now)) "." }
            }
            " " a href=(links::letters(&format!("{} failed:<15m", term(TextField::Consumer, &of.name)))) { "Latest failures" }
        }
    }
}

fn nothing_runs() -> Markup {
    empty(
        "overview",
        "No consumer yet",
        &html! {
            p { "A consumer reads from a source, calls your handler, and keeps what fails as letters. None runs here, and the store has no letters." }
            (cli_line::line("cli-init", &cli_line::command("init", &[], &[])))
            (cli_line::line("cli-run", &cli_line::command("run", &[("-c", "lazaret.yaml")], &[])))
        },
    )
}

/// Renders the throughput of all consumers of this process together.
fn throughput(activity: &Activity) -> Markup {
    let sum = |pick: fn(&lazaret_api::ConsumerActivity) -> &Vec<u64>| {
        let mut total = Vec::new();
        for of in &activity.consumers {
            total.resize(pick(of).len().max(total.len()), 0);
            total.iter_mut().zip(pick(of)).for_each(|(sum, number)| *sum += number);
        }
        total
    };
    html! {
        @if !activity.consumers.is_empty() {
            div.section-head { h2 { "Throughput" } p.muted { "of the consumers in this process" } }
            div.panel.pad { (chart::throughput(&sum(|of| &of.handled), &sum(|of| &of.failed), activity.bucket_seconds)) }
        }
    }
}

fn consumers(visit: &Visit, consumers: &[Consumer]) -> Markup {
    let number = |value: Option<u64>| value.map_or_else(|| "–".to_owned(), count);
    // The link leads to letters of the store. Records of topics are none, so a number of records alone has no link.
    let held = |of: &Consumer, state: &str, (letters, total): (u64, u64), folds: bool| {
        let query = format!("{} state:{state}", term(TextField::Consumer, &of.name));
        html! {
            td.num.in-narrow[folds].zero[total == 0] {
                @if letters == 0 { (count(total)) } @else { a href=(links::letters(&query)) { (count(total)) } }
            }
        }
    };
    html! {
        div.section-head { h2 { "Consumers" } }
        div.panel.scroll { table.tight {
            thead { tr {
                th { "Consumer" } th { "State" } th.num.in-medium { "Lag" } th.num.in-medium { "In flight" } th.num.in-medium { "Handled" }
                th.num.in-medium { "Failed" } th.num { "Dead" } th.num.in-narrow { "Retrying" } th.num.in-wide { "Parked" }
                th.num.in-wide { "Quarantined" } th.num { "Waiting" } th.num { "Oldest" }
            } }
            tbody data-rows {
                @for of in consumers { tr data-row {
                    td.name { a.title-link data-open href=(links::groups(&term(TextField::Consumer, &of.name))) { (visible(&of.name)) } }
                    td {
                        (badge::consumer(of.state))
                        (guards(of))
                        @if let Some(counts) = of.in_broker {
                            span.sub {
                                span.nowrap { (count(counts.dead)) " in dead-letter topics" } " · "
                                span.nowrap { (count(counts.retrying)) " in retry topics" }
                            }
                        }
                    }
                    td.num.in-medium { (number(of.lag)) }
                    td.num.in-medium { (number(of.in_flight)) }
                    td.num.in-medium { (number(of.handled)) }
                    td.num.in-medium { (number(of.failed)) }
                    (held(of, "dead", (of.dead, of.dead_with_topics()), false))
                    (held(of, "retrying", (of.retrying, of.retrying), true))
                    td.num.in-wide.zero[of.parked == 0] { (count(of.parked)) }
                    td.num.in-wide.zero[of.quarantined == 0] { (count(of.quarantined)) }
                    (held(of, "waiting", (of.waiting, of.waiting), false))
                    td.num { (of.oldest_with_topics(visit.now).map_or_else(|| "–".to_owned(), span)) }
                } }
            }
        } }
        @if visit.may(Scope::Pause) { p.muted { "Pause and resume consumers under " a href="/console/admin#pauses" { "Admin" } "." } }
    }
}

/// Renders breaker and fuse. They are inconspicuous while they are as they should be.
fn guards(of: &Consumer) -> Markup {
    let (breaker, fuse) = (of.breaker, of.fuse);
    html! {
        @if matches!(breaker, Breaker::Open | Breaker::HalfOpen) { " breaker " (badge::breaker(breaker)) }
        @if fuse == Fuse::Blown { " fuse " (badge::fuse(fuse)) }
        @if breaker == Breaker::Closed || fuse == Fuse::Intact {
            span.sub {
                @if breaker == Breaker::Closed { span.nowrap { "breaker closed" } }
                @if breaker == Breaker::Closed && fuse == Fuse::Intact { " · " }
                @if fuse == Fuse::Intact { span.nowrap { "fuse intact" } }
            }
        }
    }
}

fn running(visit: &Visit, status: &Status) -> Markup {
    html! {
        @if !status.operations.is_empty() {
            div.section-head { h2 { "Operations under way" } a href="/console/operations" { "All operations" } }
            div.panel.scroll { (operations::table(visit, &status.operations)) }
        }
    }
}

fn instances(visit: &Visit, instances: &[Instance]) -> Markup {
    html! {
        @if !instances.is_empty() {
            div.section-head { h2 { "Instances" } p.muted { "processes that share the store" } }
            div.panel.scroll { table {
                thead { tr { th { "Instance" } th { "Version" } th { "Consumers" } th.num.in-narrow { "Partitions" } th.num.optional { "Up" } th.num { "Seen" } } }
                tbody { @for of in instances { tr {
                    td { (visible(&of.instance)) }
                    td { (visible(&of.version)) }
                    td { @if of.consumers.is_empty() { span.muted { "API only" } } @else { (visible(&of.consumers.join(", "))) } }
                    td.num.in-narrow { (of.partitions.len()) }
                    td.num.optional { (age(of.started_at, visit.now)) }
                    td.num { (age(of.last_seen, visit.now)) " ago" }
                } } }
            } }
        }
    }
}
