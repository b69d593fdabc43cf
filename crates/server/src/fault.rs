//! From trouble of any kind to the problem that is answered.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use lazaret_api::{Code, Problem};
use lazaret_core::query::QueryError;
use lazaret_core::store::{Certainty, ErrorKind, StoreError};

/// A request that failed.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) problem: Box<Problem>,
    /// When it is worth asking again, in seconds.
    retry_after: Option<u32>,
}

/// What a handler gives back.
pub(crate) type Result<T> = std::result::Result<T, Fault>;

impl Fault {
    pub(crate) fn new(code: Code, detail: impl Into<String>) -> Self {
        Problem::new(code).with_detail(detail).into()
    }

    pub(crate) fn not_found(what: &str, name: impl std::fmt::Display) -> Self {
        Self::new(Code::NotFound, format!("there is no {what} {name}"))
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

impl From<Problem> for Fault {
    fn from(problem: Problem) -> Self {
        Self { problem: Box::new(problem), retry_after: None }
    }
}

impl From<QueryError> for Fault {
    fn from(error: QueryError) -> Self {
        let place = error.position();
        let mut problem = Problem::new(Code::InvalidQuery).with_detail(error.to_string()).at("q");
        problem.position = Some([place.start as u64, place.end as u64]);
        problem.hint = error.hint().map(str::to_owned);
        problem.into()
    }
}

impl From<StoreError> for Fault {
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
        let fault = Self::new(code, error.context());
        match code {
            Code::StoreUnavailable | Code::StoreUncertain => {
                tracing::warn!(%error, "the store failed a request");
                fault.retry_after(1)
            }
            Code::StoreCorrupt => {
                tracing::error!(%error, "the store cannot read what it holds");
                fault
            }
            _ => fault,
        }
    }
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self.problem).unwrap_or_default();
        let mut response = (status, body).into_response();
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
