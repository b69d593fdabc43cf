//! Sign-in with an OpenID Connect provider: authorization code flow with PKCE, state and nonce.
//!
//! The daemon exchanges the code, so no token of the provider reaches the browser. Everything in the ID
//! token is checked: signature, issuer, audience, authorized party, times and nonce. The rights come
//! from the groups in it.

use axum::Extension;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use lazaret_api::CsrfToken;
use lazaret_server::{Person, Role, RoleError, SignIn, person_in_groups};
use openidconnect::core::{
    CoreAuthenticationFlow, CoreClient, CoreIdToken, CoreJwsSigningAlgorithm, CoreProviderMetadata,
};
use openidconnect::{
    AuthorizationCode, ClientId, ClientSecret, CsrfToken as OidcState, EndpointMaybeSet, EndpointNotSet,
    EndpointSet, HttpRequest, IssuerUrl, Nonce, PkceCodeChallenge, RedirectUrl, Scope, TokenResponse,
};
use serde::Deserialize;
use serde_json::Value;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::flows::{Flow, Flows, LASTS, NotSealed};
use super::next::Next;
use super::page::{Message, SignInPage};
use super::{CALLBACK_PATH, Params, http};
use crate::routes::Console;
use crate::visit::see_other;

/// The cookie that binds a sign-in to its browser.
const COOKIE: &str = "lazaret-login";
/// How long the provider's documents are used before they are read again.
const METADATA_LASTS: Duration = Duration::from_secs(600);
/// How far the provider's clock may be ahead, in seconds.
const LEEWAY_SECONDS: f64 = 60.0;
/// The accepted signature algorithms. Signatures with a shared secret and missing signatures are not
/// accepted.
const ALGORITHMS: [CoreJwsSigningAlgorithm; 5] = [
    CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha256,
    CoreJwsSigningAlgorithm::RsaSsaPssSha256,
    CoreJwsSigningAlgorithm::EcdsaP256Sha256,
    CoreJwsSigningAlgorithm::EcdsaP384Sha384,
    CoreJwsSigningAlgorithm::EdDsa,
];

/// The settings of a provider.
#[derive(Clone, Debug)]
pub struct OidcOptions {
    /// The issuer URL.
    pub issuer: String,
    /// The client id.
    pub client_id: String,
    /// The client secret. `None` for a public client.
    pub client_secret: Option<String>,
    /// The scopes to request, in addition to `openid`.
    pub scopes: Vec<String>,
    /// The claim that holds the name of the person.
    pub person_claim: String,
    /// The claim that holds the groups of the person.
    pub groups_claim: String,
    /// The rights of groups. The first match applies.
    pub roles: Vec<Role>,
}

/// The error for settings of a provider that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("sign-in with a provider cannot be set up: {0}")]
pub struct InvalidOidc(String);

/// A provider.
pub(crate) struct Oidc {
    options: OidcOptions,
    issuer: IssuerUrl,
    client: reqwest::Client,
    metadata: Mutex<Option<(Instant, CoreProviderMetadata)>>,
    flows: Flows,
}

/// The reason why a person was not signed in. Details are logged, not shown.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("provider unavailable: {0}")]
    Provider(String),
    #[error("the sign-in could not be written into a cookie")]
    NotSealed,
    #[error("no such sign-in has begun in this browser")]
    NoFlow,
    #[error("the state is not that of the sign-in")]
    State,
    #[error("the provider reports {0:?}")]
    Reported(String),
    #[error("the response comes from another issuer")]
    Issuer,
    #[error("code refused: {0}")]
    Code(String),
    #[error("ID token refused: {0}")]
    IdToken(String),
    #[error("the ID token has no claim {0:?} that is a text")]
    NoPerson(String),
    #[error("the provider does not say that the email address is verified")]
    NotVerified,
    #[error("{person:?}: {error}")]
    Role { person: String, error: RoleError },
}

type Client = CoreClient<
    EndpointSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointMaybeSet,
    EndpointMaybeSet,
>;

impl Oidc {
    /// Prepares the sign-in. The provider need not be available yet.
    pub(crate) fn new(options: OidcOptions) -> Result<Self, InvalidOidc> {
        let issuer = IssuerUrl::new(options.issuer.clone())
            .map_err(|error| InvalidOidc(format!("issuer {:?}: {error}", options.issuer)))?;
        let client = http::client().map_err(|error| InvalidOidc(error.to_string()))?;
        let flows = Flows::new().map_err(|NotSealed| InvalidOidc("no random numbers".to_owned()))?;
        Ok(Self { options, issuer, client, metadata: Mutex::default(), flows })
    }

    /// Sends one request to the provider.
    fn send(&self) -> impl Fn(HttpRequest) -> SendFuture + use<> {
        let client = self.client.clone();
        move |request| Box::pin(http::send(client.clone(), request))
    }

