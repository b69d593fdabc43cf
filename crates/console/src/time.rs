//! Renders times: their age, and the exact time on hover.

use jiff::Timestamp;
use lazaret_api::numbers::span;
use maud::{Markup, html};

/// Renders the age of a time: `6h12m`. A script keeps it current.
pub(crate) fn age(at: Timestamp, now: Timestamp) -> Markup {
    let seconds = now.duration_since(at).as_secs_f64();
    let shown = if seconds < 0.0 { format!("in {}", span(-seconds)) } else { span(seconds) };
    html! { time datetime=(to_second(at)) title=(to_second(at)) data-age { (shown) } }
}

/// Renders the age of a time, or a dash.
pub(crate) fn maybe_age(at: Option<Timestamp>, now: Timestamp) -> Markup {
    html! { @if let Some(at) = at { (age(at, now)) } @else { span.none { "–" } } }
}

/// Renders the exact time, to the second.
pub(crate) fn exact(at: Timestamp) -> Markup {
    html! { time datetime=(to_second(at)) { (to_second(at)) } }
}

/// Renders the exact time and its age.
pub(crate) fn exact_with_age(at: Timestamp, now: Timestamp) -> Markup {
    let ago = if at > now { "" } else { " ago" };
    html! { (exact(at)) " " span.muted { "(" (age(at, now)) (ago) ")" } }
}

fn to_second(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second()).unwrap_or(at).to_string()
}
