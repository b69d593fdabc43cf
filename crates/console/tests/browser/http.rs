//! A blocking HTTP client for a few small requests to this machine.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

/// The timeout of a request. A browser that starts on a busy machine takes long.
const TIMEOUT: Duration = Duration::from_secs(240);

/// A response.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Response {
    /// Returns the first value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// Sends a request.
pub(crate) fn send(
    address: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> std::io::Result<Response> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut request = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n");
    for (name, value) in headers {
        request += &format!("{name}: {value}\r\n");
    }
    request += &format!("content-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes())?;
    receive(BufReader::new(stream))
}

/// Reads a response up to its `Content-Length`, because not every server closes the connection.
fn receive(mut stream: impl BufRead) -> std::io::Result<Response> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let wrong = || std::io::Error::other("not a response");
    let status = line.split_whitespace().nth(1).and_then(|status| status.parse().ok()).ok_or_else(wrong)?;
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let mut response = Response { status, headers, body: String::new() };
    match response.header("content-length").and_then(|length| length.parse().ok()) {
        Some(length) => {
            let mut body = vec![0; length];
            stream.read_exact(&mut body)?;
            response.body = String::from_utf8_lossy(&body).into_owned();
        }
        None => {
            let mut body = Vec::new();
            stream.read_to_end(&mut body)?;
            response.body = String::from_utf8_lossy(&body).into_owned();
        }
    }
    Ok(response)
}
