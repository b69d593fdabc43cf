//! Sends requests: authentication, identity, idempotency keys and the mapping of errors.

use std::error::Error as _;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lazaret_api::{Identity, Problem, Via};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Certificate, ClientBuilder, Method, RequestBuilder, Response, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::lines::Lines;
use crate::error::{Error, Result};

/// The connect timeout.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The response timeout. The server's own timeout is shorter.
pub(super) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
/// The idle timeout of a stream. The server sends a heartbeat every 15 seconds.
const STREAM_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// The most times that a change is sent when no response is received. Its idempotency key prevents duplicates.
const MAX_TRIES: u32 = 3;
/// The largest problem document that is parsed.
const MAX_PROBLEM_BYTES: usize = 256 * 1024;

/// The characters that a path segment may contain unescaped.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A client of one daemon.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
    /// The address as the user wrote it, without a slash at its end.
    address: String,
}

/// The address of a daemon.
enum Address {
    Url(Url),
    /// A Unix socket.
    Socket(PathBuf),
}

/// Escapes a text as one path segment.
pub(super) fn segment(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}

impl Client {
    /// Creates a client of the daemon at this address. It trusts the certificate authorities in `ca_file`, or those of the system.
    ///
    /// # Errors
    /// When the address, the token or the file is invalid.
    pub fn new(url: &str, token: Option<&str>, ca_file: Option<&Path>) -> Result<Self> {
        let (base, socket) = match parse_address(url)? {
            Address::Url(url) => (url, None),
            Address::Socket(path) => (Url::parse("http://localhost").expect("a valid address"), Some(path)),
        };
        let mut headers = HeaderMap::new();
        headers.insert(HeaderName::from_static(Via::HEADER), HeaderValue::from_static(Via::Cli.as_str()));
        if let Ok(name) = HeaderValue::from_bytes(user_at_host().as_bytes()) {
            headers.insert(HeaderName::from_static(Identity::ACTOR_HEADER), name);
        }
        if let Some(token) = token {
            let mut value = HeaderValue::from_str(&format!("Bearer {}", token.trim()))
                .map_err(|_| Error::usage("the token contains invalid characters"))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        // An error means that the provider is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = reqwest::Client::builder()
            .default_headers(headers)
            .user_agent(concat!("lazaret/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(STREAM_IDLE_TIMEOUT)
            // A redirect would send the token to another host.
            .redirect(reqwest::redirect::Policy::none());
        if is_loopback(&base) {
            builder = builder.no_proxy();
        }
        if let Some(path) = ca_file {
            builder = builder.tls_certs_only(authorities(path)?);
        }
        if let Some(path) = socket {
            builder = through_socket(builder, path)?;
        }
        let http = builder
            .build()
            .map_err(|error| Error::Other(format!("cannot create the HTTP client: {error}")))?;
        Ok(Self { http, base, address: url.trim_end_matches('/').to_owned() })
    }

    /// Returns whether requests are sent unencrypted over a network.
    pub fn sends_plaintext(&self) -> bool {
        self.base.scheme() == "http" && !is_loopback(&self.base)
    }

    pub(super) fn request(&self, method: Method, path: &str, query: &[(&str, String)]) -> RequestBuilder {
        let mut url = self.base.clone();
        // The base may have a path, where a proxy serves the daemon below one.
        url.set_path(&format!("{}{path}", self.base.path().trim_end_matches('/')));
        let request = self.http.request(method, url);
        if query.is_empty() { request } else { request.query(query) }
    }

    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str, query: &[(&str, String)]) -> Result<T> {
        let request = self.request(Method::GET, path, query).timeout(RESPONSE_TIMEOUT);
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        self.read(path, response).await
    }

    /// Fetches a document that the daemon sends with success and error statuses alike.
    pub(super) async fn get_any_status<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let request = self.request(Method::GET, path, &[]).timeout(RESPONSE_TIMEOUT);
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        let foreign = Error::NotLazaret { url: self.address.clone(), status: response.status().as_u16() };
        let bytes = response.bytes().await.map_err(|error| self.unreachable(&error))?;
        serde_json::from_slice(&bytes).map_err(|_| foreign)
    }

    pub(super) async fn get_bytes(&self, path: &str) -> Result<bytes::Bytes> {
        let request = self.request(Method::GET, path, &[]).timeout(RESPONSE_TIMEOUT);
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        let response = self.accept(response).await?;
        response.bytes().await.map_err(|error| self.unreachable(&error))
    }

    pub(super) async fn get_lines(&self, path: &str, query: &[(&str, String)]) -> Result<Lines> {
        let request = self.request(Method::GET, path, query).header(ACCEPT, "application/x-ndjson");
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        let response = self.accept(response).await?;
        Ok(Lines::new(response, self.address.clone()))
    }

    /// Asks for lines with a body. It is asked once: every request is recorded.
    pub(super) async fn post_lines<B: Serialize + Sync>(&self, path: &str, body: &B) -> Result<Lines> {
        let body = serde_json::to_vec(body).map_err(|error| Error::Other(error.to_string()))?;
        let request =
            self.request(Method::POST, path, &[]).headers(media_type("application/json")).body(body);
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        Ok(Lines::new(self.accept(response).await?, self.address.clone()))
    }

    /// Sends a change. Every try carries the same idempotency key, so that it is applied once.
    pub(super) async fn change<B, T>(&self, method: Method, path: &str, body: &B) -> Result<T>
    where
        B: Serialize + Sync,
        T: DeserializeOwned,
    {
        let body = serde_json::to_vec(body).map_err(|error| Error::Other(error.to_string()))?;
        let headers = media_type("application/json");
        let response = self.send_change(method, path, &[], headers, body.into(), RESPONSE_TIMEOUT).await?;
        self.read(path, response).await
    }

    pub(super) async fn send_change(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, String)],
        headers: HeaderMap,
        body: bytes::Bytes,
        timeout: Duration,
    ) -> Result<Response> {
        let key = uuid::Uuid::now_v7().to_string();
        let mut tries = 1;
        loop {
            let request = self
                .request(method.clone(), path, query)
                .header("idempotency-key", &key)
                .headers(headers.clone())
                .timeout(timeout)
                .body(body.clone());
            match request.send().await {
                Ok(response) => return self.accept(response).await,
                // The request was never sent.
                Err(error) if error.is_connect() && tries == 1 => return Err(self.unreachable(&error)),
                Err(error) if tries >= MAX_TRIES => return Err(Error::NoResponse { why: reason(&error) }),
                Err(_) => tries += 1,
            }
            tokio::time::sleep(Duration::from_millis(200) * tries).await;
        }
    }

    pub(super) async fn read<T: DeserializeOwned>(&self, path: &str, response: Response) -> Result<T> {
        let response = self.accept(response).await?;
        let bytes = response.bytes().await.map_err(|error| self.unreachable(&error))?;
        serde_json::from_slice(&bytes)
            .map_err(|error| Error::InvalidResponse { path: path.to_owned(), why: error.to_string() })
    }

    /// Returns the response, or the problem that it contains.
    pub(super) async fn accept(&self, response: Response) -> Result<Response> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let foreign = Error::NotLazaret { url: self.address.clone(), status: status.as_u16() };
        if response.content_length().is_some_and(|length| length > MAX_PROBLEM_BYTES as u64) {
            return Err(foreign);
        }
        let Ok(bytes) = response.bytes().await else { return Err(foreign) };
        match serde_json::from_slice::<Problem>(&bytes) {
            Ok(problem) => Err(Error::Refused { problem: Box::new(problem), query: None }),
            Err(_) => Err(foreign),
        }
    }

    pub(super) fn unreachable(&self, error: &reqwest::Error) -> Error {
        let url = self.address.clone();
        if error.is_connect() && is_refused(error) {
            return Error::ConnectionRefused { url };
        }
        Error::Unreachable { url, why: reason(error) }
    }
}