    /// Returns the provider's documents, with its keys. `no_older` forces a new reading if they are
    /// older, for keys that were replaced.
    async fn metadata(&self, no_older: Option<Instant>) -> Result<CoreProviderMetadata, Refused> {
        let mut kept = self.metadata.lock().await;
        if let Some((read, metadata)) = kept.as_ref()
            && read.elapsed() < METADATA_LASTS
            && no_older.is_none_or(|limit| *read >= limit)
        {
            return Ok(metadata.clone());
        }
        let started = Instant::now();
        let metadata = CoreProviderMetadata::discover_async(self.issuer.clone(), &self.send()).await;
        let metadata = metadata.map_err(|error| Refused::Provider(with_causes(&error)))?;
        *kept = Some((started, metadata.clone()));
        Ok(metadata)
    }

    fn client(&self, metadata: CoreProviderMetadata, redirect_uri: &str) -> Result<Client, Refused> {
        let id = ClientId::new(self.options.client_id.clone());
        let secret = self.options.client_secret.clone().map(ClientSecret::new);
        let redirect = RedirectUrl::new(redirect_uri.to_owned());
        let redirect = redirect.map_err(|error| Refused::Provider(error.to_string()))?;
        Ok(CoreClient::from_provider_metadata(metadata, id, secret).set_redirect_uri(redirect))
    }

    /// Begins a sign-in at this origin. Returns the cookie for the browser, and the URL to send it to.
    async fn begin(&self, origin: &str, next: Next) -> Result<(String, String), Refused> {
        let redirect_uri = format!("{origin}{CALLBACK_PATH}");
        let client = self.client(self.metadata(None).await?, &redirect_uri)?;
        let (challenge, verifier) = PkceCodeChallenge::new_random_sha256();
        let (url, state, nonce) = client
            .authorize_url(
                CoreAuthenticationFlow::AuthorizationCode,
                OidcState::new_random,
                Nonce::new_random,
            )
            .add_scopes(self.options.scopes.iter().cloned().map(Scope::new))
            .set_pkce_challenge(challenge)
            .url();
        let flow = Flow { state, nonce, verifier, redirect_uri, next };
        let cookie = self.flows.seal(&flow).map_err(|NotSealed| Refused::NotSealed)?;
        Ok((cookie, url.into()))
    }

    /// Completes a sign-in with the provider's answer.
    async fn complete(&self, flow: Flow, answer: &Answer) -> Result<Person, Refused> {
        if answer.state.as_deref() != Some(flow.state.secret()) {
            return Err(Refused::State);
        }
        if answer.iss.as_deref().is_some_and(|issuer| issuer != self.issuer.as_str()) {
            return Err(Refused::Issuer);
        }
        let Some(code) = &answer.code else {
            return Err(Refused::Reported(answer.error.clone().unwrap_or_default()));
        };
        let began = Instant::now();
        let client = self.client(self.metadata(None).await?, &flow.redirect_uri)?;
        let request = client.exchange_code(AuthorizationCode::new(code.clone()));
        let request = request.map_err(|error| Refused::Provider(error.to_string()))?;
        let response = request.set_pkce_verifier(flow.verifier).request_async(&self.send()).await;
        let response = response.map_err(|error| Refused::Code(with_causes(&error)))?;
        let Some(id_token) = response.id_token() else {
            return Err(Refused::IdToken("there is none".to_owned()));
        };
        if verify(&client, id_token, &flow.nonce).is_err() {
            // The provider may have replaced its keys since they were read.
            let client = self.client(self.metadata(Some(began)).await?, &flow.redirect_uri)?;
            verify(&client, id_token, &flow.nonce)?;
        }
        let claims = verified_claims(id_token);
        check_times(&claims, jiff::Timestamp::now().as_second())?;
        check_party(&claims, &self.options.client_id)?;
        self.person(&claims)
    }

    /// Returns the person of a verified ID token.
    fn person(&self, claims: &Value) -> Result<Person, Refused> {
        let OidcOptions { person_claim, groups_claim, roles, .. } = &self.options;
        let name = claims[person_claim].as_str().filter(|name| !name.trim().is_empty());
        let name = name.ok_or_else(|| Refused::NoPerson(person_claim.clone()))?;
        // At some providers, anyone may enter another person's address. Some providers send the flag as
        // a text.
        let is_verified = claims["email_verified"] == true || claims["email_verified"] == "true";
        if person_claim == "email" && !is_verified {
            return Err(Refused::NotVerified);
        }
        let groups: Vec<&str> = match &claims[groups_claim] {
            Value::Array(groups) => groups.iter().filter_map(Value::as_str).collect(),
            Value::String(group) => vec![group],
            _ => Vec::new(),
        };
        person_in_groups(name, &groups, roles)
            .map_err(|error| Refused::Role { person: name.to_owned(), error })
    }
}

type SendFuture =
    std::pin::Pin<Box<dyn Future<Output = Result<openidconnect::HttpResponse, http::HttpError>> + Send>>;

/// Checks signature, issuer, audience, expiry and nonce.
fn verify(client: &Client, id_token: &CoreIdToken, nonce: &Nonce) -> Result<(), Refused> {
    let verifier = client.id_token_verifier().set_allowed_algs(ALGORITHMS);
    id_token.claims(&verifier, nonce).map(|_| ()).map_err(|error| Refused::IdToken(with_causes(&error)))
}

