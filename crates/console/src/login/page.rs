//! The sign-in page.

use axum::Extension;
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};
use lazaret_api::CsrfToken;
use maud::html;

use super::next::Next;
use super::{OIDC_PATH, PATH};
use crate::api::with_query;
use crate::layout;
use crate::routes::Console;

/// The message above the form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    None,
    /// The token is invalid, for any reason.
    Refused,
    Wait(u32),
    NotEncrypted,
    /// Only the client claims that its host is this server.
    UnknownHost,
    /// The provider did not sign the person in.
    ProviderRefused,
    /// The person has no role.
    NoRole,
    Failed,
}

impl Message {
    fn text(self) -> Option<String> {
        let text = match self {
            Self::None => return None,
            Self::Refused => "Sign-in refused: the token is not valid.".to_owned(),
            Self::Wait(seconds) => format!("Too many failed sign-ins. Wait {seconds} s and try again."),
            Self::NotEncrypted => {
                "This connection is not encrypted, so you cannot sign in here. Use https: configure `tls`, or a reverse proxy \
                 under `console.proxy`."
                    .to_owned()
            }
            Self::UnknownHost => {
                "Sign-in with your organisation needs to know the name of this server: add the name in the address bar to `hosts` in \
                 the configuration."
                    .to_owned()
            }
            Self::ProviderRefused => "The identity provider did not sign you in. Try again.".to_owned(),
            Self::NoRole => {
                "You are signed in at the identity provider, but none of your groups has a role here.".to_owned()
            }
            Self::Failed => "Sign-in failed. The log of the daemon has details.".to_owned(),
        };
        Some(text)
    }
}

/// The sign-in page for one request.
pub(super) struct SignInPage<'a> {
    console: &'a Console,
    csrf: Option<CsrfToken>,
    next: &'a Next,
}

impl<'a> SignInPage<'a> {
    pub(super) fn new(console: &'a Console, csrf: Option<Extension<CsrfToken>>, next: &'a Next) -> Self {
        Self { console, csrf: csrf.map(|Extension(token)| token), next }
    }

    pub(super) fn show(&self, status: StatusCode, message: Message) -> Response {
        let main = html! {
            div.state.sign-in {
                h1 { "Sign in to Lazaret" }
                @if let Some(text) = message.text() { p.banner.bad role="alert" { (text) } }
                @if message != Message::NotEncrypted {
                    @if self.console.oidc.is_some() {
                        p { a.button.primary href=(with_query(OIDC_PATH, &[("next", Some(self.next.as_str()))])) {
                            "Sign in with your organisation"
                        } }
                    }
                    form method="post" action=(PATH) {
                        @if let Some(CsrfToken(token)) = &self.csrf { input type="hidden" name=(CsrfToken::FIELD) value=(token); }
                        input type="hidden" name="next" value=(self.next.as_str());
                        label for="token" { "Token" }
                        input #token type="password" name="token" autocomplete="current-password" required autofocus
                            aria-describedby="token-help";
                        p #token-help.hint { "From " code { "lazaret token" } ": the line that starts with " code { "lz_" } "." }
                        button.primary type="submit" { "Sign in" }
                    }
                }
            }
        };
        (status, Html(layout::bare("Sign in", &main).into_string())).into_response()
    }
}

/// Renders the page for a person whom a proxy has authenticated, and who has no role.
pub(super) fn without_role() -> Response {
    let main = html! {
        div.state.problem role="alert" {
            h1 { "You have no role here" }
            p { "You are signed in, but none of your groups has a role in " code { "console.proxy.roles" } "." }
        }
    };
    (StatusCode::FORBIDDEN, Html(layout::bare("No role", &main).into_string())).into_response()
}
