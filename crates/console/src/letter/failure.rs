//! Why a letter failed: the error, its causes, and its backtrace.

use lazaret_api::{Failure, LetterDetail};
use maud::{Markup, html};

use crate::text::{block, cut, telling_type, visible};

/// The maximum length of a text on the page. Longer texts are cut.
const MAX_TEXT: usize = 16_000;

/// Renders the cause of a letter.
pub(super) fn panel(detail: &LetterDetail) -> Markup {
    html! {
        section.panel {
            div.section-head {
                h2 { "Failure" }
                @if let Some(cause) = &detail.cause { p.muted { "while " (phase(cause)) } }
            }
            @match &detail.cause {
                Some(cause) => (failure(cause, "cause")),
                None => div.pad { p.muted { "It has no failure of its own: it waits behind the head of its sequence." } },
            }
        }
    }
}

const fn phase(cause: &Failure) -> &'static str {
    match cause.phase {
        lazaret_api::Phase::Decode => "decoding the payload",
        lazaret_api::Phase::Filter => "filtering",
        lazaret_api::Phase::Validate => "validating the content",
        lazaret_api::Phase::Handle => "the handler ran",
        lazaret_api::Phase::ExternalCall => "calling another system: the call may have had its effect",
        lazaret_api::Phase::Ack => "acknowledging the message",
    }
}

/// Renders a failure, with its chain and its backtrace folded. The name distinguishes several failures
/// on one page.
pub(super) fn failure(of: &Failure, name: &str) -> Markup {
    html! {
        div.pad {
            p { @if let Some(kind) = telling_type(&of.error_type) { strong.mono { (visible(&kind)) } " " } span.tag { (visible(&of.reason)) }
                @if let Some(status) = of.status { " " span.tag { "status " (status) } }
                @if of.panicked { " " span.tag { "panicked" } }
                @if let Some(seconds) = of.retry_after_seconds { " " span.muted { "asked to retry after " (seconds) " s" } }
            }
            div.error-text { (block(&cut(&of.message, MAX_TEXT))) }
            @if !of.chain.is_empty() {
                ol.chain aria-label="Causes" {
                    @for link in &of.chain { li {
                        span.muted { "caused by " } @if let Some(kind) = &link.error_type { strong.mono { (visible(kind)) } }
                        div.error-text { (block(&cut(&link.message, MAX_TEXT))) }
                    } }
                }
            }
        }
        @if let Some(backtrace) = &of.backtrace {
            details.fold id={ "backtrace-" (name) } {
                summary { "Backtrace" }
                div.backtrace { @for line in cut(backtrace, MAX_TEXT).lines() {
                    div .library[is_library(line)] { (visible(line)) }
                } }
            }
        }
    }
}

/// Returns `true` for frames of languages and libraries, which are rarely the cause.
fn is_library(line: &str) -> bool {
    const PLACES: [&str; 14] = [
        "/rustc/",
        "/.cargo/registry/",
        "core::",
        "std::",
        "alloc::",
        "tokio::",
        "site-packages/",
        "/lib/python",
        "node_modules/",
        "node:internal",
        "java.base/",
        "java.",
        "sun.",
        "org.springframework.",
    ];
    let line = line
        .trim_start()
        .trim_start_matches("at ")
        .trim_start_matches(|c: char| c.is_ascii_digit() || c == ':')
        .trim_start();
    PLACES.iter().any(|place| {
        if place.ends_with("::") || place.ends_with('.') {
            line.starts_with(place)
        } else {
            line.contains(place)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_libraries_are_told_from_ones_own() {
        for line in [
            "   3: core::ops::function::FnOnce::call_once",
            "  at /rustc/abc/lib.rs:1",
            "at java.util.List.of(List.java)",
        ] {
            assert!(is_library(line), "{line}");
        }
        for line in ["   4: shop::charge", "  at src/charge.rs:12", "File \"/app/handler.py\", line 3"] {
            assert!(!is_library(line), "{line}");
        }
    }
}
