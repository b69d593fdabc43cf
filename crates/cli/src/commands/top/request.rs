//! What a key asks of the daemon, and what comes back.

use lazaret_api::{
    Action, BeginRequest, Command, Group, Letter, LetterDetail, Operation, Pause, PauseRequest, Plan,
    Selection, Sequence,
};

use crate::blockers::{Blocker, blockers};
use crate::client::{Client, LetterQuery};
use crate::commands::plan::freeze;
use crate::error::Result;
use crate::hints::query_value;
use crate::holders::holders;

/// The most letters of a lane or a group to choose from.
const MAX_LETTERS: usize = 100;

/// Something on the screen that can be selected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Item {
    Consumer(String),
    Key { queue: String, sequence: String },
    Group(String),
    Operation(String),
}

/// Something to replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Item(Item),
    /// One letter, by id.
    Letter(String),
}

impl Target {
    /// Returns the selection; `None` for what cannot be replayed.
    pub(super) fn selection(&self) -> Option<Selection> {
        let query = match self {
            Self::Letter(id) => {
                return Some(Selection { ids: Some(vec![id.clone()]), ..Selection::default() });
            }
            // Of a whole consumer only what no retry takes anyway.
            Self::Item(Item::Consumer(name)) => format!("consumer:{} state:dead", query_value(name)),
            Self::Item(Item::Key { queue, sequence }) => {
                format!("queue:{} seq:{}", query_value(queue), query_value(sequence))
            }
            Self::Item(Item::Group(id)) => format!("group:{}", query_value(id)),
            Self::Item(Item::Operation(_)) => return None,
        };
        Some(Selection { query: Some(query), ..Selection::default() })
    }
}

/// A change that was confirmed, with its reason.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Change {
    /// Begins the operation of a plan.
    Begin { plan: String },
    /// Pauses a consumer, or one of its sequences.
    Pause { consumer: String, sequence: Option<String> },
    /// Resumes a consumer, or one of its sequences.
    Resume { consumer: String, sequence: Option<String> },
    /// Sends a command to an operation.
    Command { id: String, command: Command },
}

/// What a key asks for.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Request {
    /// End.
    Quit,
    /// Read a snapshot now.
    Refresh,
    /// Read a lane.
    Lane { queue: String, sequence: String },
    /// Read a group and its letters.
    Group(String),
    /// Read a letter.
    Letter(String),
    /// Read an operation.
    Operation(String),
    /// Freeze a plan to retry.
    Plan(Target),
    /// Make a change.
    Change { change: Change, reason: String },
}

/// What the daemon responded.
#[derive(Clone, Debug)]
pub(super) enum Response {
    Lane(Sequence),
    Group { group: Box<Group>, letters: Vec<Letter> },
    Letter(Box<LetterDetail>),
    Operation { operation: Box<Operation>, blockers: Vec<Blocker> },
    Plan { plan: Box<Plan>, holders: Vec<String> },
    Begun { operation: Box<Operation>, blockers: Vec<Blocker> },
    Paused { consumer: String, pause: Pause },
    Resumed { consumer: String, sequence: Option<String>, was_paused: bool },
    Nothing,
}

impl Request {
    /// Sends the request.
    pub(super) async fn send(self, client: &Client) -> Result<Response> {
        match self {
            Self::Quit | Self::Refresh => Ok(Response::Nothing),
            Self::Lane { queue, sequence } => {
                Ok(Response::Lane(client.sequence(&queue, &sequence, None, Some(MAX_LETTERS)).await?))
            }
            Self::Group(id) => {
                let query = format!("group:{}", query_value(&id));
                let group = Box::new(client.group(&id).await?);
                let page = LetterQuery { query, after: None, limit: Some(MAX_LETTERS) };
                Ok(Response::Group { group, letters: client.letters(&page).await?.letters })
            }
            Self::Letter(id) => Ok(Response::Letter(Box::new(client.letter(&id).await?))),
            Self::Operation(id) => {
                let operation = Box::new(client.operation(&id).await?);
                let blockers = blockers(client, &operation).await;
                Ok(Response::Operation { operation, blockers })
            }
            Self::Plan(target) => {
                let Some(selection) = target.selection() else { return Ok(Response::Nothing) };
                let ids = selection.ids.clone();
                let plan = Box::new(freeze(client, Action::Retry, selection, None).await?);
                let holders = holders(client, &plan, ids.as_deref()).await;
                Ok(Response::Plan { plan, holders })
            }
            Self::Change { change, reason } => change.send(client, reason).await,
        }
    }
}

impl Change {
    async fn send(self, client: &Client, reason: String) -> Result<Response> {
        let part =
            |sequence| PauseRequest { sequence, reason: Some(reason.clone()), ..PauseRequest::default() };
        match self {
            Self::Begin { plan } => {
                let request =
                    BeginRequest { plan: Some(plan), reason: Some(reason), ..BeginRequest::default() };
                begun(client, client.begin(&request).await?).await
            }
            Self::Pause { consumer, sequence } => {
                let pause = client.pause(&consumer, &part(sequence)).await?;
                Ok(Response::Paused { consumer, pause })
            }
            Self::Resume { consumer, sequence } => {
                let was_paused = client.resume(&consumer, &part(sequence.clone())).await?.resumed;
                Ok(Response::Resumed { consumer, sequence, was_paused })
            }
            Self::Command { id, command } => {
                begun(client, client.command(&id, command, &reason).await?).await
            }
        }
    }
}

async fn begun(client: &Client, operation: Operation) -> Result<Response> {
    let blockers = blockers(client, &operation).await;
    Ok(Response::Begun { operation: Box::new(operation), blockers })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_replayed_is_selected_by_a_query_that_any_name_fits_in() {
        let query = |target: Target| target.selection().unwrap().query.unwrap();
        assert_eq!(query(Target::Item(Item::Consumer("shop".into()))), "consumer:shop state:dead");
        let key = Item::Key { queue: "shop/mail".into(), sequence: "a \"b\"".into() };
        assert_eq!(query(Target::Item(key)), r#"queue:shop/mail seq:"a \"b\"""#);
        assert_eq!(query(Target::Item(Item::Group("g1_4f@shop/mail".into()))), "group:g1_4f@shop/mail");
        let letter = Target::Letter("0a1b".into()).selection().unwrap();
        assert_eq!((letter.ids, letter.query), (Some(vec!["0a1b".to_owned()]), None));
        assert_eq!(Target::Item(Item::Operation("op_1".into())).selection(), None);
    }
}
