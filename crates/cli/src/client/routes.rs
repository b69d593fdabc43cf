//! The routes of the API, one function each.

use std::time::Duration;

use bytes::Bytes;
use lazaret_api::{
    ActRequest, AssignRequest, AuditCheck, AuditPage, BeginRequest, BulkAnswer, BulkRequest, Command,
    CommandRequest, CommentRequest, EditRequest, ExportRequest, Group, GroupPage, Health, ImportAnswer,
    InboxAnswer, ItemPage, Letter, LetterDetail, LetterMatches, LetterPage, Operation, OperationPage, Pause,
    PauseRequest, Plan, PlanRequest, Readiness, ResumeAnswer, Sequence, Status,
};
use reqwest::Method;
use reqwest::header::{ACCEPT, HeaderMap};

use super::lines::Lines;
use super::sse::EventStream;
use super::transport::{Client, RESPONSE_TIMEOUT, media_type, segment};
use crate::error::Result;

/// The timeout of an import. The server's own timeout is shorter.
const IMPORT_TIMEOUT: Duration = Duration::from_secs(660);

/// A query for a page of letters.
#[derive(Clone, Debug, Default)]
pub struct LetterQuery {
    /// The query.
    pub query: String,
    /// The cursor of the previous page.
    pub after: Option<String>,
    /// The page size.
    pub limit: Option<usize>,
}

/// Returns the parameters of a page.
fn page(after: Option<&str>, limit: Option<usize>) -> Vec<(&'static str, String)> {
    let mut parameters = Vec::new();
    parameters.extend(after.map(|after| ("after", after.to_owned())));
    parameters.extend(limit.map(|limit| ("limit", limit.to_string())));
    parameters
}

