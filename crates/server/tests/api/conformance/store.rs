//! A store behind the API: what people ask goes over HTTP, what the engine asks goes to the store itself.

use std::sync::Arc;

use lazaret_core::{Clock, Store};
use lazaret_server::{Approval, Limits, Options, Registry, Server, Tokens};

use crate::conformance::client::{Client, tokens};

/// The consumers of the suite. The API pauses only those that it knows.
const CONSUMERS: [&str; 2] = ["orders", "another"];

/// A store that is asked through the API wherever the API has words for it.
pub(crate) struct ThroughApi<S> {
    /// The store behind the server.
    pub(crate) inner: Arc<S>,
    pub(crate) api: Client,
    pub(crate) clock: Arc<dyn Clock>,
}

impl<S: Store> ThroughApi<S> {
    /// Requests go straight into the router.
    pub(crate) fn in_process(inner: S, clock: Arc<dyn Clock>) -> Self {
        let inner = Arc::new(inner);
        let api = Client::in_process(&server(&inner, &clock, Limits::default()));
        Self { inner, api, clock }
    }

    /// Requests go over a socket.
    pub(crate) async fn by_socket(inner: S, clock: Arc<dyn Clock>) -> Self {
        let inner = Arc::new(inner);
        let api = Client::by_socket(server(&inner, &clock, Limits::default())).await;
        Self { inner, api, clock }
    }

    /// A client of another server over the same letters. How large a plan may be is the server's own choice.
    pub(crate) async fn planning_at_most(&self, plan_letters: u64) -> Client {
        let server = server(&self.inner, &self.clock, Limits { plan_letters, ..Limits::default() });
        if self.api.is_socket() { Client::by_socket(server).await } else { Client::in_process(&server) }
    }
}

lazaret_core::forward_store! {
    impl<S: Store> LetterStore for ThroughApi<S> {
        act => Self::act_over_http;
        get => Self::get_over_http;
        sequence => Self::sequence_over_http;
        counts => Self::counts_over_http;
        sequence_size => Self::sequence_size_over_http;
        set_pause => Self::set_pause_over_http;
        pauses => Self::pauses_over_http;
    }
    impl<S: Store> Operations for ThroughApi<S> {
        freeze => Self::freeze_over_http;
        plan => Self::plan_over_http;
        drafts => Self::drafts_over_http;
        plan_items => Self::plan_items_over_http;
        begin => Self::begin_over_http;
        operation => Self::operation_over_http;
        operations => Self::operations_over_http;
        under_way => Self::under_way_over_http;
        items => Self::items_over_http;
        command => Self::command_over_http;
    }
    impl<S: Store> Triage for ThroughApi<S> {
        find => Self::find_over_http;
        count => Self::count_over_http;
        groups => Self::groups_over_http;
        group => Self::group_over_http;
        queues => Self::queues_over_http;
        change => Self::change_over_http;
        purge => Self::purge_over_http;
    }
    impl<S: Store> Audit for ThroughApi<S> {
        audit => Self::audit_over_http;
    }

    inner: |this| &*this.inner;
    around: |_this, _call, run| run.await;
}

fn server<S: Store>(inner: &Arc<S>, clock: &Arc<dyn Clock>, limits: Limits) -> Server {
    let registry = Registry::default();
    for consumer in CONSUMERS {
        registry.starting(consumer, Approval::None);
    }
    Server::builder(inner.clone() as Arc<dyn Store>)
        .registry(registry)
        .tokens(Tokens::new(tokens()).unwrap())
        .options(Options { limits, ..Options::default() })
        .clock(clock.clone())
        .build()
}
