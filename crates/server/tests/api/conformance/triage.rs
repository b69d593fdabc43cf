//! Triage and the audit through the API: finding, counting, groups, queues, changes and purges. Expiry and audit notes go to the store.

use axum::http::Method;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use lazaret_api as api;
use lazaret_core::QueueName;
use lazaret_core::letter::{Letter, LetterId};
use lazaret_core::query::Query;
use lazaret_core::store::{
    Actor, AuditEntry, Change, Group, GroupId, GroupsPage, GroupsRequest, LettersPage, Matches, QueueSummary,
    Result, Store,
};

use crate::conformance::client::encoded;
use crate::conformance::store::ThroughApi;
use crate::conformance::words::{self, if_there, refused};

impl<S: Store> ThroughApi<S> {
    /// The letters of a page as an export has them, one a line: the same ones, whole.
    async fn exported(
        &self,
        query: &Query,
        after: Option<&str>,
        shown: Vec<api::Letter>,
    ) -> Result<Vec<Letter>> {
        if shown.is_empty() {
            return Ok(Vec::new());
        }
        let limit = shown.len().to_string();
        let params =
            [("q", Some(query.text())), ("after", after), ("limit", Some(&limit)), ("view", Some("full"))];
        let lines = self.api.lines::<api::LetterDetail>("/v1/letters", &params).await;
        let letters: Vec<Letter> = lines.map_err(refused("find"))?.into_iter().map(words::letter).collect();
        assert_eq!(letters.iter().map(api::Letter::from).collect::<Vec<_>>(), shown, "{}", query.text());
        for letter in &letters {
            let stored = self.inner.get(&letter.queue, letter.id).await?;
            assert_eq!(stored.as_ref(), Some(letter), "the API shows what is stored");
        }
        Ok(letters)
    }
}

impl<S: Store> ThroughApi<S> {
    pub(crate) async fn find_over_http(
        &self,
        query: &Query,
        after: Option<&str>,
        limit: usize,
    ) -> Result<LettersPage> {
        let size = limit.to_string();
        let params = [("q", Some(query.text())), ("after", after), ("limit", Some(size.as_str()))];
        let page: api::LetterPage = self.api.get("/v1/letters", &params).await.map_err(refused("find"))?;
        let letters = self.exported(query, after, page.letters).await?;
        Ok(LettersPage { letters, next: page.next })
    }

    pub(crate) async fn count_over_http(&self, query: &Query) -> Result<Matches> {
        let answer = self.api.get("/v1/letters/count", &[("q", Some(query.text()))]).await;
        let matches: api::LetterMatches = answer.map_err(refused("count"))?;
        Ok(Matches { letters: matches.letters, exact: matches.exact })
    }

    pub(crate) async fn groups_over_http(&self, request: &GroupsRequest) -> Result<GroupsPage> {
        let query = request.queue.as_ref().map(|queue| format!("queue:\"{queue}\""));
        let limit = request.limit.to_string();
        let params = [
            ("q", query.as_deref()),
            ("closed", request.closed.then_some("true")),
            ("after", request.after.as_deref()),
            ("limit", Some(limit.as_str())),
        ];
        let page: api::GroupPage = self.api.get("/v1/groups", &params).await.map_err(refused("groups"))?;
        Ok(GroupsPage { groups: page.groups.into_iter().map(words::group).collect(), next: page.next })
    }

    pub(crate) async fn group_over_http(&self, id: &GroupId) -> Result<Option<Group>> {
        let path = format!("/v1/groups/{}", encoded(&id.to_string()));
        let found = if_there(self.api.get(&path, &[]).await).map_err(refused("group"))?;
        Ok(found.map(words::group))
    }

    /// The status has them by consumer.
    pub(crate) async fn queues_over_http(&self) -> Result<Vec<QueueSummary>> {
        let status: api::Status = self.api.get("/v1/status", &[]).await.map_err(refused("queues"))?;
        status.consumers.iter().for_each(|consumer| self.check_sums(consumer));
        let queues = status.consumers.iter().flat_map(|consumer| &consumer.queues);
        let mut summaries: Vec<QueueSummary> = queues.map(words::queue).collect();
        summaries.sort_by(|one, other| one.queue.cmp(&other.queue));
        Ok(summaries)
    }

    pub(crate) async fn change_over_http(
        &self,
        queue: &QueueName,
        letter: LetterId,
        change: &Change,
        by: &Actor,
    ) -> Result<Letter> {
        let (letter, reason) = ((queue, letter), Some(by.why.clone()));
        match change {
            Change::Payload(payload) => {
                let request = edit(payload.as_ref(), reason);
                self.change_letter(letter, (Method::PUT, "payload"), by, &request).await
            }
            // Where approval is demanded, the API turns each edit into this one.
            Change::HeldPayload(_) => self.inner.change(queue, letter.1, change, by).await,
            Change::Comment(text) => {
                let request = api::CommentRequest { text: text.clone(), reason };
                self.change_letter(letter, (Method::POST, "comments"), by, &request).await
            }
            Change::Assignee(name) => {
                let request = api::AssignRequest { name: name.clone(), reason };
                self.change_letter(letter, (Method::PUT, "assignee"), by, &request).await
            }
            Change::Owner(name) => {
                let request = api::AssignRequest { name: name.clone(), reason };
                self.change_letter(letter, (Method::PUT, "owner"), by, &request).await
            }
            Change::ExpiresAt(expires_at) => {
                let request = api::ExpiryRequest { expires_at: *expires_at, reason };
                self.change_letter(letter, (Method::PUT, "expiry"), by, &request).await
            }
        }
    }

    pub(crate) async fn purge_over_http(
        &self,
        queue: &QueueName,
        letter: LetterId,
        by: &Actor,
    ) -> Result<()> {
        self.check_queue(queue, letter).await?;
        let path = format!("/v1/letters/{letter}/purge");
        let request = api::ActRequest { reason: Some(by.why.clone()) };
        let answer = self.api.change((Method::POST, &path), by, &request).await.map_err(refused("purge"))?;
        assert!(answer.body.is_empty(), "{}", answer.shown());
        Ok(())
    }
}

/// Another payload: as text where it is text, as bytes where it is not, and none at all.
fn edit(payload: Option<&Bytes>, reason: Option<String>) -> api::EditRequest {
    let text = payload.and_then(|bytes| std::str::from_utf8(bytes).ok());
    api::EditRequest {
        payload: text.map(str::to_owned),
        payload_base64: payload.filter(|_| text.is_none()).map(|bytes| STANDARD.encode(bytes)),
        tombstone: payload.is_none(),
        // The suite replaces JSON by text.
        force: true,
        reason,
        ..api::EditRequest::default()
    }
}

impl<S: Store> ThroughApi<S> {
    /// Page by page, and in one answer as lines: the same entries.
    pub(crate) async fn audit_over_http(&self, after: u64, limit: usize) -> Result<Vec<AuditEntry>> {
        let later = |entry: &api::AuditEntry| entry.number > after;
        let walked = self.api.walk::<api::AuditPage>("/v1/audit", &[], limit, later).await;
        let (entries, _) = walked.map_err(refused("audit"))?;
        let lines = self.api.lines::<api::AuditEntry>("/v1/audit", &[]).await.map_err(refused("audit"))?;
        let lines: Vec<_> = lines.into_iter().filter(later).take(limit).collect();
        assert_eq!(lines, entries);
        Ok(entries.into_iter().map(words::audit_entry).collect())
    }
}
