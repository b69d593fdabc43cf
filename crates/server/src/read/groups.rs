//! Groups of letters with the same cause.

use axum::extract::State;
use jiff::Timestamp;
use lazaret_api::{Code, Group, GroupPage, Problem};
use lazaret_core::query::{Query, Term, TextField, TimeField};
use lazaret_core::redaction::TextRules;
use lazaret_core::store::{self, GROUP_MESSAGE_BYTES, GroupId, GroupsRequest};
use lazaret_core::{Failure, Fingerprint, Letter, LetterState, Message, Position};
use lazaret_engine::Handle;
use serde::Deserialize;

use super::query::parse_query;
use crate::api_error::{ApiError, Result};
use crate::app::App;
use crate::auth::Caller;
use crate::cursor;
use crate::extract::{Name, Params};

const LIST: &str = "groups";
/// The maximum number of groups scanned per page.
const SCAN_LIMIT: usize = 5000;

/// The groups to return.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct GroupParams {
    q: Option<String>,
    #[serde(default)]
    closed: bool,
    after: Option<String>,
    limit: Option<usize>,
}

pub(crate) async fn list(
    State(app): State<App>,
    caller: Caller,
    Params(params): Params<GroupParams>,
) -> Result<axum::Json<GroupPage>> {
    let search = parse_query(&app, &caller, params.q.as_deref())?;
    let (query, hidden) = (search.query(), search.hidden_texts(&app));
    check(query)?;
    let _turn = match query.is_everything() {
        // A store may examine all groups for a page. Pages of the console ask for it again and again: they wait, and are never refused.
        true => app.scans.take_later(&caller).await,
        // All groups are examined, up to a limit.
        false => Some(app.scans.take(&caller).await?),
    };
    let closed = params.closed || query.names_state();
    let limit = app.page(params.limit);
    let mut after = cursor::read(LIST, params.after.as_deref())?;
    let mut groups = Vec::new();
    let mut scanned = 0;
    loop {
        // Never more than fit: the cursor must point behind the last group returned.
        let request =
            GroupsRequest { queue: None, closed, after: after.clone(), limit: limit - groups.len() };
        let page = app.store.groups(&request).await?;
        scanned += page.groups.len();
        let now = app.clock.now();
        let matching = page.groups.iter().filter(|group| matches(query, group, hidden, now));
        groups.extend(matching.map(|group| with_owner(&app, group)));
        after = page.next;
        if after.is_none() || groups.len() >= limit || scanned >= SCAN_LIMIT {
            break;
        }
    }
    Ok(axum::Json(GroupPage { groups, next: after.map(|next| cursor::write(LIST, &next)) }))
}

/// Rejects terms that groups do not support.
fn check(query: &Query) -> Result<()> {
    let unsupported = |term: &Term| match term {
        Term::Text(field, _) => !matches!(field, TextField::Queue | TextField::Consumer | TextField::Reason),
        Term::Time(field, _) => *field == TimeField::Due,
        Term::State(_) | Term::Error(_) | Term::Group(_) | Term::Free(_) => false,
        Term::Count(..) | Term::Poison(_) | Term::Payload { .. } | Term::Header { .. } => true,
    };
    if !query.expr().any_term(&unsupported) {
        return Ok(());
    }
    let problem = Problem::new(Code::InvalidQuery).at("q").with_detail(
        "groups support queue, consumer, reason, error, group, state, age, enqueued, failed and free text",
    );
    Err(problem.with_hint("search for letters instead").into())
}

/// Matches a group by its latest failure: its age is that of its oldest open letter, and it is in every state that one of
/// its letters is in.
///
/// Texts that are hidden from the caller are compared as they are shown.
fn matches(query: &Query, group: &store::Group, hidden: Option<&TextRules>, now: Timestamp) -> bool {
    let (mut error_type, mut message) = (group.error_type.clone(), group.message.clone());
    if let Some(rules) = hidden {
        redact(rules, &mut error_type, &mut message);
    }
    let mut failure = Failure::new(group.reason.clone(), error_type, message);
    failure.fingerprint = group.id.fingerprint;
    let message = Message::new("", "", Position::new(0, 0));
    let mut letter = Letter::new(group.id.queue.clone(), "".into(), message.into(), now);
    letter.enqueued_at = group.oldest.unwrap_or(group.first_seen);
    letter.last_failed_at = Some(group.last_seen);
    letter.cause = Some(failure);
    query.expr().evaluate(&|term| match term {
        Term::State(states) => {
            LetterState::ALL.iter().any(|state| states.contains(state) && group.counts.of(*state) > 0)
        }
        term => term.matches(&letter, now),
    })
}