/// The headers of a body of this media type.
pub(super) fn media_type(media_type: &'static str) -> HeaderMap {
    HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(media_type))])
}

fn parse_address(text: &str) -> Result<Address> {
    let hint = "use an address such as http://127.0.0.1:7117, https://lazaret.example.com or unix:/run/lazaret/api.sock";
    let invalid = |why: String| Error::usage_hint(format!("invalid daemon address {text:?}: {why}"), hint);
    if let Some(path) = text.strip_prefix("unix:") {
        let path = path.strip_prefix("//").unwrap_or(path);
        return match path.is_empty() {
            true => Err(invalid("expected the path of a socket".to_owned())),
            false => Ok(Address::Socket(path.into())),
        };
    }
    let url = Url::parse(text).map_err(|error| invalid(error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(invalid("expected http:// or https:// and a host, or unix: and a path".to_owned()));
    }
    if url.password().is_some() || !url.username().is_empty() {
        return Err(invalid(
            "it contains credentials; pass a token with LAZARET_TOKEN or --token-file".to_owned(),
        ));
    }
    Ok(Address::Url(url))
}

/// Reads the certificates of a PEM file.
fn authorities(path: &Path) -> Result<Vec<Certificate>> {
    let shown = path.display();
    let pem = std::fs::read(path)
        .map_err(|error| Error::io(format!("cannot read the certificate authorities in {shown}"), error))?;
    let found = Certificate::from_pem_bundle(&pem).ok().filter(|found| !found.is_empty());
    found.ok_or_else(|| Error::usage(format!("{shown} contains no certificate in the PEM format")))
}

#[cfg(unix)]
fn through_socket(builder: ClientBuilder, path: PathBuf) -> Result<ClientBuilder> {
    Ok(builder.unix_socket(path))
}

#[cfg(not(unix))]
fn through_socket(_builder: ClientBuilder, _path: PathBuf) -> Result<ClientBuilder> {
    Err(Error::usage("this system has no Unix sockets"))
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Returns who runs this command and where, for the audit log: a claim, which the daemon cannot check. In a container the
/// user often has no name.
fn user_at_host() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let user = user().unwrap_or_else(|| format!("uid-{}", rustix::process::getuid().as_raw()));
    if host.is_empty() { user } else { format!("{user}@{host}") }
}

/// Returns the user's name.
pub(crate) fn user() -> Option<String> {
    let named = |name: &str| std::env::var(name).ok().filter(|user| !user.trim().is_empty());
    named("USER").or_else(|| named("LOGNAME")).or_else(|| named("USERNAME"))
}

fn is_refused(error: &reqwest::Error) -> bool {
    let mut source = error.source();
    while let Some(cause) = source {
        if cause
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
        {
            return true;
        }
        source = cause.source();
    }
    false
}

/// Returns the innermost cause, which is the most specific.
pub(super) fn reason(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "timed out".to_owned();
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_is_escaped_as_one_segment() {
        assert_eq!(segment("g1_4f@shop/mail"), "g1_4f%40shop%2Fmail");
        assert_eq!(segment("../x?y#z"), "..%2Fx%3Fy%23z");
        assert_eq!(segment("op_31"), "op_31");
    }

    #[test]
    fn only_addresses_of_daemons_are_accepted() {
        for invalid in ["", "127.0.0.1:7117", "ftp://x", "http://", "http://ada:secret@x", "unix:"] {
            assert_eq!(Client::new(invalid, None, None).unwrap_err().exit(), crate::Exit::Usage, "{invalid}");
        }
        assert!(!Client::new("http://127.0.0.1:7117", None, None).unwrap().sends_plaintext());
        assert!(!Client::new("http://[::1]:7117", None, None).unwrap().sends_plaintext());
        assert!(!Client::new("https://lazaret.example.com/x", None, None).unwrap().sends_plaintext());
        assert!(!Client::new("unix:/run/lazaret/api.sock", None, None).unwrap().sends_plaintext());
        assert!(Client::new("http://lazaret.example.com", None, None).unwrap().sends_plaintext());
    }

    #[test]
    fn a_daemon_may_be_served_below_a_path() {
        let client = Client::new("https://example.com/lazaret/", None, None).unwrap();
        let request =
            client.request(Method::GET, "/v1/groups/a%2Fb", &[("q", "a b".to_owned())]).build().unwrap();
        assert_eq!(request.url().as_str(), "https://example.com/lazaret/v1/groups/a%2Fb?q=a+b");
    }

    #[test]
    fn a_token_does_not_appear_in_debug_output() {
        let client = Client::new("http://localhost:1", Some("lz_secret"), None).unwrap();
        let request = client.request(Method::GET, "/", &[]);
        assert!(!format!("{client:?} {request:?}").contains("lz_secret"));
    }
}
