//! A relay between a source and its server that can cut all connections.

use std::sync::Arc;

use mongodb::Client;
use mongodb::options::{ClientOptions, ServerAddress};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A relay that belongs to one test.
pub(crate) struct Relay {
    /// A client with the options of the server's address that knows the relay alone.
    pub(crate) client: Client,
    /// Each change cuts the connections that are open.
    cuts: Arc<watch::Sender<()>>,
    task: JoinHandle<()>,
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Relay {
    /// Starts a relay to the first server of this URI.
    pub(crate) async fn start(uri: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut options = ClientOptions::parse(uri).await.unwrap();
        let server = options.hosts[0].to_string();
        let address = listener.local_addr().unwrap().to_string();
        options.hosts = vec![ServerAddress::parse(&address).unwrap()];
        // A server of a set tells its own address, which leads past the relay.
        options.direct_connection = Some(true);
        let client = Client::with_options(options).unwrap();
        let cuts = Arc::new(watch::Sender::new(()));
        let connections = cuts.clone();
        let task = tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                tokio::spawn(pass_on(client, server.clone(), connections.subscribe()));
            }
        });
        Self { client, cuts, task }
    }

    /// Cuts all connections, and accepts new ones. Returns how many there were.
    pub(crate) fn cut(&self) -> usize {
        let open = self.cuts.receiver_count();
        self.cuts.send_replace(());
        open
    }
}

async fn pass_on(mut client: TcpStream, server: String, mut cut: watch::Receiver<()>) {
    let Ok(mut server) = TcpStream::connect(&server).await else { return };
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
        _ = cut.changed() => {}
    }
}
