//! A small OpenID Connect provider: discovery, keys, authorization and tokens, signed with Ed25519.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use axum::extract::{Form, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

pub(crate) const CLIENT_ID: &str = "lazaret";
pub(crate) const CLIENT_SECRET: &str = "client-secret";

/// A function that changes the header and the claims of an ID token before it is signed.
type Tamper = Box<dyn Fn(&mut Value, &mut Value) + Send>;

/// A running provider.
#[derive(Clone)]
pub(crate) struct Provider {
    pub(crate) issuer: String,
    state: Arc<Mutex<Inner>>,
}

struct Inner {
    issuer: String,
    key: Ed25519KeyPair,
    key_id: u32,
    /// The public key that is published to clients.
    published: Vec<u8>,
    codes: HashMap<String, HashMap<String, String>>,
    /// The claims of the next person who signs in.
    claims: Value,
    tamper: Option<Tamper>,
    /// Whether tokens are signed at all.
    sign: bool,
}

impl Provider {
    pub(crate) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let issuer = format!("http://{}", listener.local_addr().unwrap());
        let key = key();
        let state = Arc::new(Mutex::new(Inner {
            issuer: issuer.clone(),
            published: key.public_key().as_ref().to_vec(),
            key,
            key_id: 1,
            codes: HashMap::new(),
            claims: json!({"sub": "1", "email": "ada@example.com", "email_verified": true, "groups": ["oncall"]}),
            tamper: None,
            sign: true,
        }));
        let router = Router::new()
            .route("/.well-known/openid-configuration", get(discovery))
            .route("/jwks", get(keys))
            .route("/authorize", get(authorize))
            .route("/token", post(tokens))
            .with_state(state.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { issuer, state }
    }

    /// Sets the claims of the next person who signs in.
    pub(crate) fn set_claims(&self, claims: Value) {
        self.state.lock().unwrap().claims = claims;
    }

    /// Changes the header and the claims of ID tokens before they are signed.
    pub(crate) fn tamper(&self, change: impl Fn(&mut Value, &mut Value) + Send + 'static) {
        self.state.lock().unwrap().tamper = Some(Box::new(change));
    }

    /// Signs with a new key from now on. `publish` says whether clients can fetch it.
    pub(crate) fn replace_key(&self, publish: bool) {
        let mut state = self.state.lock().unwrap();
        state.key = key();
        if publish {
            state.key_id += 1;
            state.published = state.key.public_key().as_ref().to_vec();
        }
    }

    /// Omits the signature from now on.
    pub(crate) fn stop_signing(&self) {
        self.state.lock().unwrap().sign = false;
    }
}

fn key() -> Ed25519KeyPair {
    let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
    Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap()
}

type Shared = State<Arc<Mutex<Inner>>>;

async fn discovery(State(state): Shared) -> Json<Value> {
    let issuer = state.lock().unwrap().issuer.clone();
    Json(json!({
        "issuer": issuer,
        "authorization_endpoint": format!("{issuer}/authorize"),
        "token_endpoint": format!("{issuer}/token"),
        "jwks_uri": format!("{issuer}/jwks"),
        "response_types_supported": ["code"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["EdDSA"],
    }))
}

async fn keys(State(state): Shared) -> Json<Value> {
    let state = state.lock().unwrap();
    let x = URL_SAFE_NO_PAD.encode(&state.published);
    let kid = state.key_id.to_string();
    Json(
        json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig", "kid": kid, "x": x}]}),
    )
}

/// Signs the person in without asking, and sends the browser back with a code.
async fn authorize(State(state): Shared, Query(query): Query<HashMap<String, String>>) -> Response {
    let asked = |name: &str| query.get(name).map(String::as_str).unwrap_or_default();
    let is_good = asked("client_id") == CLIENT_ID
        && asked("response_type") == "code"
        && asked("code_challenge_method") == "S256"
        && asked("scope").split(' ').any(|scope| scope == "openid");
    if !is_good {
        return (StatusCode::BAD_REQUEST, format!("{query:?}")).into_response();
    }
    let code = URL_SAFE_NO_PAD.encode(Sha256::digest(asked("state")));
    let (back, state_given) = (asked("redirect_uri").to_owned(), asked("state").to_owned());
    state.lock().unwrap().codes.insert(code.clone(), query);
    (StatusCode::FOUND, [(header::LOCATION, format!("{back}?code={code}&state={state_given}"))])
        .into_response()
}

/// Exchanges a code for an ID token, for the client that requested it and has the verifier of the challenge.
async fn tokens(
    State(state): Shared,
    headers: HeaderMap,
    Form(form): Form<HashMap<String, String>>,
) -> Response {
    let mut state = state.lock().unwrap();
    let given = |name: &str| form.get(name).map(String::as_str).unwrap_or_default();
    let basic = format!("Basic {}", STANDARD.encode(format!("{CLIENT_ID}:{CLIENT_SECRET}")));
    let is_client =
        headers.get(header::AUTHORIZATION).is_some_and(|value| value.as_bytes() == basic.as_bytes());
    let asked = state.codes.remove(given("code")).filter(|asked| {
        let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(given("code_verifier")));
        asked["code_challenge"] == challenge && asked["redirect_uri"] == given("redirect_uri")
    });
    let (Some(asked), true) = (asked, is_client) else {
        return (StatusCode::BAD_REQUEST, Json(json!({"error": "invalid_grant"}))).into_response();
    };
    let id_token = state.id_token(&asked["nonce"]);
    Json(json!({"access_token": "unused", "token_type": "Bearer", "expires_in": 60, "id_token": id_token}))
        .into_response()
}

impl Inner {
    fn id_token(&self, nonce: &str) -> String {
        let now = jiff::Timestamp::now().as_second();
        let mut claims = self.claims.clone();
        for (name, value) in [
            ("iss", json!(self.issuer)),
            ("aud", json!(CLIENT_ID)),
            ("iat", json!(now)),
            ("exp", json!(now + 60)),
            ("nonce", json!(nonce)),
        ] {
            claims[name] = value;
        }
        let mut head = json!({"alg": "EdDSA", "typ": "JWT", "kid": self.key_id.to_string()});
        if let Some(tamper) = &self.tamper {
            tamper(&mut head, &mut claims);
        }
        let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", encode(&head), encode(&claims));
        let signature = match self.sign {
            true => URL_SAFE_NO_PAD.encode(self.key.sign(signed.as_bytes())),
            false => String::new(),
        };
        format!("{signed}.{signature}")
    }
}
