//! Redirects callers who are not signed in to the sign-in.

use axum::extract::Request;
use axum::http::{HeaderMap, header};
use axum::middleware::Next as Rest;
use axum::response::Response;
use lazaret_api::{Code, Problem, Scope};
use lazaret_server::{SignIn, SignedIn};

use super::{PATH, page};
use crate::api::with_query;
use crate::problem;
use crate::visit::see_other;

/// Lets a request through if its sender has one of these rights. The API still decides what the sender
/// may do.
pub(crate) async fn require(scopes: &'static [Scope], request: Request, rest: Rest) -> Response {
    let sign_in = request.extensions().get::<SignIn>();
    if let Some(identity) = sign_in.and_then(SignIn::identity) {
        return match scopes.is_empty() || scopes.iter().any(|scope| identity.may(*scope)) {
            true => rest.run(request).await,
            false => problem::bare(&missing(scopes)),
        };
    }
    match sign_in.map(SignIn::signed_in) {
        // This does not happen on a server with sessions. It fails closed.
        None => problem::bare(&Problem::new(Code::Unauthenticated)),
        Some(SignedIn::WithoutRole) => page::without_role(),
        Some(SignedIn::Nobody) if !is_navigation(request.headers()) => {
            problem::bare(&Problem::new(Code::Unauthenticated))
        }
        Some(SignedIn::Nobody) if request.method().is_safe() => {
            let here = request.uri().path_and_query().map(|path| path.as_str());
            see_other(&with_query(PATH, &[("next", here)]))
        }
        // The form belongs to a session that has ended. Nothing was changed, and the input is lost.
        Some(SignedIn::Nobody) => see_other(PATH),
        // For example, the bearer token is unknown.
        Some(_) => problem::bare(&Problem::new(Code::Unauthenticated)),
    }
}

fn missing(scopes: &[Scope]) -> Problem {
    let names: Vec<&str> = scopes.iter().map(|scope| scope.as_str()).collect();
    Problem::new(Code::Forbidden).with_detail(format!("this page needs the right {}", names.join(" or ")))
}

/// Returns `true` if the response will be shown as a page, and is not for a script.
fn is_navigation(headers: &HeaderMap) -> bool {
    match headers.get("sec-fetch-mode") {
        Some(mode) => mode.as_bytes() == b"navigate",
        None => headers
            .get(header::ACCEPT)
            .and_then(|accept| accept.to_str().ok())
            .is_some_and(|accept| accept.contains("text/html")),
    }
}
