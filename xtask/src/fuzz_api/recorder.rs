//! Forwards connections to a server, and looks for secrets in what it answers.
//!
//! Bytes are passed on as they are, so that nothing depends on the client or on the kind of a response: headers, errors and streams
//! are looked at as well. What a request itself says is no secret in its response.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// The bytes that are read at a time.
const BUFFER: usize = 64 * 1024;

/// A running recorder.
pub(super) struct Recorder {
    /// Where it listens.
    pub(super) address: String,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

struct Shared {
    server: String,
    secrets: Vec<Secret>,
    is_stopping: AtomicBool,
    findings: Mutex<Findings>,
}

/// What was found in the responses.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// The number of responses.
    pub(super) responses: u64,
    /// The secrets in them, each with the first request that it answered.
    pub(super) secrets: BTreeMap<String, String>,
    /// A request whose response could not be read, because it was compressed.
    pub(super) unreadable: Option<String>,
}

/// A text that must not be in a response.
struct Secret {
    text: String,
    forms: Vec<String>,
}

impl Secret {
    fn new(text: String) -> Self {
        let forms = forms(&text);
        Self { text, forms }
    }

    fn is_in(&self, text: &str) -> bool {
        self.forms.iter().any(|form| text.contains(form.as_str()))
    }
}

/// A request, and the response as far as it has arrived.
#[derive(Default)]
struct Exchange {
    request: Vec<u8>,
    response: Vec<u8>,
}

impl Recorder {
    /// Listens at a free port for connections to this server, and looks for these texts.
    pub(super) fn start(server: &str, secrets: impl IntoIterator<Item = String>) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        let shared = Arc::new(Shared {
            server: server.to_owned(),
            secrets: secrets.into_iter().map(Secret::new).collect(),
            is_stopping: AtomicBool::new(false),
            findings: Mutex::default(),
        });
        let accepting = thread::spawn({
            let shared = shared.clone();
            move || accept(&listener, &shared)
        });
        Ok(Self { address, shared, accepting })
    }

    /// Waits for the end of all connections, and returns what was found. Clients must have closed theirs.
    ///
    /// # Errors
    /// When the recorder itself failed.
    pub(super) fn finish(self) -> Result<Findings, String> {
        self.shared.is_stopping.store(true, Ordering::SeqCst);
        // Wakes the thread that waits for connections.
        TcpStream::connect(&self.address).map_err(|error| format!("the recorder is gone: {error}"))?;
        self.accepting.join().map_err(|_| "the recorder panicked".to_owned())?;
        Ok(std::mem::take(&mut *lock(&self.shared.findings)))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    let mut connections = Vec::new();
    for client in listener.incoming() {
        if shared.is_stopping.load(Ordering::SeqCst) {
            break;
        }
        let Ok(client) = client else { continue };
        let shared = shared.clone();
        connections.push(thread::spawn(move || forward(&client, &shared)));
    }
    for connection in connections {
        // A connection that fails closes: its client reports that.
        let _ = connection.join();
    }
}

/// Passes on a connection until one side closes it.
fn forward(client: &TcpStream, shared: &Arc<Shared>) -> io::Result<()> {
    let server = TcpStream::connect(&shared.server)?;
    let exchange = Arc::new(Mutex::new(Exchange::default()));
    let requests = thread::spawn({
        let (from, to) = (client.try_clone()?, server.try_clone()?);
        let (exchange, shared) = (exchange.clone(), shared.clone());
        move || copy(from, to, |bytes| shared.record_request(&exchange, bytes))
    });
    copy(server.try_clone()?, client.try_clone()?, |bytes| {
        lock(&exchange).response.extend_from_slice(bytes);
    });
    // Ends the other direction, too; what is closed already is no error.
    let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
    let _ = requests.join();
    shared.scan(&lock(&exchange));
    Ok(())
}

