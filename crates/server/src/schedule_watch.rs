//! Holds scheduled operations of people who may not start them any more.
//!
//! An operation that starts later starts without its requester. A token that is revoked, expires, or loses its scope or a consumer until
//! then would still act. So the tokens are checked again, at each change of them and from time to time, and such an operation is paused: it asks a
//! second person for approval before it runs. People whom an identity provider or a proxy has signed in have no token; what they may do is
//! known when they are [seen again](LatestRights) only.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use lazaret_api::{Scope, Via};
use lazaret_core::person::is_same_person;
use lazaret_core::store::{Command, ErrorKind, Operation, OperationState, Result};

use crate::app::App;
use crate::auth::{LatestRights, Rights, Token, Tokens};
use crate::change::operations::scope_of;
use crate::operation_watch;
use crate::read::plan_contents::contents;

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
        if !is_in_question(&operation) {
            continue;
        }
        let contents = contents(app, operation.plan).await?;
        let needs = Needs { scope: scope_of(operation.action), consumers: &contents.consumers };
        let why = objection(&app.tokens().tokens, &app.latest_rights, &operation, &needs, app.clock.now());
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

/// Returns `true` if an operation will start, and nobody but its requester answers for that.
fn is_in_question(operation: &Operation) -> bool {
    operation.state == OperationState::Scheduled && !operation.is_approved_again()
}

/// What an operation needs of whoever starts it.
struct Needs<'a> {
    scope: Scope,
    /// The consumers of its letters.
    consumers: &'a BTreeSet<String>,
}

/// Why a scheduled operation must not start in the name of its requester; `None` if it may.
fn objection(
    tokens: &Tokens,
    latest: &LatestRights,
    operation: &Operation,
    needs: &Needs<'_>,
    now: Timestamp,
) -> Option<String> {
    let who = &operation.by.who;
    if !names_token(&operation.by.via) {
        let is_signed_in = operation.by.via == Via::Console.as_str();
        let seen = is_signed_in.then(|| latest.after(operation.created_at, who)).flatten()?;
        return lost(who, needs, &[seen]);
    }
    let own: Vec<&Token> = tokens.iter().filter(|token| is_same_person(token.person(), who)).collect();
    if own.is_empty() {
        return Some(format!("the token of {who} was revoked"));
    }
    let valid = own.into_iter().filter(|token| !token.is_expired(now));
    let valid: Vec<Rights> = valid.map(Token::rights).collect();
    if valid.is_empty() {
        return Some(format!("the token of {who} has expired"));
    }
    lost(who, needs, &valid)
}

/// What somebody with these rights lacks for an operation; `None` if one of them suffices. They are not added up.
fn lost(who: &str, needs: &Needs<'_>, rights: &[Rights]) -> Option<String> {
    let mut with_scope = rights.iter().filter(|rights| rights.may(needs.scope)).peekable();
    if with_scope.peek().is_none() {
        return Some(format!("{who} has lost the scope {}", needs.scope));
    }
    let is_enough = |rights: &Rights| needs.consumers.iter().all(|consumer| rights.may_use(consumer));
    (!with_scope.any(is_enough)).then(|| format!("{who} may no longer use all consumers of its letters"))
}

/// Returns `true` if a channel names the token of its request, as in `cli:ada-2027 from ada@laptop`.
fn names_token(via: &str) -> bool {
    via.split_once(" from ").map_or(via, |(channel, _)| channel).contains(':')
}

#[cfg(test)]
mod tests {
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

    /// Why an operation that evicts letters of two consumers must not start.
    fn why_not(tokens: &Tokens, latest: &LatestRights, via: &str) -> Option<String> {
        let consumers = BTreeSet::from(["billing", "shop"].map(str::to_owned));
        let needs = Needs { scope: Scope::Evict, consumers: &consumers };
        objection(tokens, latest, &scheduled(via), &needs, NOW)
    }

    fn found(tokens: Vec<Token>) -> Option<String> {
        let tokens = Tokens::new(tokens).unwrap();
        why_not(&tokens, &LatestRights::default(), "cli:ada-2026 from ada@laptop")
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
    fn a_requester_needs_all_consumers_of_the_letters_in_one_token() {
        let limited = |name: &str, consumers: &[&str]| Token {
            person: Some("ada".to_owned()),
            consumers: consumers.iter().map(|&name| name.to_owned()).collect(),
            ..token(name, &[Scope::Evict])
        };
        assert_eq!(found(vec![limited("ada-1", &["shop", "orders", "billing"])]), None);
        let lost = Some("ada may no longer use all consumers of its letters".to_owned());
        assert_eq!(found(vec![limited("ada-1", &["shop", "orders"])]), lost);
        // Of neither can it be said that it may evict these letters.
        let reads = Token { scopes: vec![Scope::Read], ..limited("ada-2", &[]) };
        assert_eq!(found(vec![limited("ada-1", &["shop"]), limited("ada-3", &["billing"]), reads]), lost);
        assert_eq!(found(vec![limited("ada-1", &["shop"]), limited("ada-2", &[])]), None);
    }

    #[test]
    fn only_scheduled_operations_that_were_not_approved_again_are_checked() {
        assert!(is_in_question(&scheduled("cli:ada")));
        for state in [OperationState::Running, OperationState::AwaitingApproval, OperationState::Paused] {
            assert!(!is_in_question(&Operation { state, ..scheduled("cli:ada") }));
        }
        let note = Some("approved again by bob: still needed".to_owned());
        assert!(!is_in_question(&Operation { note, ..scheduled("cli:ada") }));
    }

    #[test]
    fn only_operations_of_tokens_are_compared_with_tokens() {
        let bob = Tokens::new(vec![token("bob", &[Scope::Evict])]).unwrap();
        let of = |via: &str| why_not(&bob, &LatestRights::default(), via);
        assert!(of("console:ada").is_some());
        assert_eq!(of("console"), None, "signed in by an identity provider, and not seen since");
        assert_eq!(of("cli from a:b"), None, "a claim is no token");
    }

    #[test]
    fn a_person_who_is_seen_again_with_less_has_lost_the_rest() {
        let tokens = Tokens::new(vec![token("bob", &[Scope::Evict])]).unwrap();
        let latest = LatestRights::default();
        let of = |via: &str| why_not(&tokens, &latest, via);
        let after = NOW + Duration::from_secs(1);
        latest.record("ada", Rights::new(&[Scope::Read], &[]), NOW);
        assert_eq!(of("console"), None, "before the operation was scheduled");
        latest.record("ada", Rights::new(&[Scope::Evict], &[]), after);
        assert_eq!(of("console"), None);
        let (scope, consumer) =
            ("ada has lost the scope evict", "ada may no longer use all consumers of its letters");
        for (less, why) in [
            (Rights::new(&[Scope::Read], &[]), scope),
            (Rights::NONE, scope),
            (Rights::new(&[Scope::Evict], &["shop".to_owned()]), consumer),
        ] {
            latest.record("ada", less, after);
            assert_eq!(of("console").as_deref(), Some(why));
            assert_eq!(of("cli"), None, "scheduled while there were no tokens");
        }
    }
}
