//! Holds scheduled operations of people who may not start them any more.
//!
//! An operation that starts later starts without its requester. A token that is revoked, expires or loses its scope until then would
//! still act. So the tokens are checked again, at each change of them and from time to time, and such an operation is paused: it asks a
//! second person for approval before it runs. People whom an identity provider or a proxy has signed in have no token; what they may do is
//! known when they are [seen again](LatestRights) only.

use std::time::Duration;

use jiff::Timestamp;
use lazaret_api::Via;
use lazaret_core::person::is_same_person;
use lazaret_core::store::{Command, ErrorKind, Operation, OperationState, Result};

use crate::app::App;
use crate::auth::{LatestRights, Token, Tokens};
use crate::change::operations::scope_of;
use crate::operation_watch;

/// The interval of checks: tokens expire.
const INTERVAL: Duration = Duration::from_secs(5);
/// The number of operations per check.
const LIMIT: usize = 10_000;

/// Checks until the server stops.
pub(crate) async fn watch(app: App) {
    loop {
        let replaced = app.tokens().replaced.clone();
        if let Err(error) = hold(&app).await {
            tracing::debug!(%error, "scheduled operations not checked");
        }
        tokio::select! {
            () = app.stopping.cancelled() => return,
            () = replaced.cancelled() => {}
            () = tokio::time::sleep(INTERVAL) => {}
        }
    }
}

