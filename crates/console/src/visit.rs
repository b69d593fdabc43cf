//! A request of a page: its caller, its calls of the API, and its response.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{StatusCode, Uri, header};
use axum::response::{Html, IntoResponse, Response};
use jiff::Timestamp;
use lazaret_api::{CsrfToken, Identity, Problem, Scope};
use lazaret_server::SignIn;
use maud::Markup;

use crate::api::Api;
use crate::layout::{self, Section};
use crate::problem;
use crate::routes::Console;

/// A request of a page.
pub(crate) struct Visit {
    pub(crate) api: Api,
    pub(crate) identity: Identity,
    pub(crate) csrf: Option<CsrfToken>,
    pub(crate) sign_in: Option<SignIn>,
    pub(crate) uri: Uri,
    /// The time of the request, to which all ages on the page refer.
    pub(crate) now: Timestamp,
    /// The URL of a trace in another system.
    pub(crate) trace_url: Option<Arc<str>>,
}

/// The content of a page.
pub(crate) struct Page {
    pub(crate) title: String,
    pub(crate) section: Section,
    pub(crate) main: Markup,
    /// The status, which shows what is wrong with the request, if anything.
    pub(crate) status: StatusCode,
}

/// The answer to a page's request.
pub(crate) enum Answer {
    Page(Box<Page>),
    /// A redirect to another page, which shows the result.
    SeeOther(String),
}

impl Page {
    pub(crate) fn new(title: impl Into<String>, section: Section, main: Markup) -> Self {
        Self { title: title.into(), section, main, status: StatusCode::OK }
    }

    /// Sets the status, for a page that responds to an invalid request.
    pub(crate) fn status(mut self, status: u16) -> Self {
        self.status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        self
    }
}

impl From<Page> for Answer {
    fn from(page: Page) -> Self {
        Self::Page(Box::new(page))
    }
}

impl Visit {
    /// Returns `true` if the caller has a right. The API enforces it. Pages disable what would be refused.
    pub(crate) fn may(&self, scope: Scope) -> bool {
        self.identity.may(scope)
    }

    /// Names the right that a control needs, if the caller lacks it.
    pub(crate) fn missing(&self, right: Scope) -> Option<String> {
        (!self.may(right)).then(|| format!("needs the right {right}"))
    }

    /// Renders an answer, or the problem that the API reported.
    pub(crate) fn respond<A: Into<Answer>>(&self, answer: Result<A, Box<Problem>>) -> Response {
        let page = match answer.map(Into::into) {
            Ok(Answer::Page(page)) => *page,
            Ok(Answer::SeeOther(to)) => return see_other(&to),
            Err(problem) => problem::page(&problem),
        };
        (page.status, Html(layout::document(self, &page).into_string())).into_response()
    }
}

/// Redirects to a page after a change, or to the new address of a page.
pub(crate) fn see_other(to: &str) -> Response {
    (StatusCode::SEE_OTHER, [(header::LOCATION, to)]).into_response()
}

impl FromRequestParts<Console> for Visit {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, console: &Console) -> Result<Self, Response> {
        let api = Api::new(console.api.clone(), parts.extensions.clone());
        let identity: Identity = api.get("/v1/whoami").await.map_err(|problem| problem::bare(&problem))?;
        let csrf = parts.extensions.get::<CsrfToken>().cloned();
        let sign_in = parts.extensions.get::<SignIn>().cloned();
        let (uri, trace_url) = (parts.uri.clone(), console.trace_url.clone());
        Ok(Self { api, identity, csrf, sign_in, uri, now: Timestamp::now(), trace_url })
    }
}