fn with_query(query: &str, mut parameters: Vec<(&'static str, String)>) -> Vec<(&'static str, String)> {
    if !query.trim().is_empty() {
        parameters.push(("q", query.to_owned()));
    }
    parameters
}

impl Client {
    /// Checks liveness.
    pub async fn health(&self) -> Result<Health> {
        self.get("/healthz", &[]).await
    }

    /// Checks readiness.
    pub async fn readiness(&self) -> Result<Readiness> {
        self.get_any_status("/readyz").await
    }

    /// Fetches the status of all consumers and operations.
    pub async fn status(&self) -> Result<Status> {
        self.get("/v1/status", &[]).await
    }

    /// Fetches a page of groups.
    pub async fn groups(&self, query: &LetterQuery, closed: bool) -> Result<GroupPage> {
        let mut parameters = with_query(&query.query, page(query.after.as_deref(), query.limit));
        if closed {
            parameters.push(("closed", "true".to_owned()));
        }
        self.get("/v1/groups", &parameters).await.map_err(|error| error.with_query(&query.query))
    }

    /// Fetches one group.
    pub async fn group(&self, id: &str) -> Result<Group> {
        self.get(&format!("/v1/groups/{}", segment(id)), &[]).await
    }

    /// Fetches a page of letters.
    pub async fn letters(&self, query: &LetterQuery) -> Result<LetterPage> {
        let parameters = with_query(&query.query, page(query.after.as_deref(), query.limit));
        self.get("/v1/letters", &parameters).await.map_err(|error| error.with_query(&query.query))
    }

    /// Streams every matching letter as JSON lines; with content if `full`.
    pub async fn letter_lines(&self, query: &str, full: bool) -> Result<Lines> {
        let mut parameters = with_query(query, Vec::new());
        if full {
            parameters.push(("view", "full".to_owned()));
        }
        self.get_lines("/v1/letters", &parameters).await.map_err(|error| error.with_query(query))
    }

    /// Counts the matching letters.
    pub async fn count(&self, query: &str) -> Result<LetterMatches> {
        self.get("/v1/letters/count", &with_query(query, Vec::new()))
            .await
            .map_err(|error| error.with_query(query))
    }

    /// Fetches one letter with its content and history.
    pub async fn letter(&self, id: &str) -> Result<LetterDetail> {
        self.get(&format!("/v1/letters/{}", segment(id)), &[]).await
    }

    /// Fetches one letter with its redacted values, for this reason.
    pub async fn reveal(&self, id: &str, reason: &str) -> Result<LetterDetail> {
        let request = ActRequest { reason: Some(reason.to_owned()) };
        self.change(Method::POST, &format!("/v1/letters/{}/reveal", segment(id)), &request).await
    }

    /// Streams every matching letter with its content and its redacted values, for this reason.
    pub async fn revealed_lines(&self, query: &str, reason: &str) -> Result<Lines> {
        let query = Some(query.to_owned()).filter(|query| !query.trim().is_empty());
        let request = ExportRequest { query: query.clone(), reason: Some(reason.to_owned()) };
        let lines = self.post_lines("/v1/letters/export", &request).await;
        lines.map_err(|error| error.with_query(query.as_deref().unwrap_or_default()))
    }

    /// Fetches the payload of a letter, without its redacted values.
    pub async fn payload(&self, id: &str) -> Result<Bytes> {
        self.get_bytes(&format!("/v1/letters/{}/payload", segment(id))).await
    }

    /// Replaces the payload of a letter.
    pub async fn edit(&self, id: &str, request: &EditRequest) -> Result<Letter> {
        self.change(Method::PUT, &format!("/v1/letters/{}/payload", segment(id)), request).await
    }

    /// Comments on a letter.
    pub async fn comment(&self, id: &str, request: &CommentRequest) -> Result<Letter> {
        self.change(Method::POST, &format!("/v1/letters/{}/comments", segment(id)), request).await
    }

    /// Assigns a letter to a person.
    pub async fn assign(&self, id: &str, request: &AssignRequest) -> Result<Letter> {
        self.change(Method::PUT, &format!("/v1/letters/{}/assignee", segment(id)), request).await
    }

    /// Sets the team that owns a letter.
    pub async fn own(&self, id: &str, request: &AssignRequest) -> Result<Letter> {
        self.change(Method::PUT, &format!("/v1/letters/{}/owner", segment(id)), request).await
    }

    /// Sends a message to the inbox of a consumer. Without an id in the headers, the idempotency key of the request is its id.
    pub async fn post_message(
        &self,
        consumer: &str,
        headers: HeaderMap,
        payload: Bytes,
    ) -> Result<InboxAnswer> {
        let path = format!("/v1/inbox/{}", segment(consumer));
        let response = self.send_change(Method::POST, &path, &[], headers, payload, RESPONSE_TIMEOUT).await?;
        self.read(&path, response).await
    }

    /// Changes many letters independently: `restore`, `resolve`, `quarantine` or `purge`.
    pub async fn bulk(&self, verb: &str, request: &BulkRequest) -> Result<BulkAnswer> {
        let query = request.selection.query.as_deref().unwrap_or_default();
        self.change(Method::POST, &format!("/v1/letters/{verb}"), request)
            .await
            .map_err(|error| error.with_query(query))
    }

    /// Imports exported letters.
    pub async fn import(&self, lines: Bytes, queue: Option<&str>, reason: &str) -> Result<ImportAnswer> {
        let mut parameters = vec![("reason", reason.to_owned())];
        parameters.extend(queue.map(|queue| ("queue", queue.to_owned())));
        let path = "/v1/letters/import";
        let headers = media_type("application/x-ndjson");
        let response =
            self.send_change(Method::POST, path, &parameters, headers, lines, IMPORT_TIMEOUT).await?;
        self.read(path, response).await
    }

    /// Fetches a page of a sequence.
    pub async fn sequence(
        &self,
        queue: &str,
        sequence: &str,
        after: Option<&str>,
        limit: Option<usize>,
    ) -> Result<Sequence> {
        let mut parameters = page(after, limit);
        parameters.push(("queue", queue.to_owned()));
        parameters.push(("sequence", sequence.to_owned()));
        self.get("/v1/sequences", &parameters).await
    }

    /// Freezes a plan.
    pub async fn freeze(&self, request: &PlanRequest) -> Result<Plan> {
        let query = request.selection.query.as_deref().unwrap_or_default();
        self.change(Method::POST, "/v1/plans", request).await.map_err(|error| error.with_query(query))
    }

    /// Fetches a plan.
    pub async fn plan(&self, id: &str) -> Result<Plan> {
        self.get(&format!("/v1/plans/{}", segment(id)), &[]).await
    }

    /// Starts an operation.
    pub async fn begin(&self, request: &BeginRequest) -> Result<Operation> {
        self.change(Method::POST, "/v1/operations", request).await
    }

    /// Fetches a page of operations.
    pub async fn operations(&self, after: Option<&str>, limit: Option<usize>) -> Result<OperationPage> {
        self.get("/v1/operations", &page(after, limit)).await
    }

    /// Fetches one operation.
    pub async fn operation(&self, id: &str) -> Result<Operation> {
        self.get(&format!("/v1/operations/{}", segment(id)), &[]).await
    }

    /// Fetches a page of the letters of an operation.
    pub async fn operation_items(
        &self,
        id: &str,
        after: Option<&str>,
        limit: Option<usize>,
    ) -> Result<ItemPage> {
        self.get(&format!("/v1/operations/{}/items", segment(id)), &page(after, limit)).await
    }

    /// Sends a command to an operation.
    pub async fn command(&self, id: &str, command: Command, reason: &str) -> Result<Operation> {
        let request = CommandRequest { reason: Some(reason.to_owned()) };
        self.change(Method::POST, &format!("/v1/operations/{}/{command}", segment(id)), &request).await
    }

    /// Pauses a consumer or a part of it.
    pub async fn pause(&self, consumer: &str, request: &PauseRequest) -> Result<Pause> {
        self.change(Method::POST, &format!("/v1/consumers/{}/pause", segment(consumer)), request).await
    }

    /// Resumes a consumer or a part of it.
    pub async fn resume(&self, consumer: &str, request: &PauseRequest) -> Result<ResumeAnswer> {
        self.change(Method::POST, &format!("/v1/consumers/{}/resume", segment(consumer)), request).await
    }

    /// Fetches a page of the audit log.
    pub async fn audit(&self, after: Option<&str>, limit: Option<usize>) -> Result<AuditPage> {
        self.get("/v1/audit", &page(after, limit)).await
    }

    /// Verifies the hash chain of the audit log.
    pub async fn verify_audit(&self) -> Result<AuditCheck> {
        self.get("/v1/audit/verify", &[]).await
    }

    /// Subscribes to events, from now on or after the given event.
    pub async fn events(&self, query: &[(&str, String)], after: Option<&str>) -> Result<EventStream> {
        let mut request = self.request(Method::GET, "/v1/events", query).header(ACCEPT, "text/event-stream");
        if let Some(after) = after {
            request = request.header("last-event-id", after);
        }
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        let url = response.url().to_string();
        Ok(EventStream::new(self.accept(response).await?, url))
    }
}