/// Copies bytes to the end, and records them before they are passed on.
fn copy(mut from: TcpStream, mut to: TcpStream, mut record: impl FnMut(&[u8])) {
    let mut buffer = vec![0; BUFFER];
    loop {
        let bytes = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => &buffer[..read],
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        record(bytes);
        if to.write_all(bytes).is_err() {
            break;
        }
    }
    // The other side learns of the end.
    let _ = to.shutdown(Shutdown::Write);
}

impl Shared {
    fn record_request(&self, exchange: &Mutex<Exchange>, bytes: &[u8]) {
        let mut exchange = lock(exchange);
        // The next request of a connection comes after the response to the last one.
        if !exchange.response.is_empty() {
            self.scan(&exchange);
            *exchange = Exchange::default();
        }
        exchange.request.extend_from_slice(bytes);
    }

    fn scan(&self, exchange: &Exchange) {
        if exchange.response.is_empty() {
            return;
        }
        let response = without_chunk_sizes(&exchange.response);
        let response = String::from_utf8_lossy(&response);
        let request = || {
            let line = exchange.request.split(|byte| *byte == b'\r').next().unwrap_or_default();
            String::from_utf8_lossy(line).into_owned()
        };
        let found: Vec<&Secret> = self.secrets.iter().filter(|secret| secret.is_in(&response)).collect();
        let said = if found.is_empty() { String::new() } else { said(&exchange.request) };
        let mut findings = lock(&self.findings);
        findings.responses += 1;
        if is_encoded(&exchange.response) {
            findings.unreadable.get_or_insert_with(request);
        }
        for secret in found.into_iter().filter(|secret| !secret.is_in(&said)) {
            findings.secrets.entry(secret.text.clone()).or_insert_with(request);
        }
    }
}

/// Returns `true` if the body of a response is compressed.
fn is_encoded(response: &[u8]) -> bool {
    let end = response.windows(4).position(|part| part == b"\r\n\r\n").unwrap_or(response.len());
    let head = String::from_utf8_lossy(&response[..end]).to_ascii_lowercase();
    head.lines().any(|line| line.starts_with("content-encoding:"))
}

/// What a request says, in plain text. Its token is part of no response, although the request has it.
fn said(request: &[u8]) -> String {
    let text = String::from_utf8_lossy(request);
    let lines = text.split('\n').filter(|line| !line.to_ascii_lowercase().starts_with("authorization:"));
    let text = lines.collect::<Vec<_>>().join("\n");
    format!("{text}\n{}", percent_decoded(&text))
}

