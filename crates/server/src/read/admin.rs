//! The effective configuration, and the tokens.

use std::sync::PoisonError;

use axum::extract::State;
use lazaret_api::{EffectiveConfig, TokenInfo, TokenList};

use crate::app::App;
use crate::auth::Token;

pub(crate) async fn config(State(app): State<App>) -> axum::Json<EffectiveConfig> {
    axum::Json(app.config.read().unwrap_or_else(PoisonError::into_inner).clone())
}

/// The tokens, without what could be used or guessed from: neither secrets nor hashes.
pub(crate) async fn tokens(State(app): State<App>) -> axum::Json<TokenList> {
    let now = app.clock.now();
    let info = |token: &Token| TokenInfo {
        name: token.name.clone(),
        person: token.person().to_owned(),
        scopes: token.scopes.clone(),
        consumers: token.consumers.clone(),
        expires_at: token.expires_at,
        expired: token.is_expired(now),
    };
    axum::Json(TokenList { tokens: app.tokens().tokens.iter().map(info).collect() })
}
