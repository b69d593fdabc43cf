//! Shows states as an icon and a word, never by colour alone.

use lazaret_api::{Breaker, ConsumerState, Fuse, OperationState, Outcome, State};
use maud::{Markup, html};

use crate::icon::icon;

/// The quality of a state, which determines its colour.
#[derive(Clone, Copy)]
enum Tone {
    Good,
    Busy,
    Warning,
    Bad,
    Quiet,
}

impl Tone {
    const fn class(self) -> &'static str {
        match self {
            Self::Good => "badge good",
            Self::Busy => "badge busy",
            Self::Warning => "badge warn",
            Self::Bad => "badge bad",
            Self::Quiet => "badge quiet",
        }
    }
}

fn badge(tone: Tone, symbol: &str, word: &str) -> Markup {
    html! { span class=(tone.class()) { (icon(symbol)) (word) } }
}

/// Renders the state of a letter.
pub(crate) fn letter(state: State) -> Markup {
    let (tone, symbol) = match state {
        State::Retrying => (Tone::Busy, "retry"),
        State::Dead => (Tone::Bad, "cross"),
        State::Parked => (Tone::Warning, "park"),
        State::Quarantined => (Tone::Bad, "quarantine"),
        State::Waiting => (Tone::Quiet, "wait"),
        State::Resolved => (Tone::Good, "ok"),
        State::Evicted => (Tone::Quiet, "evict"),
        State::Skipped => (Tone::Quiet, "skip"),
        State::Expired => (Tone::Quiet, "clock"),
    };
    badge(tone, symbol, state.as_str())
}

/// Renders the state of an operation.
pub(crate) fn operation(state: OperationState) -> Markup {
    let (tone, symbol, word) = match state {
        OperationState::AwaitingApproval => (Tone::Warning, "person", "needs approval"),
        OperationState::Scheduled => (Tone::Quiet, "wait", "scheduled"),
        OperationState::Running => (Tone::Busy, "play", "running"),
        OperationState::Paused => (Tone::Warning, "pause", "paused"),
        OperationState::Done => (Tone::Good, "ok", "done"),
        OperationState::Cancelled => (Tone::Quiet, "cross", "cancelled"),
        OperationState::Rejected => (Tone::Bad, "cross", "rejected"),
    };
    badge(tone, symbol, word)
}

/// Renders the state of a consumer.
pub(crate) fn consumer(state: ConsumerState) -> Markup {
    let (tone, symbol) = match state {
        ConsumerState::Starting => (Tone::Quiet, "wait"),
        ConsumerState::Running => (Tone::Good, "play"),
        ConsumerState::Paused => (Tone::Warning, "pause"),
        ConsumerState::Waiting => (Tone::Quiet, "wait"),
        ConsumerState::Stopped => (Tone::Quiet, "cross"),
        ConsumerState::Failed => (Tone::Bad, "warn"),
        ConsumerState::Elsewhere => (Tone::Quiet, "elsewhere"),
    };
    badge(tone, symbol, state.as_str())
}

/// Renders the state of a circuit breaker.
pub(crate) fn breaker(state: Breaker) -> Markup {
    match state {
        Breaker::None => html! { span.none { "–" } },
        Breaker::Closed => badge(Tone::Quiet, "ok", "closed"),
        Breaker::Open => badge(Tone::Bad, "warn", "open"),
        Breaker::HalfOpen => badge(Tone::Warning, "wait", "half-open"),
    }
}

/// Renders the state of a fuse.
pub(crate) fn fuse(state: Fuse) -> Markup {
    match state {
        Fuse::None => html! { span.none { "–" } },
        Fuse::Intact => badge(Tone::Quiet, "ok", "intact"),
        Fuse::Blown => badge(Tone::Bad, "warn", "blown"),
    }
}

/// Renders the outcome of a letter in an operation. `None` means that it has no outcome yet.
pub(crate) fn outcome(outcome: Option<Outcome>) -> Markup {
    match outcome {
        None => badge(Tone::Quiet, "wait", "not yet"),
        Some(Outcome::Ok) => badge(Tone::Good, "ok", "ok"),
        Some(Outcome::FailedAgain) => badge(Tone::Bad, "cross", "failed again"),
        Some(Outcome::SkippedBehindFailed) => badge(Tone::Warning, "skip", "skipped behind a failed one"),
        Some(Outcome::SkippedChanged) => badge(Tone::Warning, "skip", "skipped: it changed"),
        Some(Outcome::SkippedCancelled) => badge(Tone::Quiet, "skip", "skipped: cancelled"),
    }
}

/// Renders a badge for something that is as it should be.
pub(crate) fn good(word: &str) -> Markup {
    badge(Tone::Good, "ok", word)
}

/// Renders a badge for something that is wrong.
pub(crate) fn bad(word: &str) -> Markup {
    badge(Tone::Bad, "warn", word)
}

/// Renders a badge for neutral information.
pub(crate) fn quiet(symbol: &str, word: &str) -> Markup {
    badge(Tone::Quiet, symbol, word)
}
