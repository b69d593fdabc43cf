//! A relay between a store and its server that can hold back answers, and make the server not know a command.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use bson::doc;
use mongodb::Client;
use mongodb::options::ClientOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A relay that belongs to one test.
pub(crate) struct Relay {
    uri: String,
    /// Answers are held back.
    held: Arc<watch::Sender<bool>>,
    /// The number of answers that wait.
    waiting: watch::Receiver<usize>,
    unknown: Arc<Unknown>,
    task: JoinHandle<()>,
}

/// A command that the server is not to know.
#[derive(Default)]
struct Unknown {
    command: OnceLock<&'static str>,
    /// How often it was sent.
    sent: AtomicUsize,
}

impl Unknown {
    /// Renames the command. Its new name is as long, so that the lengths in the message stay right.
    fn rename(&self, bytes: &mut [u8]) {
        let Some(command) = self.command.get() else { return };
        let found = bytes.windows(command.len()).position(|window| window == command.as_bytes());
        if let Some(at) = found {
            bytes[at..at + command.len()].fill(b'x');
            self.sent.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Relay {
    /// Starts a relay to the server of this URI; of several, to the primary.
    pub(crate) async fn start(uri: &str) -> Self {
        let server = primary(uri).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = through(uri, &listener.local_addr().unwrap().to_string());
        let held = Arc::new(watch::Sender::new(false));
        let (count, waiting) = watch::channel(0);
        let (answers, count) = (held.clone(), Arc::new(count));
        let unknown = Arc::new(Unknown::default());
        let renamed = unknown.clone();
        let task = tokio::spawn(async move {
            let mut copies = tokio::task::JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let server = TcpStream::connect(&server).await.unwrap();
                let ((from_client, to_client), (from_server, to_server)) =
                    (client.into_split(), server.into_split());
                copies.spawn(pass_on(
                    from_client,
                    to_server,
                    Arc::default(),
                    Arc::default(),
                    renamed.clone(),
                ));
                copies.spawn(pass_on(from_server, to_client, answers.clone(), count.clone(), Arc::default()));
            }
        });
        Self { uri, held, waiting, unknown, task }
    }

    /// Makes the server not know this command.
    pub(crate) fn make_unknown(&self, command: &'static str) {
        self.unknown.command.set(command).unwrap();
    }

    /// How often the unknown command was sent.
    pub(crate) fn unknown_sent(&self) -> usize {
        self.unknown.sent.load(Ordering::Relaxed)
    }

    /// The address of the relay, with these options.
    pub(crate) fn uri(&self, options: &str) -> String {
        format!("{}&{options}", self.uri)
    }

    /// Holds back all answers.
    pub(crate) fn hold(&self) {
        self.held.send_replace(true);
    }

    /// Passes on all answers.
    pub(crate) fn release(&self) {
        self.held.send_replace(false);
    }

    /// Waits until so many answers are held back.
    pub(crate) async fn until_waiting(&self, answers: usize) {
        self.waiting.clone().wait_for(|waiting| *waiting >= answers).await.unwrap();
    }
}

/// The address of the server of this URI; of several, that of the primary.
async fn primary(uri: &str) -> String {
    let client = Client::with_uri_str(uri).await.unwrap();
    let hello = client.database("admin").run_command(doc! { "hello": 1 }).await.unwrap();
    match hello.get_str("primary") {
        Ok(primary) => primary.to_owned(),
        // A router, or a server that is no member of a set.
        Err(_) => ClientOptions::parse(uri).await.unwrap().hosts[0].to_string(),
    }
}

/// A URI with the credentials of this one that leads to an address. A server of a set tells its own address, which leads past the relay.
fn through(uri: &str, address: &str) -> String {
    let (_, behind) = uri.split_once("://").unwrap();
    let authority = behind.split(['/', '?']).next().unwrap();
    let credentials =
        authority.rsplit_once('@').map_or(String::new(), |(credentials, _)| format!("{credentials}@"));
    format!("mongodb://{credentials}{address}/?directConnection=true")
}

async fn pass_on(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    held: Arc<watch::Sender<bool>>,
    waiting: Arc<watch::Sender<usize>>,
    unknown: Arc<Unknown>,
) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(read @ 1..) = from.read(&mut bytes).await {
        if *held.borrow() {
            waiting.send_modify(|waiting| *waiting += 1);
            held.subscribe().wait_for(|held| !held).await.unwrap();
            waiting.send_modify(|waiting| *waiting -= 1);
        }
        unknown.rename(&mut bytes[..read]);
        if to.write_all(&bytes[..read]).await.is_err() {
            break;
        }
    }
}
