//! What a letter holds beside its message.

use std::sync::Arc;

use lazaret_core::failure::Failure;
use lazaret_core::letter::{AttemptRecord, Diagnostics, Edit, Erasure, Letter};
use lazaret_core::store::Comment;
use serde::{Deserialize, Serialize};

/// What a letter holds beside its message.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Details {
    pub(super) cause: Option<Failure>,
    // Lists, because a name may have characters that the name of a field cannot have.
    pub(super) diagnostics: Vec<(String, String)>,
    pub(super) context: Vec<(String, String)>,
    pub(super) owner: Option<Arc<str>>,
    pub(super) assignee: Option<Arc<str>>,
    pub(super) comments: Vec<Comment>,
    pub(super) payload_left_out: bool,
    pub(super) history: Vec<AttemptRecord>,
    pub(super) edits: Vec<Edit>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) erased: Option<Box<Erasure>>,
}

impl Details {
    pub(super) fn of(letter: &Letter) -> Self {
        let pairs = |map: &Diagnostics| map.iter().map(|(name, text)| (name.clone(), text.clone())).collect();
        Self {
            cause: letter.cause.clone(),
            diagnostics: pairs(&letter.diagnostics),
            context: pairs(&letter.context),
            owner: letter.owner.clone(),
            assignee: letter.assignee.clone(),
            comments: letter.comments.clone(),
            payload_left_out: letter.payload_left_out,
            history: letter.history.clone(),
            edits: letter.edits.clone(),
            erased: letter.erased.clone(),
        }
    }
}
