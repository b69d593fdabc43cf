//! A server with the console, over a file with many letters in many groups.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use lazaret_core::query::Query;
use lazaret_core::store::{GroupsRequest, Triage};
use lazaret_core::{Failure, Letter, LetterState, Reason};
use lazaret_server::{Limits, Options, Registry, Server};
use lazaret_store_sqlite::SqliteStore;
use reqwest::Client;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::Scale;
use crate::embedded::disk::{Disk, remove};
use crate::embedded::open;
use crate::letters::{Mould, fill};

const LETTERS: usize = 1_000_000;
const GROUPS: usize = 5_000;
/// The payload size: small, as the number of letters matters.
const PAYLOAD: usize = 128;
/// Enough for all viewers of a benchmark, who are one caller without a token.
const STREAMS: usize = 256;

/// A running server.
pub(super) struct Site {
    pub(super) base: String,
    pub(super) store: Arc<SqliteStore>,
    pub(super) registry: Registry,
    pub(super) client: Client,
    pub(super) letters: usize,
    pub(super) groups: usize,
    path: PathBuf,
    stop: CancellationToken,
    serving: JoinHandle<()>,
}

impl Site {
    /// Fills a file and serves it, with pages and API.
    pub(super) async fn start(scale: Scale, disk: &Disk) -> Self {
        let (path, started) = (disk.file(), Instant::now());
        let (letters, groups) = (scale.count(LETTERS), scale.count(GROUPS));
        let store = open(&path);
        let mould = Mould::new(PAYLOAD);
        fill(&*store, (0..letters).map(|number| letter(&mould, number, groups))).await;
        eprintln!("filled {letters} letters of {groups} groups in {:.0} s", started.elapsed().as_secs_f64());
        let limits = Limits {
            streams: STREAMS,
            streams_per_token: STREAMS,
            requests_per_token: STREAMS,
            ..Limits::default()
        };
        let registry = Registry::default();
        let server = Server::builder(store.clone())
            .registry(registry.clone())
            .options(Options { limits, ..Options::default() })
            .pages(lazaret_console::router)
            .build();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
        let base = format!("http://{}", listener.local_addr().expect("a bound listener has an address"));
        let stop = CancellationToken::new();
        let serving = tokio::spawn({
            let stop = stop.clone();
            async move { server.serve(listener, stop).await.expect("the server serves loopback") }
        });
        // An error means that the provider is installed already.
        _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder().no_proxy().build().expect("the settings are valid");
        Self { base, store, registry, client, letters, groups, path, stop, serving }
    }

    /// Fetches a page. Returns its size.
    pub(super) async fn page(&self, path: &str) -> usize {
        fetch(&self.client, &format!("{}{path}", self.base)).await.len()
    }

    /// The paths of the screens, by name.
    pub(super) async fn screens(&self) -> Vec<(&'static str, String)> {
        let request = GroupsRequest { limit: 1, ..GroupsRequest::default() };
        let groups = self.store.groups(&request).await.expect("the store groups").groups;
        let group = groups.first().expect("the letters have groups").id.to_string();
        let everything = Query::everything();
        let letters = self.store.find(&everything, None, 1).await.expect("the store finds").letters;
        let letter = letters.first().expect("there are letters").id;
        vec![
            ("overview", "/console/overview".to_owned()),
            ("groups", "/console/groups".to_owned()),
            ("group", format!("/console/groups/{}", group.replace('/', "%2F"))),
            ("letters", "/console/letters".to_owned()),
            ("letter", format!("/console/letters/{letter}")),
            ("operations", "/console/operations".to_owned()),
            ("admin", "/console/admin".to_owned()),
        ]
    }

    pub(super) async fn stop(self) {
        self.stop.cancel();
        self.serving.await.expect("the server does not panic");
        drop(self.store);
        remove(&self.path);
    }
}

/// Fetches a page, which must be there.
pub(super) async fn fetch(client: &Client, url: &str) -> String {
    let answer = client.get(url).send().await.expect("the server answers");
    assert!(answer.status().is_success(), "{url}: {}", answer.status());
    answer.text().await.expect("the answer is whole")
}

/// A dead letter with a sequence of its own, in one of these groups.
fn letter(mould: &Mould, number: usize, groups: usize) -> Letter {
    let mut letter = mould.letter(number, &format!("order-{number}"), LetterState::Dead);
    let message = format!("the ledger gave no answer to {number}");
    letter.cause = Some(Failure::new(Reason::TIMEOUT, format!("Error{}", number % groups), message));
    letter
}
