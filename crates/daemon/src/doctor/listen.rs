//! Whether the address of the API is free.

use std::io::ErrorKind;
use std::time::Duration;

use lazaret_config::Address;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{Finding, PATIENCE};

/// Takes the address and gives it back at once.
pub(super) async fn examine(address: &Address) -> Finding {
    match TcpListener::bind((address.host.as_str(), address.port)).await {
        Ok(_) => Finding::ok("listen", format!("{address} is free")),
        Err(error) if error.kind() == ErrorKind::AddrInUse => taken(address).await,
        Err(error) => {
            let advice = "choose an address of this machine for `listen`, and a port that this user may use";
            Finding::fail("listen", format!("{address}: {error}"), advice)
        }
    }
}

async fn taken(address: &Address) -> Finding {
    if tokio::time::timeout(PATIENCE, is_lazaret(address)).await.unwrap_or(false) {
        let advice = "that is fine if it is the one that you mean; a second one needs another `listen`";
        return Finding::warn("listen", format!("a Lazaret runs at {address}"), advice);
    }
    let advice = "stop the program that listens there, or choose another `listen`";
    Finding::fail("listen", format!("{address} is in use by another program"), advice)
}

/// Whether what answers there says that it is alive, as Lazaret does.
async fn is_lazaret(address: &Address) -> bool {
    let asked = async {
        let mut stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
        let request = format!("GET /healthz HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        let mut head = stream.take(4096);
        let reading = head.read_to_end(&mut answer);
        // Who keeps the connection open has said what it has to say by then.
        let _ = tokio::time::timeout(Duration::from_secs(1), reading).await;
        std::io::Result::Ok(answer)
    };
    let answer = asked.await.unwrap_or_default();
    let text = String::from_utf8_lossy(&answer);
    text.starts_with("HTTP/1.1 200") && text.contains("\"status\"") && text.contains("\"version\"")
}
