//! Reads pages of the console over HTTP, as a browser does, for the verification.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::protocol::Group;

/// The paths of the pages that are read.
const OVERVIEW: &str = "/console/overview";
const GROUPS: &str = "/console/groups";
/// The maximum size of a response.
const MAX_BYTES: u64 = 4 * 1024 * 1024;
/// The timeout of a response.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Returns the address of the console, for display.
pub(crate) fn url(port: u16) -> String {
    format!("http://127.0.0.1:{port}/console/")
}

/// The console's pages from the middle of the story.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConsolePages {
    pub(crate) overview: Page,
    pub(crate) groups: Page,
    /// The fingerprints of the groups at that time.
    pub(crate) fingerprints: Vec<String>,
}

/// A page as the console returned it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Page {
    /// The HTTP status, or 0 without a readable response.
    pub(crate) status: u16,
    /// The document, or the reason why there is none.
    pub(crate) text: String,
}

impl ConsolePages {
    /// Reads the overview and the groups.
    pub(crate) async fn read(port: u16, groups: &[Group]) -> Self {
        Self {
            overview: get(port, OVERVIEW).await,
            groups: get(port, GROUPS).await,
            fingerprints: groups.iter().map(|group| group.id.clone()).collect(),
        }
    }
}

/// Fetches a page. A failure returns a page without a status, which the verification reports.
async fn get(port: u16, path: &str) -> Page {
    let fetched = tokio::time::timeout(TIMEOUT, fetch(port, path)).await;
    match fetched.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
        Ok(page) => page,
        Err(error) => Page { status: 0, text: error.to_string() },
    }
}

/// Sends an HTTP/1.0 request, so that the response ends with the connection and is not chunked.
async fn fetch(port: u16, path: &str) -> io::Result<Page> {
    let mut stream = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).await?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n\r\n").as_bytes()).await?;
    let mut response = Vec::new();
    stream.take(MAX_BYTES).read_to_end(&mut response).await?;
    parse(&String::from_utf8_lossy(&response)).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn parse(response: &str) -> Option<Page> {
    let (head, text) = response.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some(Page { status, text: text.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_has_a_status_and_a_document() {
        let page = parse("HTTP/1.0 200 OK\r\ncontent-type: text/html\r\n\r\n<p>\r\n\r\n</p>").unwrap();
        assert_eq!((page.status, page.text.as_str()), (200, "<p>\r\n\r\n</p>"));
        assert_eq!(parse("HTTP/1.0 200 OK\r\ncontent-type: text/html\r\n"), None);
        assert_eq!(parse("nonsense\r\n\r\n"), None);
    }
}
