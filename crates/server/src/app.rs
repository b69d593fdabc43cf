//! The state shared by all requests.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use axum::response::Response;
use bytes::Bytes;
use lazaret_api::{EffectiveConfig, Problem};
use lazaret_core::source::Ingest;
use lazaret_core::store::KeyValue;
use lazaret_core::{Clock, LetterId, QueueName, Store};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::activity::ActivityLog;
use crate::anonymous::AnonymousPool;
use crate::api_error::{ApiError, Result};
use crate::auth::{Attempts, Caller, CsrfKey, Hosts, LatestRights, Sessions, Tokens};
use crate::change::drafts::Drafts;
use crate::event_feed::Feed;
use crate::idempotency::IdempotencyStore;
use crate::options::Options;
use crate::per_token::PerToken;
use crate::read::facets::FacetReads;
use crate::read::plan_contents::PlanContents;
use crate::registry::Registry;
use crate::scan_turns::ScanTurns;

/// Renders the metrics.
pub(crate) type Metrics = Arc<dyn Fn() -> String + Send + Sync>;

/// Renders a problem as a page.
pub(crate) type ProblemPage = fn(&Problem) -> Response;

/// The state shared by all requests. Cheap to clone.
#[derive(Clone)]
pub(crate) struct App(Arc<Shared>);

pub(crate) struct Shared {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) registry: Registry,
    pub(crate) inboxes: HashMap<String, Arc<dyn Ingest>>,
    pub(crate) instances: Option<Arc<dyn KeyValue>>,
    pub(crate) tokens: RwLock<ActiveTokens>,
    pub(crate) config: RwLock<EffectiveConfig>,
    pub(crate) hosts: Hosts,
    /// The sessions of the console.
    pub(crate) sessions: Sessions,
    /// The latest rights of people without a token.
    pub(crate) latest_rights: LatestRights,
    pub(crate) attempts: Attempts,
    pub(crate) csrf: CsrfKey,
    pub(crate) options: Options,
    pub(crate) feed: Feed,
    pub(crate) activity: ActivityLog,
    pub(crate) facet_reads: FacetReads,
    pub(crate) plan_contents: PlanContents,
    /// Held by an edit, from the reading of the letter to the change.
    pub(crate) edits: tokio::sync::Mutex<()>,
    /// The plans that are being frozen.
    pub(crate) drafts: Drafts,
    pub(crate) idempotency: IdempotencyStore,
    pub(crate) metrics: Option<Metrics>,
    /// For browsers; without it they get the problem as JSON, like other clients.
    pub(crate) problem_page: Option<ProblemPage>,
    pub(crate) clock: Arc<dyn Clock>,
    /// One permit per concurrent request of a known caller.
    pub(crate) requests: Arc<Semaphore>,
    /// The places of all other requests.
    pub(crate) anonymous: AnonymousPool,
    /// The use of each token.
    pub(crate) by_token: PerToken,
    /// The turns of reads that may examine many letters.
    pub(crate) scans: ScanTurns,
    /// The last check of the store for `/readyz`: when it began, and its error.
    pub(crate) readiness: tokio::sync::Mutex<Option<(Instant, Option<String>)>>,
    /// One permit per byte of a request body in memory.
    pub(crate) body_bytes: Arc<Semaphore>,
    /// One permit per open export of full letters.
    pub(crate) exports: Arc<Semaphore>,
    /// One permit per open stream.
    pub(crate) streams: Arc<Semaphore>,
    /// Cancelled when the server stops: streams end.
    pub(crate) stopping: CancellationToken,
    /// The OpenAPI document.
    pub(crate) document: Bytes,
}

/// The tokens until the next reload.
pub(crate) struct ActiveTokens {
    pub(crate) tokens: Tokens,
    /// Cancelled when they are replaced: event streams end, and their clients authenticate again. Exports go on if their token
    /// is unchanged.
    pub(crate) replaced: CancellationToken,
}

impl App {
    pub(crate) fn new(shared: Shared) -> Self {
        Self(Arc::new(shared))
    }

    /// The current tokens.
    pub(crate) fn tokens(&self) -> RwLockReadGuard<'_, ActiveTokens> {
        self.tokens.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns `true` if the caller would still be accepted. Responses that outlive the check ask from time to time.
    pub(crate) fn still_accepts(&self, caller: &Caller) -> bool {
        caller.session.is_valid(&self.tokens().tokens, self.clock.now())
    }

    /// The effective page size.
    pub(crate) fn page(&self, requested: Option<usize>) -> usize {
        let limits = &self.options.limits;
        requested.unwrap_or(limits.page).clamp(1, limits.max_page)
    }

    /// Reads a letter by id, in any queue and state.
    pub(crate) async fn letter(&self, caller: &Caller, id: &str) -> Result<lazaret_core::Letter> {
        let id: LetterId = id.parse().map_err(|_| ApiError::not_found("letter", id))?;
        self.find_letter(caller, id).await?.ok_or_else(|| ApiError::not_found("letter", id))
    }

    /// Finds a letter by id, of a consumer that the caller may use.
    pub(crate) async fn find_letter(
        &self,
        caller: &Caller,
        id: LetterId,
    ) -> Result<Option<lazaret_core::Letter>> {
        let query = caller.limit(lazaret_core::query::Query::parse(&format!("id:{id} state:open,closed"))?);
        let mut after = None;
        loop {
            let page = self.store.find(&query, after.as_deref(), 1).await?;
            if let Some(letter) = page.letters.into_iter().next() {
                return Ok(Some(letter));
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(None),
            }
        }
    }

    /// Wakes the consumer of a queue, if it runs here.
    pub(crate) fn wake(&self, queue: &QueueName) {
        if let Some(handle) = self.registry.handle(queue.consumer()) {
            handle.wake();
        }
    }
}

impl Deref for App {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}
