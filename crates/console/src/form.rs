//! Forms: their hidden fields, and the values that they send.

use axum::extract::rejection::FormRejection;
use axum::extract::{Form, FromRequest, Request};
use axum::response::Response;
use lazaret_api::{Code, CsrfToken, Problem};
use maud::{Markup, html};

use crate::problem;
use crate::visit::Visit;

/// The hidden field that every form has, against requests of other sites. Without sessions there is no token: then the server checks
/// where a request comes from.
pub(crate) fn csrf_field(visit: &Visit) -> Markup {
    html! {
        @if let Some(CsrfToken(token)) = &visit.csrf { input type="hidden" name=(CsrfToken::FIELD) value=(token); }
    }
}

/// A form with one hidden set of values and a button, for an act without further fields.
pub(crate) fn hidden(name: &str, value: &str) -> Markup {
    html! { input type="hidden" name=(name) value=(value); }
}

/// The values that a form sent. Names may repeat.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields(Vec<(String, String)>);

impl Fields {
    /// The first value of this name, trimmed; `None` if it is missing or blank.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.raw(name).map(str::trim).filter(|value| !value.is_empty())
    }

    /// The first value of this name, as it was sent.
    pub(crate) fn raw(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// All values of this name.
    pub(crate) fn all(&self, name: &str) -> Vec<String> {
        self.0.iter().filter(|(known, _)| known == name).map(|(_, value)| value.clone()).collect()
    }
}

impl<S: Send + Sync> FromRequest<S> for Fields {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        let refused = |error: FormRejection| {
            problem::bare(&Problem::new(Code::InvalidRequest).with_detail(error.body_text()))
        };
        let Form(fields) =
            Form::<Vec<(String, String)>>::from_request(request, state).await.map_err(refused)?;
        Ok(Self(fields))
    }
}
