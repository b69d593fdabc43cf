//! Forms: their hidden fields and the values that they send.

use axum::extract::rejection::FormRejection;
use axum::extract::{Form, FromRequest, Request};
use axum::response::Response;
use lazaret_api::{Code, CsrfToken, Problem, Scope};
use maud::{Markup, html};

use crate::visit::Visit;
use crate::{cli_line, problem};

/// Renders the hidden field that protects every form against requests from other sites. Without sessions
/// there is no token, and the server checks the origin of a request instead.
pub(crate) fn csrf_field(visit: &Visit) -> Markup {
    html! {
        @if let Some(CsrfToken(token)) = &visit.csrf { input type="hidden" name=(CsrfToken::FIELD) value=(token); }
    }
}

/// Renders a hidden field.
pub(crate) fn hidden(name: &str, value: &str) -> Markup {
    html! { input type="hidden" name=(name) value=(value); }
}

/// The maximum length of a reason.
const MAX_REASON: u16 = 1024;

/// A one-line form with a text and a button. Without the right, both are disabled and say so. Below the
/// form is the command that does the same.
pub(crate) struct LineForm<'a> {
    action: String,
    right: Scope,
    field: &'static str,
    limit: u16,
    is_required: bool,
    label: &'a str,
    placeholder: &'a str,
    value: &'a str,
    more: Markup,
    command: String,
}

impl<'a> LineForm<'a> {
    /// Creates a form for a text that may be empty.
    pub(crate) fn new(
        action: String,
        right: Scope,
        field: &'static str,
        limit: u16,
        placeholder: &'a str,
        command: String,
    ) -> Self {
        let (label, value, more) = (placeholder, "", html! {});
        Self { action, right, field, limit, is_required: false, label, placeholder, value, more, command }
    }

    /// Creates a form for an act that needs a reason.
    pub(crate) fn reason(action: String, right: Scope, placeholder: &'a str, command: String) -> Self {
        Self::new(action, right, "reason", MAX_REASON, placeholder, command).required()
    }

    pub(crate) fn required(self) -> Self {
        Self { is_required: true, ..self }
    }

    /// Sets the label of the field, for people who do not see it next to its subject. Default: the
    /// placeholder.
    pub(crate) fn label(self, label: &'a str) -> Self {
        Self { label, ..self }
    }

    /// Sets the initial text.
    pub(crate) fn value(self, value: &'a str) -> Self {
        Self { value, ..self }
    }

    /// Adds fields between the text and the button.
    pub(crate) fn with(self, more: Markup) -> Self {
        Self { more, ..self }
    }

    /// Renders the form with this content on its button.
    pub(crate) fn render(&self, visit: &Visit, button: &Markup) -> Markup {
        let why = visit.missing(self.right);
        html! {
            form.inline-form method="post" action=(self.action) {
                (csrf_field(visit))
                input type="text" name=(self.field) value=[Some(self.value).filter(|value| !value.is_empty())]
                    placeholder=(self.placeholder) aria-label=(self.label) required[self.is_required] maxlength=(self.limit)
                    disabled[why.is_some()];
                (self.more)
                button disabled[why.is_some()] title=[why] { (button) }
                (cli_line::folded(&self.command))
            }
        }
    }
}

/// Renders the form that assigns the subject of a page, like this command.
pub(crate) fn assign_form(visit: &Visit, page: &str, assignee: Option<&str>, command: String) -> Markup {
    let action = format!("{page}/assignee");
    let form = LineForm::new(action, Scope::Triage, "name", 200, "Nobody", command).label("Assignee");
    form.value(assignee.unwrap_or_default()).render(visit, &html! { "Assign" })
}

/// The values that a form sent. Names may repeat.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields(Vec<(String, String)>);

impl Fields {
    /// Returns the first value with this name, trimmed. Returns `None` if it is missing or blank.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.raw(name).map(str::trim).filter(|value| !value.is_empty())
    }

    /// Returns the first value with this name, as sent.
    pub(crate) fn raw(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Returns all values with this name.
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