/// Returns the claims of a verified ID token. The library exposes only the standard ones.
fn verified_claims(id_token: &CoreIdToken) -> Value {
    let token = id_token.to_string();
    let payload = token.split('.').nth(1).and_then(|payload| URL_SAFE_NO_PAD.decode(payload).ok());
    payload.and_then(|payload| serde_json::from_slice(&payload).ok()).unwrap_or_default()
}

/// Checks that the token was issued in the past and is already valid. The library checks the expiry.
fn check_times(claims: &Value, now: i64) -> Result<(), Refused> {
    let is_past = |time: &Value| time.as_f64().is_some_and(|time| time <= now as f64 + LEEWAY_SECONDS);
    if !is_past(&claims["iat"]) {
        return Err(Refused::IdToken(format!("it was not issued in the past: iat {}", claims["iat"])));
    }
    match claims.get("nbf").filter(|time| !is_past(time)) {
        Some(time) => Err(Refused::IdToken(format!("it is not valid yet: nbf {time}"))),
        None => Ok(()),
    }
}

/// Checks that the token was issued to this client, and not to another client that includes this one in
/// the audience.
fn check_party(claims: &Value, client_id: &str) -> Result<(), Refused> {
    let has_others = claims["aud"].as_array().is_some_and(|audience| audience.len() > 1);
    let fits = match claims.get("azp") {
        Some(party) => party == client_id,
        None => !has_others,
    };
    match fits {
        true => Ok(()),
        false => Err(Refused::IdToken(format!("it was issued to another client: azp {}", claims["azp"]))),
    }
}

/// Formats an error with its causes.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// The answer that the provider sends with the browser.
#[derive(Deserialize)]
pub(crate) struct Answer {
    code: Option<String>,
    state: Option<String>,
    error: Option<String>,
    iss: Option<String>,
}

/// Sends the browser to the provider.
pub(crate) async fn begin(
    State(console): State<Console>,
    Extension(sign_in): Extension<SignIn>,
    csrf: Option<Extension<CsrfToken>>,
    Query(params): Query<Params>,
) -> Response {
    let next = Next::of(params.next.as_deref());
    let page = SignInPage::new(&console, csrf, &next);
    let Some(oidc) = &console.oidc else { return StatusCode::NOT_FOUND.into_response() };
    if !sign_in.may_set_cookies() {
        return page.show(StatusCode::FORBIDDEN, Message::NotEncrypted);
    }
    // The provider must not send anyone to a host that only the client has named.
    let Some(origin) = sign_in.known_origin() else {
        tracing::warn!("console sign-in refused: the host of the request is not one of `hosts`");
        return page.show(StatusCode::FORBIDDEN, Message::UnknownHost);
    };
    match oidc.begin(&origin, next.clone()).await {
        Ok((cookie, url)) => {
            let cookie = sign_in.cookie(COOKIE, &cookie, LASTS);
            ([(header::SET_COOKIE, cookie)], see_other(&url)).into_response()
        }
        Err(error) => {
            tracing::warn!(%error, "console sign-in failed");
            page.show(StatusCode::BAD_GATEWAY, Message::Failed)
        }
    }
}

/// Starts the session of a person whom the provider has signed in.
pub(crate) async fn complete(
    State(console): State<Console>,
    Extension(sign_in): Extension<SignIn>,
    csrf: Option<Extension<CsrfToken>>,
    Query(answer): Query<Answer>,
    headers: HeaderMap,
) -> Response {
    let Some(oidc) = &console.oidc else { return StatusCode::NOT_FOUND.into_response() };
    let flow = sign_in.read_cookie(&headers, COOKIE).and_then(|cookie| oidc.flows.open(cookie));
    let next = flow.as_ref().map_or_else(|| Next::of(None), |flow| flow.next.clone());
    let person = match flow {
        Some(flow) => oidc.complete(flow, &answer).await,
        None => Err(Refused::NoFlow),
    };
    let page = SignInPage::new(&console, csrf, &next);
    let over = [(header::SET_COOKIE, sign_in.cookie(COOKIE, "", Duration::ZERO))];
    let (status, message) = match person.map(|person| sign_in.as_person(person)) {
        Ok(Ok(cookie)) => {
            let mut response = (over, see_other(next.as_str())).into_response();
            response.headers_mut().append(header::SET_COOKIE, cookie);
            return response;
        }
        Ok(Err(error)) => {
            tracing::warn!(%error, "console sign-in failed");
            (StatusCode::INTERNAL_SERVER_ERROR, Message::Failed)
        }
        Err(error) => {
            tracing::warn!(%error, "console sign-in refused");
            match error {
                Refused::Role { person, error: RoleError::NoRole } => {
                    sign_in.without_role(&person);
                    (StatusCode::FORBIDDEN, Message::NoRole)
                }
                Refused::Provider(_) => (StatusCode::BAD_GATEWAY, Message::Failed),
                _ => (StatusCode::UNAUTHORIZED, Message::ProviderRefused),
            }
        }
    };
    (over, page.show(status, message)).into_response()
}
