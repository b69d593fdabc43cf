//! The error of a request handler: a problem, and how it becomes a response.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use lazaret_api::{Code, Problem};
use lazaret_core::query::QueryError;
use lazaret_core::store::{Certainty, ErrorKind, StoreError};

/// What to do about a lease, the only conflict that ends by itself.
const LEASED_HINT: &str = "a worker holds the sequence at this moment: try again";

/// What to do about too many drafts, up to the name of the limit.
const DRAFTS_HINT: &str = "a plan that was started or has expired does not count: see `GET /v1/plans`; the configuration sets the limit as";

/// A failed request.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    pub(crate) problem: Box<Problem>,
    /// The `Retry-After` header, in seconds.
    retry_after: Option<u32>,
}

/// The result of a request handler.
pub(crate) type Result<T> = std::result::Result<T, ApiError>;

impl ApiError {
    pub(crate) fn new(code: Code, detail: impl Into<String>) -> Self {
        Problem::new(code).with_detail(detail).into()
    }

    pub(crate) fn not_found(kind: &str, name: impl std::fmt::Display) -> Self {
        Self::new(Code::NotFound, format!("no {kind} {name}"))
    }

    pub(crate) fn invalid(pointer: &str, detail: impl Into<String>) -> Self {
        Problem::new(Code::InvalidRequest).with_detail(detail).at(pointer).into()
    }

    #[must_use]
    pub(crate) fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after = Some(seconds);
        self
    }
}

impl From<Problem> for ApiError {
    fn from(problem: Problem) -> Self {
        Self { problem: Box::new(problem), retry_after: None }
    }
}

impl From<QueryError> for ApiError {
    fn from(error: QueryError) -> Self {
        let range = error.position();
        let mut problem = Problem::new(Code::InvalidQuery).with_detail(error.to_string()).at("q");
        problem.position = Some([range.start as u64, range.end as u64]);
        problem.hint = error.hint().map(str::to_owned);
        problem.into()
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        let code = match (error.kind(), error.certainty()) {
            (ErrorKind::NotFound, _) => Code::NotFound,
            (ErrorKind::Conflict | ErrorKind::Fenced, _) => Code::Conflict,
            (ErrorKind::Invalid, _) => Code::InvalidRequest,
            (ErrorKind::Denied, _) => Code::Denied,
            (ErrorKind::Full, _) => Code::StoreFull,
            (ErrorKind::Corrupt, _) => Code::StoreCorrupt,
            (_, Certainty::MaybeDone) => Code::StoreUncertain,
            (_, Certainty::NotDone) => Code::StoreUnavailable,
        };
        let mut answer = Self::new(code, error.context());
        match code {
            Code::Conflict if error.limit().is_some_and(|limit| limit.starts_with("draft")) => {
                answer.problem.hint = error.limit().map(|limit| format!("{DRAFTS_HINT} `limits.{limit}`"));
                answer
            }
            Code::Conflict if error.is_leased() => {
                answer.problem.hint = Some(LEASED_HINT.to_owned());
                answer
            }
            Code::StoreUnavailable | Code::StoreUncertain => {
                tracing::warn!(%error, "store request failed");
                answer.retry_after(1)
            }
            Code::StoreCorrupt => {
                tracing::error!(%error, "stored data unreadable");
                answer
            }
            _ => answer,
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self.problem).unwrap_or_default();
        let mut response = (status, body).into_response();
        // For browsers, which get a page.
        response.extensions_mut().insert(self.problem);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(Problem::MEDIA_TYPE));
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"lazaret\""));
        }
        response
    }
}
