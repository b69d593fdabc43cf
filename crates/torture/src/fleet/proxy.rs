//! The network between the processes and the server: a proxy that cuts connections after a statement was sent.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream, tcp, unix};

/// A message that ends the connection, which the server reads behind the statement.
const TERMINATE: &[u8] = b"X\0\0\0\x04";

/// A proxy in this process.
pub(super) struct Proxy {
    pub(super) port: u16,
    cuts: Arc<Cuts>,
}

/// The statements whose answers are lost, together with their connections.
#[derive(Default)]
struct Cuts {
    left: AtomicU32,
    done: AtomicU32,
}

impl Cuts {
    /// Returns `true` if this statement is one of them.
    fn take(&self) -> bool {
        let taken = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if taken.is_ok() {
            self.done.fetch_add(1, Ordering::Relaxed);
        }
        taken.is_ok()
    }
}

impl Proxy {
    /// Starts the proxy before the server with this socket.
    pub(super) async fn start(server: PathBuf) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (port, cuts) = (listener.local_addr()?.port(), Arc::new(Cuts::default()));
        let of_proxy = cuts.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(connect(client, server.clone(), of_proxy.clone()));
            }
        });
        Ok(Self { port, cuts })
    }

    /// Lets the next statements be carried out, loses their answers, and cuts their connections.
    pub(super) fn cut(&self, statements: u32) {
        self.cuts.left.fetch_add(statements, Ordering::Relaxed);
    }

    /// How many connections were cut.
    pub(super) fn cuts(&self) -> u32 {
        self.cuts.done.load(Ordering::Relaxed)
    }
}

async fn connect(client: TcpStream, server: PathBuf, cuts: Arc<Cuts>) {
    // While the server is away, so are the connections to it.
    let Ok(server) = UnixStream::connect(server).await else { return };
    // Answers are forwarded in pieces, which must not wait for each other.
    if client.set_nodelay(true).is_err() {
        return;
    }
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let lost = Arc::new(AtomicBool::new(false));
    let back = tokio::spawn(answer(from_server, to_client, lost.clone()));
    // A connection that was cut is read to its end, so that the server gets to its last statement.
    if !forward(from_client, to_server, &cuts, &lost).await.unwrap_or(false) {
        back.abort();
    }
}

/// Forwards the answers of the server until it closes the connection. Ends the connection of the client when they are lost.
async fn answer(mut from: unix::OwnedReadHalf, to: tcp::OwnedWriteHalf, lost: Arc<AtomicBool>) {
    let (mut to, mut bytes) = (Some(to), vec![0; 1 << 16]);
    while let Ok(length @ 1..) = from.read(&mut bytes).await {
        if lost.load(Ordering::SeqCst) {
            to = None;
        }
        if let Some(client) = &mut to
            && client.write_all(&bytes[..length]).await.is_err()
        {
            return;
        }
    }
}

/// Forwards the messages of a client until the connection ends. Returns `true` if it was cut behind a statement.
async fn forward(
    mut from: tcp::OwnedReadHalf,
    mut to: unix::OwnedWriteHalf,
    cuts: &Cuts,
    lost: &AtomicBool,
) -> io::Result<bool> {
    // The first message has no type.
    let mut header = 4;
    loop {
        let mut message = vec![0; header];
        from.read_exact(&mut message).await?;
        let mut length = [0; 4];
        length.copy_from_slice(&message[header - 4..]);
        message.resize(header + (u32::from_be_bytes(length) as usize).saturating_sub(4), 0);
        from.read_exact(&mut message[header..]).await?;
        // A simple query, or the end of a prepared one.
        let is_statement = header == 5 && matches!(message[0], b'Q' | b'S');
        header = 5;
        let is_cut = is_statement && cuts.take();
        lost.fetch_or(is_cut, Ordering::SeqCst);
        to.write_all(&message).await?;
        if is_cut {
            to.write_all(TERMINATE).await?;
            return Ok(true);
        }
    }
}
