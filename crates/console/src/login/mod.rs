//! Sign-in with a token or with an OpenID Connect provider. The server keeps the sessions, and says who
//! sent a request ([`SignIn`]).

mod flows;
mod http;
mod next;
mod oidc;
mod page;
mod require;

use axum::Extension;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use lazaret_api::CsrfToken;
use lazaret_server::{SignIn, SignInError, SignedIn};
use maud::{Markup, html};
use serde::Deserialize;

use self::next::Next;
pub use self::oidc::{InvalidOidc, OidcOptions};
pub(crate) use self::oidc::{Oidc, begin, complete};
use self::page::{Message, SignInPage};
pub(crate) use self::require::require;
use crate::form::{Fields, csrf_field};
use crate::routes::Console;
use crate::visit::{Visit, see_other};

/// The path of the sign-in page.
pub(crate) const PATH: &str = "/console/login";
/// The path where a sign-in with the provider begins.
pub(crate) const OIDC_PATH: &str = "/console/login/oidc";
/// The path to which the provider sends the browser back.
pub(crate) const CALLBACK_PATH: &str = "/console/login/callback";
/// The path where a session ends.
pub(crate) const LOGOUT_PATH: &str = "/console/logout";

/// The parameters of the sign-in.
#[derive(Deserialize)]
pub(crate) struct Params {
    next: Option<String>,
}

/// Shows the sign-in. Redirects a person who is already signed in.
pub(crate) async fn show(
    State(console): State<Console>,
    Extension(sign_in): Extension<SignIn>,
    csrf: Option<Extension<CsrfToken>>,
    Query(params): Query<Params>,
) -> Response {
    let next = Next::of(params.next.as_deref());
    match sign_in.signed_in() {
        SignedIn::Nobody => {}
        SignedIn::WithoutRole => return page::without_role(),
        SignedIn::Open | SignedIn::Bearer | SignedIn::Session | SignedIn::Proxy => {
            return see_other(next.as_str());
        }
    }
    let message = if sign_in.may_set_cookies() { Message::None } else { Message::NotEncrypted };
    SignInPage::new(&console, csrf, &next).show(StatusCode::OK, message)
}

/// Starts a session with the rights of a token.
pub(crate) async fn with_token(
    State(console): State<Console>,
    Extension(sign_in): Extension<SignIn>,
    csrf: Option<Extension<CsrfToken>>,
    fields: Fields,
) -> Response {
    let next = Next::of(fields.get("next"));
    let token = fields.get("token").unwrap_or_default();
    let page = SignInPage::new(&console, csrf, &next);
    match sign_in.with_token(token) {
        Ok(cookie) => ([(header::SET_COOKIE, cookie)], see_other(next.as_str())).into_response(),
        Err(SignInError::Open) => see_other(next.as_str()),
        Err(SignInError::NotEncrypted) => page.show(StatusCode::FORBIDDEN, Message::NotEncrypted),
        Err(SignInError::TooManyFailures { wait_seconds }) => {
            let wait = [(header::RETRY_AFTER, wait_seconds.to_string())];
            let page = page.show(StatusCode::TOO_MANY_REQUESTS, Message::Wait(wait_seconds));
            (wait, page).into_response()
        }
        Err(SignInError::Refused) => page.show(StatusCode::UNAUTHORIZED, Message::Refused),
        Err(_) => page.show(StatusCode::INTERNAL_SERVER_ERROR, Message::Failed),
    }
}

/// Ends the session of the browser.
pub(crate) async fn sign_out(Extension(sign_in): Extension<SignIn>) -> Response {
    ([(header::SET_COOKIE, sign_in.sign_out())], see_other(PATH)).into_response()
}

/// Renders the button that ends the session, for callers who have one.
pub(crate) fn sign_out_form(visit: &Visit) -> Markup {
    let has_session = visit.sign_in.as_ref().is_some_and(|sign_in| sign_in.signed_in() == SignedIn::Session);
    html! {
        @if has_session {
            form.sign-out method="post" action=(LOGOUT_PATH) { (csrf_field(visit)) button type="submit" { "Sign out" } }
        }
    }
}
