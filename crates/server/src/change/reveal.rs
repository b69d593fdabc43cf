//! Reveals redacted values: with the scope `reveal`, a reason, and an entry in the audit.

use axum::extract::State;
use lazaret_api::{ActRequest, LetterDetail, Scope};
use lazaret_core::store::AuditNote;

use crate::api_error::Result;
use crate::app::App;
use crate::auth::Caller;
use crate::extract::{Json, Name, Params};
use crate::read::letters::ShowParams;

/// Shows one letter as it is.
pub(crate) async fn reveal(
    State(app): State<App>,
    caller: Caller,
    Name(id): Name,
    Params(params): Params<ShowParams>,
    Json(request): Json<ActRequest>,
) -> Result<axum::Json<LetterDetail>> {
    caller.require(Scope::Payload)?;
    let letter = app.letter(&caller, &id).await?;
    let detail = LetterDetail::cut(&letter, true, params.payload_bytes.unwrap_or(usize::MAX));
    note_reveal(&app, &caller, &letter.id.to_string(), request.reason.as_deref()).await?;
    Ok(axum::Json(detail))
}

/// Records who sees what is redacted, and why. It comes before the response: what is not recorded is not shown (I11).
pub(crate) async fn note_reveal(
    app: &App,
    caller: &Caller,
    subject: &str,
    reason: Option<&str>,
) -> Result<()> {
    caller.require(Scope::Reveal)?;
    let by = caller.actor(reason)?;
    let note = AuditNote { action: "reveal".to_owned(), subject: subject.to_owned(), after: None };
    Ok(app.store.note(&note, &by).await?)
}
