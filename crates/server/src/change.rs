//! What can be changed. Every change has a person and a reason, and the store writes both into the audit.

pub(crate) mod import;
pub(crate) mod letters;
pub(crate) mod many;
pub(crate) mod operations;
pub(crate) mod pauses;

use lazaret_api::{Code, Event, EventKind, Problem, Selection};
use lazaret_core::query::Query;
use lazaret_core::store::Actor;
use lazaret_core::{Letter, LetterId};

use crate::app::App;
use crate::auth::Caller;
use crate::fault::{Fault, Result};
use crate::read::query_of;

/// Which letters somebody means.
pub(crate) enum Meant {
    Query(Query),
    Ids(Vec<LetterId>),
}

/// Reads a selection: a query or ids, and an empty query only from who says that all are meant.
pub(crate) fn meant(app: &App, caller: &Caller, selection: &Selection) -> Result<Meant> {
    match (&selection.query, &selection.ids) {
        (Some(_), Some(_)) => Err(Fault::invalid("/ids", "give a query or ids, not both")),
        (query, None) => {
            let query = query_of(caller, query.as_deref()).map_err(|mut fault| {
                if fault.problem.code == Code::InvalidQuery {
                    fault.problem.pointer = Some("/query".to_owned());
                }
                fault
            })?;
            if query.is_everything() && !selection.all {
                let hint = "say \"all\": true if every open letter is meant";
                return Err(Problem::new(Code::Everything).at("/query").with_hint(hint).into());
            }
            Ok(Meant::Query(query))
        }
        (None, Some(ids)) => {
            let most = app.options.limits.named_letters;
            if ids.len() > most {
                let detail = format!("{} ids are more than {most}: use a query", ids.len());
                return Err(Fault::invalid("/ids", detail));
            }
            let parse = |(index, id): (usize, &String)| {
                id.parse()
                    .map_err(|_| Fault::invalid(&format!("/ids/{index}"), format!("{id:?} is no letter id")))
            };
            Ok(Meant::Ids(ids.iter().enumerate().map(parse).collect::<Result<_>>()?))
        }
    }
}

/// Tells listeners that somebody changed a letter.
pub(crate) fn told(app: &App, letter: &Letter, action: &str, by: &Actor) {
    let event = Event::new(EventKind::LetterChanged, app.clock.now());
    app.feed.publish(Event {
        consumer: Some(letter.queue.consumer().to_owned()),
        queue: Some(letter.queue.to_string()),
        letter: Some(letter.id.to_string()),
        state: Some(letter.state.into()),
        action: Some(action.to_owned()),
        who: Some(by.who.clone()),
        ..event
    });
}