pub(crate) async fn show(
    State(app): State<App>,
    caller: Caller,
    Name(id): Name,
) -> Result<axum::Json<Group>> {
    Ok(axum::Json(with_owner(&app, &find_group(&app, &caller, &id).await?)))
}

/// A group, with the owner of its consumer.
fn with_owner(app: &App, group: &store::Group) -> Group {
    let handle = app.registry.handle(group.id.queue.consumer());
    let owner = handle.as_ref().and_then(Handle::owner).map(str::to_owned);
    let mut shown = Group { owner, ..Group::from(group) };
    redact(app.options.redaction.texts(), &mut shown.error.error_type, &mut shown.error.message);
    shown
}

/// Redacts the texts of a group.
fn redact(rules: &TextRules, error_type: &mut String, message: &mut String) {
    rules.apply(error_type);
    rules.apply_to_cut(message, GROUP_MESSAGE_BYTES);
}

/// The group of this id. A fingerprint alone suffices if it is unique.
pub(crate) async fn find_group(app: &App, caller: &Caller, id: &str) -> Result<store::Group> {
    let missing = || ApiError::not_found("group", id);
    if id.contains('@') {
        let named: GroupId = id.parse().map_err(|_| missing())?;
        caller.require_consumer(named.queue.consumer())?;
        return app.store.group(&named).await?.ok_or_else(missing);
    }
    let fingerprint: Fingerprint = id.parse().map_err(|_| missing())?;
    let mut found = Vec::new();
    let queues = app.store.queues().await?.into_iter();
    for summary in queues.filter(|summary| caller.may_use(summary.queue.consumer())) {
        let named = GroupId { queue: summary.queue, fingerprint };
        found.extend(app.store.group(&named).await?);
    }
    match (found.pop(), found.as_slice()) {
        (None, _) => Err(missing()),
        (Some(group), []) => Ok(group),
        (Some(last), others) => {
            let names: Vec<String> = others.iter().chain([&last]).map(|group| group.id.to_string()).collect();
            let detail = format!("several queues have this fingerprint: {}", names.join(", "));
            Err(ApiError::new(Code::Conflict, detail))
        }
    }
}

#[cfg(test)]
mod tests {
    use lazaret_core::store::Counts;
    use lazaret_core::{QueueName, Reason};

    use super::*;

    fn group() -> store::Group {
        let failure = Failure::new(Reason::TIMEOUT, "DbError", "connection reset");
        let mut counts = Counts::default();
        counts.by_state[LetterState::Dead as usize] = 3;
        let at = Timestamp::from_second(1000).unwrap();
        store::Group {
            id: GroupId { queue: QueueName::of("shop", "mail"), fingerprint: failure.fingerprint },
            reason: failure.reason,
            error_type: failure.error_type,
            message: failure.message,
            counts,
            blocked_behind: 0,
            oldest: Some(at),
            next_expiry: None,
            first_seen: at,
            last_seen: Timestamp::from_second(4000).unwrap(),
            trend: [0; 24],
        }
    }

    #[test]
    fn groups_match_supported_terms_only() {
        let now = Timestamp::from_second(4600).unwrap();
        let finds = |text: &str| {
            let query = Query::parse(text).unwrap();
            check(&query).unwrap();
            matches(&query, &group(), None, now)
        };
        for text in [
            "",
            "queue:shop",
            "reason:timeout",
            "error:reset",
            "state:dead",
            "age:>30m",
            "failed:>15m",
            "reset or x",
        ] {
            assert!(finds(text), "{text}");
        }
        // A redacted text is found only as it is shown.
        let rules = TextRules::new([], ["reset".parse().unwrap()]);
        let finds_hidden = |text: &str| matches(&Query::parse(text).unwrap(), &group(), Some(&rules), now);
        assert!(!finds_hidden("error:reset") && finds_hidden("-error:reset") && finds_hidden("connection"));
        for text in ["queue:other", "reason:CONFLICT", "-error:reset", "state:parked", "age:<30m", "x"] {
            assert!(!finds(text), "{text}");
        }
        for text in ["seq:a", "payload./a:1", "attempts:>1", "due:<+1m", "owner:x"] {
            assert!(check(&Query::parse(text).unwrap()).is_err(), "{text}");
        }
    }
}
