//! The handler side: a server on a separate thread that reads requests and responds.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// The timeout of a run.
const TOO_LONG: Duration = Duration::from_secs(600);

/// A server that only counts requests.
pub(super) struct Server {
    pub(super) address: SocketAddr,
    meter: Arc<Meter>,
}

#[derive(Default)]
struct Meter {
    seen: Mutex<Seen>,
    done: Notify,
}

/// The requests of a round.
#[derive(Default)]
struct Seen {
    wanted: usize,
    count: usize,
    first: Option<Instant>,
    took: Option<Duration>,
}

impl Server {
    /// Starts the server. It runs until the process ends.
    pub(super) fn start() -> Result<Self, String> {
        let wrong = |error: std::io::Error| format!("failed to start the server: {error}");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").map_err(wrong)?;
        listener.set_nonblocking(true).map_err(wrong)?;
        let address = listener.local_addr().map_err(wrong)?;
        let meter = Arc::new(Meter::default());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(wrong)?;
        let counted = meter.clone();
        std::thread::spawn(move || runtime.block_on(serve(listener, counted)));
        Ok(Self { address, meter })
    }

    /// Resets the count and expects this many requests.
    pub(super) fn expect(&self, requests: usize) {
        *self.meter.seen() = Seen { wanted: requests, ..Seen::default() };
    }

    /// Waits for all requests. Returns the time from the first to the last.
    pub(super) async fn wait(&self) -> Duration {
        let wait = async {
            loop {
                let done = self.meter.done.notified();
                if let Some(took) = self.meter.seen().took {
                    return took;
                }
                done.await;
            }
        };
        tokio::time::timeout(TOO_LONG, wait).await.expect("every message is sent to its handler")
    }
}

impl Meter {
    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self) {
        let mut seen = self.seen();
        seen.count += 1;
        let first = *seen.first.get_or_insert_with(Instant::now);
        if seen.count == seen.wanted {
            seen.took = Some(first.elapsed());
            self.done.notify_one();
        }
    }
}

async fn serve(listener: std::net::TcpListener, meter: Arc<Meter>) {
    let listener = TcpListener::from_std(listener).expect("the listener does not block");
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        tokio::spawn(attend(stream, meter.clone()));
    }
}

async fn attend(stream: TcpStream, meter: Arc<Meter>) {
    _ = stream.set_nodelay(true);
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let meter = meter.clone();
        async move {
            // The request is read completely before the response, as in a real handler.
            _ = request.into_body().collect().await;
            meter.count();
            let mut answer = Response::new(Empty::<Bytes>::new());
            *answer.status_mut() = StatusCode::NO_CONTENT;
            Ok::<_, Infallible>(answer)
        }
    });
    // A client that disconnects is not an error.
    _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}
