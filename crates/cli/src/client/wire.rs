//! Requests and answers: tokens, who asks, idempotency keys, and what errors mean.

use std::error::Error as _;
use std::io;
use std::time::Duration;

use lazaret_api::{Identity, Problem, Via};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, RequestBuilder, Response, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::lines::Lines;
use crate::error::{Error, Result};

/// How long it may take to be connected.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an answer may take. The server gives up earlier.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a server that sends a stream may stay silent. Its heartbeat comes every 15 seconds.
const SILENCE: Duration = Duration::from_secs(60);
/// How often a change is sent at most when no answer comes. Its idempotency key keeps it from happening twice.
const TRIES: u32 = 3;
/// The largest description of a problem that is looked at.
const PROBLEM_LIMIT: usize = 256 * 1024;

/// What stands in a path as it is.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The way to one daemon.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
}

/// One segment of a path, whatever stands in it.
pub(super) fn segment(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}

impl Client {
    /// A client of the daemon at this address.
    ///
    /// # Errors
    /// When the address or the token makes no sense.
    pub fn new(url: &str, token: Option<&str>) -> Result<Self> {
        let base = parse_url(url)?;
        let mut headers = HeaderMap::new();
        headers.insert(HeaderName::from_static(Via::HEADER), HeaderValue::from_static(Via::Cli.as_str()));
        if let Some(name) = user().and_then(|name| HeaderValue::from_bytes(name.as_bytes()).ok()) {
            headers.insert(HeaderName::from_static(Identity::ACTOR_HEADER), name);
        }
        if let Some(token) = token {
            let mut value = HeaderValue::from_str(&format!("Bearer {}", token.trim()))
                .map_err(|_| Error::usage("the token holds characters that no token has"))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        // Only one provider is in the graph; that it was installed before is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = reqwest::Client::builder()
            .default_headers(headers)
            .user_agent(concat!("lazaret/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(SILENCE)
            // A redirect would carry the token elsewhere.
            .redirect(reqwest::redirect::Policy::none());
        if is_loopback(&base) {
            builder = builder.no_proxy();
        }
        let http =
            builder.build().map_err(|error| Error::Other(format!("no client can be made: {error}")))?;
        Ok(Self { http, base })
    }

    /// Whether what is sent can be read on the way.
    pub fn is_exposed(&self) -> bool {
        self.base.scheme() == "http" && !is_loopback(&self.base)
    }

    pub(super) fn request(&self, method: Method, path: &str, query: &[(&str, String)]) -> RequestBuilder {
        let mut url = self.base.clone();
        // The base may have a path of its own, where a proxy puts the daemon below one.
        url.set_path(&format!("{}{path}", self.base.path().trim_end_matches('/')));
        let request = self.http.request(method, url);
        if query.is_empty() { request } else { request.query(query) }
    }

    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str, query: &[(&str, String)]) -> Result<T> {
        let request = self.request(Method::GET, path, query).timeout(ANSWER_TIMEOUT);
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        self.read(path, response).await
    }

    /// An answer that tells the same with any status, but one that others give in the daemon's place.
    pub(super) async fn get_whatever_status<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let request = self.request(Method::GET, path, &[]).timeout(ANSWER_TIMEOUT);
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        let foreign = Error::Foreign { url: self.base.to_string(), status: response.status().as_u16() };
        let bytes = response.bytes().await.map_err(|error| self.unreachable(&error))?;
        serde_json::from_slice(&bytes).map_err(|_| foreign)
    }

    pub(super) async fn get_bytes(&self, path: &str) -> Result<bytes::Bytes> {
        let request = self.request(Method::GET, path, &[]).timeout(ANSWER_TIMEOUT);
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        let response = self.accept(response).await?;
        response.bytes().await.map_err(|error| self.unreachable(&error))
    }

    pub(super) async fn get_lines(&self, path: &str, query: &[(&str, String)]) -> Result<Lines> {
        let request = self.request(Method::GET, path, query).header(ACCEPT, "application/x-ndjson");
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        let response = self.accept(response).await?;
        Ok(Lines::new(response, self.base.to_string()))
    }

    /// Sends a change. The same idempotency key goes with each try, so that it happens once.
    pub(super) async fn change<B, T>(&self, method: Method, path: &str, body: &B) -> Result<T>
    where
        B: Serialize + Sync,
        T: DeserializeOwned,
    {
        let body = serde_json::to_vec(body).map_err(|error| Error::Other(error.to_string()))?;
        let response =
            self.send_change(method, path, &[], "application/json", body.into(), ANSWER_TIMEOUT).await?;
        self.read(path, response).await
    }

    pub(super) async fn send_change(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, String)],
        media_type: &'static str,
        body: bytes::Bytes,
        timeout: Duration,
    ) -> Result<Response> {
        let key = uuid::Uuid::now_v7().to_string();
        let mut tries = 1;
        loop {
            let request = self
                .request(method.clone(), path, query)
                .header("idempotency-key", &key)
                .header(CONTENT_TYPE, media_type)
                .timeout(timeout)
                .body(body.clone());
            match request.send().await {
                Ok(response) => return self.accept(response).await,
                // It was never sent.
                Err(error) if error.is_connect() && tries == 1 => return Err(self.unreachable(&error)),
                Err(error) if tries >= TRIES => return Err(Error::Uncertain { why: reason(&error) }),
                Err(_) => tries += 1,
            }
            tokio::time::sleep(Duration::from_millis(200) * tries).await;
        }
    }

    pub(super) async fn read<T: DeserializeOwned>(&self, path: &str, response: Response) -> Result<T> {
        let response = self.accept(response).await?;
        let bytes = response.bytes().await.map_err(|error| self.unreachable(&error))?;
        serde_json::from_slice(&bytes)
            .map_err(|error| Error::Unreadable { path: path.to_owned(), why: error.to_string() })
    }

    /// The answer, if it is one and no problem.
    pub(super) async fn accept(&self, response: Response) -> Result<Response> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let foreign = Error::Foreign { url: self.base.to_string(), status: status.as_u16() };
        if response.content_length().is_some_and(|length| length > PROBLEM_LIMIT as u64) {
            return Err(foreign);
        }
        let Ok(bytes) = response.bytes().await else { return Err(foreign) };
        match serde_json::from_slice::<Problem>(&bytes) {
            Ok(problem) => Err(Error::Refused { problem: Box::new(problem), query: None }),
            Err(_) => Err(foreign),
        }
    }

    pub(super) fn unreachable(&self, error: &reqwest::Error) -> Error {
        let url = self.base.as_str().trim_end_matches('/').to_owned();
        if error.is_connect() && is_refused(error) {
            return Error::NothingListens { url };
        }
        Error::Unreachable { url, why: reason(error) }
    }
}