/// Holds the operations whose requesters have lost their rights.
pub(crate) async fn hold(app: &App) -> Result<()> {
    if app.tokens().tokens.is_empty() {
        return Ok(());
    }
    for operation in app.store.under_way(LIMIT).await? {
        let why = objection(&app.tokens().tokens, &app.latest_rights, &operation, app.clock.now());
        let Some(why) = why else { continue };
        match app.store.command(operation.id, Command::Pause, &Operation::holder(&why)).await {
            Ok(held) => {
                tracing::warn!(operation = %held.id, "scheduled operation held: {why}");
                operation_watch::publish(app, (&held).into());
            }
            // It was cancelled, or another instance holds it.
            Err(error) if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::NotFound) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Why an operation must not start in the name of its requester; `None` if it may.
fn objection(
    tokens: &Tokens,
    rights: &LatestRights,
    operation: &Operation,
    now: Timestamp,
) -> Option<String> {
    if operation.state != OperationState::Scheduled || operation.is_approved_again() {
        return None;
    }
    let (who, scope) = (&operation.by.who, scope_of(operation.action));
    if !names_token(&operation.by.via) {
        let is_signed_in = operation.by.via == Via::Console.as_str();
        let has_lost = is_signed_in && rights.lack(who, scope, operation.created_at);
        return has_lost.then(|| format!("{who} has lost the scope {scope}"));
    }
    let own: Vec<&Token> = tokens.iter().filter(|token| is_same_person(token.person(), who)).collect();
    if own.is_empty() {
        return Some(format!("the token of {who} was revoked"));
    }
    let valid: Vec<&Token> = own.into_iter().filter(|token| !token.is_expired(now)).collect();
    if valid.is_empty() {
        return Some(format!("the token of {who} has expired"));
    }
    match valid.iter().any(|token| token.may(scope)) {
        true => None,
        false => Some(format!("{who} has lost the scope {scope}")),
    }
}

/// Returns `true` if a channel names the token of its request, as in `cli:ada-2027 from ada@laptop`.
fn names_token(via: &str) -> bool {
    via.split_once(" from ").map_or(via, |(channel, _)| channel).contains(':')
}

#[cfg(test)]
mod tests {
    use lazaret_api::Scope;
    use lazaret_core::store::{
        Action, Actor, OperationId, OperationMachine, Plan, PlanId, RolloutPolicy, plan_hash,
    };

    use super::*;
    use crate::auth::TokenHash;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn scheduled(via: &str) -> Operation {
        let by = Actor::new("ada", via, "tonight");
        let plan = Plan {
            id: PlanId(1),
            action: Action::Evict,
            query: None,
            letters: 1,
            sequences: 1,
            followers: 0,
            excluded: Vec::new(),
            hash: plan_hash(Action::Evict, []),
            by: by.clone(),
            frozen_at: NOW,
            expires_at: Timestamp::MAX,
        };
        let start_at = Some(NOW + Duration::from_secs(3600));
        let rollout = RolloutPolicy { start_at, ..RolloutPolicy::default() };
        OperationMachine::begin(OperationId(1), &plan, &rollout, &by, NOW).unwrap().operation
    }

    fn token(name: &str, scopes: &[Scope]) -> Token {
        Token::new(name, TokenHash::of(name), scopes)
    }

    fn found(tokens: Vec<Token>) -> Option<String> {
        let (tokens, rights) = (Tokens::new(tokens).unwrap(), LatestRights::default());
        objection(&tokens, &rights, &scheduled("cli:ada-2026 from ada@laptop"), NOW)
    }

    #[test]
    fn a_requester_needs_a_token_with_the_scope_when_it_starts() {
        assert_eq!(found(vec![token("ada", &[Scope::Evict])]), None);
        assert_eq!(found(vec![token("ada", &[Scope::Admin])]), None);
        let renewed = Token { person: Some("Ada".to_owned()), ..token("ada-2027", &[Scope::Evict]) };
        assert_eq!(found(vec![renewed.clone()]), None, "the person has rotated the token");
        let bob = token("bob", &[Scope::Evict]);
        assert_eq!(found(vec![bob]).as_deref(), Some("the token of ada was revoked"));
        let expired = Token { expires_at: Some(NOW), ..renewed };
        assert_eq!(found(vec![expired]).as_deref(), Some("the token of ada has expired"));
        let less = token("ada", &[Scope::Triage]);
        assert_eq!(found(vec![less]).as_deref(), Some("ada has lost the scope evict"));
    }

    #[test]
    fn only_scheduled_operations_of_tokens_are_checked() {
        let bob = Tokens::new(vec![token("bob", &[Scope::Evict])]).unwrap();
        let of = |operation: &Operation| objection(&bob, &LatestRights::default(), operation, NOW);
        assert!(of(&scheduled("console:ada")).is_some());
        assert_eq!(of(&scheduled("console")), None, "signed in by an identity provider, and not seen since");
        assert_eq!(of(&scheduled("cli from a:b")), None, "a claim is no token");
        for state in [OperationState::Running, OperationState::AwaitingApproval, OperationState::Paused] {
            assert_eq!(of(&Operation { state, ..scheduled("cli:ada") }), None);
        }
        let note = Some("approved again by bob: still needed".to_owned());
        assert_eq!(of(&Operation { note, ..scheduled("cli:ada") }), None);
    }

    #[test]
    fn a_person_who_is_seen_again_with_less_has_lost_the_rest() {
        let tokens = Tokens::new(vec![token("bob", &[Scope::Evict])]).unwrap();
        let rights = LatestRights::default();
        let of = |operation: &Operation| objection(&tokens, &rights, operation, NOW);
        let after = NOW + Duration::from_secs(1);
        rights.record("ada", &[Scope::Read], NOW);
        assert_eq!(of(&scheduled("console")), None, "before the operation was scheduled");
        rights.record("ada", &[Scope::Evict], after);
        assert_eq!(of(&scheduled("console")), None);
        for less in [&[Scope::Read][..], &[]] {
            rights.record("ada", less, after);
            assert_eq!(of(&scheduled("console")).as_deref(), Some("ada has lost the scope evict"));
            assert_eq!(of(&scheduled("cli")), None, "scheduled while there were no tokens");
        }
        let note = Some("approved again by bob: still needed".to_owned());
        assert_eq!(of(&Operation { note, ..scheduled("console") }), None);
    }
}
