//! The entries of the audit that a caller sees: those about its consumers.

use std::collections::HashMap;

use lazaret_core::store::{AuditEntry, OperationId};
use lazaret_core::{LetterId, QueueName};

use super::plan_contents::may_see_plan;
use crate::api_error::Result;
use crate::app::App;
use crate::auth::Caller;

/// Decides which entries a caller sees. Letters and operations are looked up once for each view.
pub(super) struct AuditView<'a> {
    app: &'a App,
    caller: &'a Caller,
    known: HashMap<String, bool>,
}

impl<'a> AuditView<'a> {
    pub(super) fn new(app: &'a App, caller: &'a Caller) -> Self {
        Self { app, caller, known: HashMap::new() }
    }

    /// Returns `true` if the caller sees some entries only.
    pub(super) fn is_limited(&self) -> bool {
        !self.caller.identity.consumers.is_empty()
    }

    /// Returns `true` if the caller sees this entry. An entry that cannot be told to be about one of the caller's consumers is hidden: so
    /// are those about letters that were purged.
    pub(super) async fn shows(&mut self, entry: &AuditEntry) -> Result<bool> {
        if !self.is_limited() {
            return Ok(true);
        }
        let subject = entry.subject.as_str();
        if let Some(known) = self.known.get(subject) {
            return Ok(*known);
        }
        let shown = if let Ok(letter) = subject.parse::<LetterId>() {
            self.app.find_letter(self.caller, letter).await?.is_some()
        } else if let Ok(operation) = subject.parse::<OperationId>() {
            self.shows_operation(operation).await?
        } else {
            return Ok(self.names_consumer(&entry.action, subject));
        };
        self.known.insert(subject.to_owned(), shown);
        Ok(shown)
    }

    async fn shows_operation(&self, id: OperationId) -> Result<bool> {
        let Some(operation) = self.app.store.operation(id).await? else { return Ok(false) };
        may_see_plan(self.app, self.caller, operation.plan, operation.letters, &operation.by.who).await
    }

    /// Returns `true` if the subject of this action names one of the caller's consumers, or a queue of one.
    fn names_consumer(&self, action: &str, subject: &str) -> bool {
        match action {
            "pause" | "resume" => {
                let is_of = |consumer: &String| {
                    subject.strip_prefix(consumer.as_str()).is_some_and(|rest| rest.starts_with(": "))
                };
                self.caller.identity.consumers.iter().any(is_of)
            }
            "clear" | "import" | "purge" => self.caller.may_use(QueueName::from(subject).consumer()),
            // Such as the query of an export, which may match letters of any consumer.
            _ => false,
        }
    }
}