fn percent_decoded(text: &str) -> String {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, others)) = rest.split_first() {
        let digits = others.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match byte.filter(|_| *first == b'%') {
            Some(byte) => {
                decoded.push(byte);
                rest = &others[2..];
            }
            None => {
                decoded.push(*first);
                rest = others;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

/// Removes the sizes of chunks, which may be in the middle of a text.
fn without_chunk_sizes(response: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(response.len());
    let mut rest = response;
    while let Some((first, others)) = rest.split_first() {
        match chunk_size(rest) {
            Some(length) => rest = &rest[length..],
            None => {
                text.push(*first);
                rest = others;
            }
        }
    }
    text
}

/// The length of a line with nothing but the size of a chunk, with the end of the line before it, at the start of a text.
fn chunk_size(text: &[u8]) -> Option<usize> {
    let line = text.strip_prefix(b"\r\n")?;
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    (digits > 0 && line[digits..].starts_with(b"\r\n")).then_some(digits + 4)
}

/// A text, and the parts that are in every base64 text of something that contains it.
fn forms(text: &str) -> Vec<String> {
    let mut forms = vec![text.to_owned()];
    for before in 0..3 {
        let bytes = [&b"   "[..before], text.as_bytes()].concat();
        // A character has six bits: the first ones depend on what comes before, and the last one on what follows.
        let (first, end) = ((before * 8).div_ceil(6), bytes.len() * 8 / 6);
        let encoded = base64(&bytes)[first..end].to_owned();
        forms.push(encoded.replace('+', "-").replace('/', "_"));
        forms.push(encoded);
    }
    forms.sort();
    forms.dedup();
    forms
}

/// Encodes bytes in base64, the last ones as if zeros followed.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = bytes.chunks(3).flat_map(|part| {
        let byte = |index: usize| u32::from(part.get(index).copied().unwrap_or(0));
        let bits = (byte(0) << 16) | (byte(1) << 8) | byte(2);
        [18, 12, 6, 0].map(|shift| char::from(ALPHABET[((bits >> shift) & 63) as usize]))
    });
    digits.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends requests over one connection to a server that answers with these responses, in turn. Returns what is found.
    fn recorded(exchanges: &[(&str, &str)]) -> Findings {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap().to_string();
        let secrets = ["card.secret", "lz_token"].map(str::to_owned);
        let recorder = Recorder::start(&server, secrets).unwrap();
        let serving = thread::spawn({
            let exchanges: Vec<(usize, String)> =
                exchanges.iter().map(|(request, response)| (request.len(), (*response).to_owned())).collect();
            move || {
                let (mut stream, _) = listener.accept().unwrap();
                for (length, response) in exchanges {
                    stream.read_exact(&mut vec![0; length]).unwrap();
                    stream.write_all(response.as_bytes()).unwrap();
                }
            }
        });
        let mut client = TcpStream::connect(&recorder.address).unwrap();
        for (request, response) in exchanges {
            client.write_all(request.as_bytes()).unwrap();
            let mut received = vec![0; response.len()];
            client.read_exact(&mut received).unwrap();
            assert_eq!(String::from_utf8(received).unwrap(), *response, "bytes are passed on as they are");
        }
        drop(client);
        serving.join().unwrap();
        recorder.finish().unwrap()
    }

    #[test]
    fn a_secret_is_found_wherever_it_is() {
        for response in [
            "HTTP/1.1 200 OK\r\n\r\n{\"card\":\"card.secret\"}",
            "HTTP/1.1 404 Not Found\r\nx-note: card.secret\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\n5\r\n card\r\n7\r\n.secret\r\n0\r\n\r\n",
            // "1 letters card.secret:9"
            "HTTP/1.1 200 OK\r\n\r\n{\"next\":\"MSBsZXR0ZXJzIGNhcmQuc2VjcmV0Ojk\"}",
        ] {
            let findings = recorded(&[
                ("GET /a HTTP/1.1\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n{}"),
                ("GET /b HTTP/1.1\r\n\r\n", response),
            ]);
            let found: Vec<(&str, &str)> = findings
                .secrets
                .iter()
                .map(|(secret, request)| (secret.as_str(), request.as_str()))
                .collect();
            assert_eq!(found, [("card.secret", "GET /b HTTP/1.1")], "{response}");
            assert_eq!((findings.responses, findings.unreadable), (2, None));
        }
    }

    #[test]
    fn what_a_request_says_is_no_secret_but_its_token_is() {
        let echo = "HTTP/1.1 404 Not Found\r\n\r\nno card.secret";
        for request in ["GET /card%2Esecret HTTP/1.1\r\n\r\n", "PUT / HTTP/1.1\r\n\r\n\"card.secret\""] {
            assert!(recorded(&[(request, echo)]).secrets.is_empty(), "{request}");
        }
        let request = "GET / HTTP/1.1\r\nAuthorization: Bearer lz_token\r\n\r\n";
        let findings = recorded(&[(request, "HTTP/1.1 401 Unauthorized\r\n\r\nwrong: lz_token")]);
        assert_eq!(findings.secrets.into_keys().collect::<Vec<_>>(), ["lz_token"]);
    }

    #[test]
    fn a_response_that_cannot_be_read_is_reported() {
        let findings =
            recorded(&[("GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\nx")]);
        assert_eq!(findings.unreadable.as_deref(), Some("GET / HTTP/1.1"));
    }

    #[test]
    fn a_secret_is_known_in_base64_at_every_place() {
        let secret = Secret::new("card.secret".to_owned());
        for before in ["", "1", "12", "123"] {
            assert!(secret.is_in(&base64(format!("{before}card.secret and more").as_bytes())), "{before}");
        }
        assert!(!secret.is_in(&base64(b"card secret")));
    }
}
