//! Shows a request that the API refused or that failed.

use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};
use lazaret_api::{Code, Problem};
use maud::{Markup, html};

use crate::headers;
use crate::layout::{self, Section};
use crate::text::visible;
use crate::visit::Page;

/// Renders the page of a problem.
pub(crate) fn page(problem: &Problem) -> Page {
    let main = html! {
        div.state.problem role="alert" {
            h1 { (headline(problem)) }
            (detail(problem))
            p { (problem.code.page()) }
            p { a.button href="/console/overview" { "Go to the overview" } }
        }
    };
    Page::new(problem.title.clone(), Section::None, main).status(problem.status)
}

/// Renders the page of a problem without navigation, for an unknown caller.
pub(crate) fn bare(problem: &Problem) -> Response {
    let main = html! {
        div.state.problem role="alert" {
            h1 { (headline(problem)) }
            (detail(problem))
            p { (problem.code.page()) }
            p { a.button href="/console/overview" { "Go to the overview" } }
        }
    };
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, Html(layout::bare(&problem.title, &main).into_string())).into_response()
}

/// Renders the page of a problem that the server reports before a page is called, such as a form from
/// another site. For `Builder::problem_page` of the server.
pub fn problem_page(problem: &Problem) -> Response {
    headers::secured(bare(problem))
}

/// Renders a problem above the form that caused it.
pub(crate) fn banner(problem: &Problem) -> Markup {
    html! {
        div.banner.bad role="alert" {
            strong { (headline(problem)) }
            (detail(problem))
        }
    }
}

fn headline(problem: &Problem) -> &'static str {
    match problem.code {
        Code::Forbidden => "You may not do this",
        Code::Denied => "A policy does not allow this",
        Code::NotFound | Code::NoRoute => "Not found",
        Code::Unauthenticated | Code::TokenExpired => "Sign in to see this page",
        Code::InvalidQuery => "This query cannot be read",
        Code::Conflict => "This was changed in the meantime",
        Code::PlanStale => "This plan has expired or was used already",
        Code::StoreUnavailable | Code::StoreUncertain => "The store does not answer",
        Code::Busy => "The server is busy",
        Code::CrossSite => "This form is no longer valid",
        _ => "This did not work",
    }
}

fn detail(problem: &Problem) -> Markup {
    html! {
        p.problem-detail {
            code.code { (problem.code.as_str()) } " "
            (problem.title)
        }
        // A query shows its error below the exact place.
        @if let Some(detail) = &problem.detail {
            @if problem.code == Code::InvalidQuery { pre.caret { (visible(detail)) } } @else { p { (visible(detail)) } }
        }
        @if let Some(hint) = problem.hint.as_ref().filter(|_| problem.code != Code::InvalidQuery) {
            p.hint { "Hint: " (visible(hint)) }
        }
    }
}
