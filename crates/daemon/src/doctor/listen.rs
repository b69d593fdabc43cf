//! Checks that the address of the API is free.

use std::io::ErrorKind;
use std::time::Duration;

use lazaret_config::Address;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::finding::{Finding, PROBE_TIMEOUT};

/// Binds the address and releases it at once.
pub(super) async fn check(address: &Address) -> Finding {
    match TcpListener::bind((address.host.as_str(), address.port)).await {
        Ok(_) => Finding::ok("listen", format!("{address} is free")),
        Err(error) if error.kind() == ErrorKind::AddrInUse => taken(address).await,
        Err(error) => {
            let advice = "set `listen` to an address of this machine and a permitted port";
            Finding::fail("listen", format!("{address}: {error}"), advice)
        }
    }
}

async fn taken(address: &Address) -> Finding {
    if tokio::time::timeout(PROBE_TIMEOUT, is_lazaret(address)).await.unwrap_or(false) {
        let advice =
            "no action needed if it is the intended instance; a second one needs another `listen` address";
        return Finding::warn("listen", format!("a Lazaret daemon is running at {address}"), advice);
    }
    let advice = "stop the program that uses it, or set another `listen` address";
    Finding::fail("listen", format!("{address} is in use by another program"), advice)
}

/// Returns whether a Lazaret daemon responds at the address.
async fn is_lazaret(address: &Address) -> bool {
    let asked = async {
        let mut stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
        let request = format!("GET /healthz HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        let mut head = stream.take(4096);
        let reading = head.read_to_end(&mut answer);
        // A server that keeps the connection open has responded by then.
        let _ = tokio::time::timeout(Duration::from_secs(1), reading).await;
        std::io::Result::Ok(answer)
    };
    let answer = asked.await.unwrap_or_default();
    let text = String::from_utf8_lossy(&answer);
    text.starts_with("HTTP/1.1 200") && text.contains("\"status\"") && text.contains("\"version\"")
}