fn parse_url(text: &str) -> Result<Url> {
    let hint = "write it as http://127.0.0.1:7117 or https://lazaret.example.com";
    let wrong = |why: String| Error::usage_hint(format!("{text:?} is no address of a daemon: {why}"), hint);
    let url = Url::parse(text).map_err(|error| wrong(error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(wrong("it begins with neither http:// nor https://".to_owned()));
    }
    if url.password().is_some() || !url.username().is_empty() {
        return Err(wrong("it holds a password; give a token with LAZARET_TOKEN or --token-file".to_owned()));
    }
    Ok(url)
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The name of whoever runs this, for the audit of a daemon without tokens.
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

/// The innermost cause, which is the one that says something.
pub(super) fn reason(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "it took too long".to_owned();
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
    fn a_segment_stays_one_segment() {
        assert_eq!(segment("g1_4f@shop/mail"), "g1_4f%40shop%2Fmail");
        assert_eq!(segment("../x?y#z"), "..%2Fx%3Fy%23z");
        assert_eq!(segment("op_31"), "op_31");
    }

    #[test]
    fn only_addresses_of_daemons_are_taken() {
        for wrong in ["", "127.0.0.1:7117", "ftp://x", "http://", "http://ada:secret@x"] {
            assert_eq!(Client::new(wrong, None).unwrap_err().exit(), crate::Exit::Usage, "{wrong}");
        }
        assert!(!Client::new("http://127.0.0.1:7117", None).unwrap().is_exposed());
        assert!(!Client::new("http://[::1]:7117", None).unwrap().is_exposed());
        assert!(!Client::new("https://lazaret.example.com/x", None).unwrap().is_exposed());
        assert!(Client::new("http://lazaret.example.com", None).unwrap().is_exposed());
    }

    #[test]
    fn a_daemon_may_be_below_a_path() {
        let client = Client::new("https://example.com/lazaret/", None).unwrap();
        let request =
            client.request(Method::GET, "/v1/groups/a%2Fb", &[("q", "a b".to_owned())]).build().unwrap();
        assert_eq!(request.url().as_str(), "https://example.com/lazaret/v1/groups/a%2Fb?q=a+b");
    }

    #[test]
    fn a_token_is_not_shown() {
        let client = Client::new("http://localhost:1", Some("lz_secret")).unwrap();
        let request = client.request(Method::GET, "/", &[]);
        assert!(!format!("{client:?} {request:?}").contains("lz_secret"));
    }
}
