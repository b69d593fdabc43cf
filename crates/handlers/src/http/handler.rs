//! Calls a handler over HTTP.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use lazaret_core::handler::{Delivery, Handle, HandlerFuture};
use lazaret_core::{HandlerError, Reason, Verdict};
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::{Client, Method, Request, Url, redirect, retry};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use super::body::{Body, Ending};
use super::cause::{is_invalid_response, root_cause};
use super::options::{HttpOptions, HttpVersion, basic, place};
use super::{request, response, tls};
use crate::attempt_info::{AttemptInfo, Caller};
use crate::error::Error;

/// The maximum timeout. Longer timeouts would overflow clocks.
const TIMEOUT_LIMIT: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// The interval of HTTP/2 keep-alive pings. Without them, all requests on a silently dead connection
/// would time out.
const PING_INTERVAL: Duration = Duration::from_secs(10);

/// A handler over HTTP: one `POST` per attempt.
///
/// Clones share connections and limits. See [`HttpOptions`] for the settings.
///
/// # Broken connections
///
/// If a request was not sent because its pooled connection was closed, it is sent on another connection.
/// A request that the handler may have received is not sent again in the same attempt: the attempt fails
/// (I4), and the retry policy of the consumer decides.
///
/// ```
/// use lazaret_handlers::{HttpHandler, HttpOptions};
/// let handler = HttpHandler::new(HttpOptions::new("http://127.0.0.1:8080/events"))?;
/// assert!(HttpHandler::new(HttpOptions::new("ftp://127.0.0.1/events")).is_err());
/// # let _ = handler;
/// # Ok::<(), lazaret_handlers::Error>(())
/// ```
#[derive(Clone)]
pub struct HttpHandler(Arc<Inner>);

struct Inner {
    client: Client,
    url: Url,
    /// The host and the port, for messages.
    place: String,
    /// The headers of all requests.
    template: HeaderMap,
    timeout: Duration,
    caller: Caller,
    /// One permit per concurrent request.
    permits: Option<Semaphore>,
}

impl HttpHandler {
    /// Checks the options and creates the handler, without a connection.
    pub fn new(options: HttpOptions) -> Result<Self, Error> {
        let mut url = Url::parse(&options.url).map_err(|error| Error::Url(error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(Error::Url(format!("the scheme must be http or https, not {:?}", url.scheme())));
        }
        if options.timeout.is_zero() {
            return Err(Error::Zero { name: "the timeout" });
        }
        if options.max_connections == Some(0) {
            return Err(Error::Zero { name: "the number of connections" });
        }
        let client = client(&options, url.scheme() == "https")?;
        let mut template = request::template(&options.headers, &options.caller)?;
        if let Some(value) = take_credentials(&mut url)? {
            template.entry(AUTHORIZATION).or_insert(value);
        }
        url.set_fragment(None);
        let limit = |n: usize| Semaphore::new(n.min(Semaphore::MAX_PERMITS));
        Ok(Self(Arc::new(Inner {
            client,
            place: place(&url),
            url,
            template,
            timeout: options.timeout.min(TIMEOUT_LIMIT),
            caller: options.caller,
            permits: options.max_connections.map(limit),
        })))
    }
}

impl HttpHandler {
    /// Asks the service for the methods of the path, with `OPTIONS`, and returns the status of the
    /// response. The request carries no message, and services must not act on it (RFC 9110, 9.2.1). Most
    /// services answer 404 for a path that does not exist.
    ///
    /// # Errors
    /// Fails if there is no response within the timeout of the handler.
    pub async fn probe_path(&self) -> Result<u16, HandlerError> {
        let mut request = Request::new(Method::OPTIONS, self.0.url.clone());
        *request.headers_mut() = self.0.template.clone();
        let deadline = Instant::now() + self.0.timeout;
        match timeout_at(deadline, self.0.client.execute(request)).await {
            Ok(Ok(response)) => Ok(response.status().as_u16()),
            Ok(Err(error)) => Err(self.0.unreachable(&error.without_url())),
            Err(_) => Err(self.0.timed_out()),
        }
    }
}

impl Handle for HttpHandler {
    fn handle(&self, delivery: Delivery) -> HandlerFuture {
        let inner = Arc::clone(&self.0);
        Box::pin(async move { inner.call(&delivery).await })
    }
}

impl fmt::Debug for HttpHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpHandler").field("place", &self.0.place).finish_non_exhaustive()
    }
}

impl Inner {
    async fn call(&self, delivery: &Delivery) -> Result<(), HandlerError> {
        let request = self.request(delivery)?;
        let _permit = match &self.permits {
            Some(permits) => Some(permits.acquire().await.expect("the semaphore is never closed")),
            None => None,
        };
        delivery.check_owned()?;
        let deadline = Instant::now() + self.timeout;
        let response = match timeout_at(deadline, self.client.execute(request)).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(self.unreachable(&error.without_url())),
            Err(_) => return Err(self.timed_out()),
        };
        let status = response.status();
        if response::is_plain_success(status, response.headers()) {
            // An incomplete response is not a success (I1).
            return match Body::read(response, 0, deadline).await.ending {
                Ending::Complete | Ending::Truncated => Ok(()),
                Ending::TimedOut => Err(self.timed_out().status(status.as_u16())),
                Ending::Broken(why) => Err(self.incomplete(&why).status(status.as_u16())),
                Ending::Invalid(why) => Err(self.invalid(&why).status(status.as_u16())),
            };
        }
        let headers = response.headers().clone();
        let body = Body::read(response, response::body_limit(&headers), deadline).await;
        response::classify(status, &headers, &body, Timestamp::now(), delivery)
    }

    fn request(&self, delivery: &Delivery) -> Result<Request, HandlerError> {
        let info = AttemptInfo::of(&self.caller, delivery);
        let mut request = Request::new(Method::POST, self.url.clone());
        *request.headers_mut() = request::headers(&self.template, &info)?;
        let payload = info.message.payload.clone().unwrap_or_default();
        *request.body_mut() = Some(payload.into());
        Ok(request)
    }

    fn timed_out(&self) -> HandlerError {
        let text = format!("no response from {} within {:?}", self.place, self.timeout);
        HandlerError::foreign("HTTP timeout", text).reason(Reason::TIMEOUT).suggest(Verdict::Retry)
    }

    fn unreachable(&self, error: &reqwest::Error) -> HandlerError {
        let why = root_cause(error);
        if error.is_timeout() {
            let text = format!("no response from {}: {why}", self.place);
            return HandlerError::foreign("HTTP timeout", text)
                .reason(Reason::TIMEOUT)
                .suggest(Verdict::Retry);
        }
        if error.is_connect() {
            let text = format!("failed to connect to {}: {why}", self.place);
            return HandlerError::foreign("HTTP connection", text)
                .reason(Reason::HANDLER_UNREACHABLE)
                .suggest(Verdict::Retry);
        }
        if is_invalid_response(error) { self.invalid(&why) } else { self.incomplete(&why) }
    }

    fn invalid(&self, why: &str) -> HandlerError {
        let text = format!("invalid response from {}: {why}", self.place);
        HandlerError::foreign("HTTP response", text).reason(Reason::INVALID_RESPONSE).suggest(Verdict::Retry)
    }

    fn incomplete(&self, why: &str) -> HandlerError {
        let text = format!("incomplete response from {}: {why}", self.place);
        HandlerError::foreign("HTTP connection", text)
            .reason(Reason::HANDLER_UNREACHABLE)
            .suggest(Verdict::Retry)
    }
}

fn client(options: &HttpOptions, is_https: bool) -> Result<Client, Error> {
    let mut builder = Client::builder()
        .tls_backend_preconfigured(tls::config(options, is_https)?)
        .redirect(redirect::Policy::none())
        .referer(false)
        // Proxy variables of the environment must not redirect payloads.
        .no_proxy()
        .connect_timeout(options.timeout.min(TIMEOUT_LIMIT))
        .pool_idle_timeout(options.keep_alive)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(PING_INTERVAL)
        .http2_keep_alive_timeout(PING_INTERVAL);
    if let Some(limit) = options.max_connections {
        builder = builder.pool_max_idle_per_host(limit);
    }
    builder = match options.version {
        HttpVersion::Http2 => builder.http2_prior_knowledge(),
        HttpVersion::Http1 => builder.http1_only(),
        HttpVersion::Auto => builder,
    };
    if options.version == HttpVersion::Http1 || (options.version == HttpVersion::Auto && !is_https) {
        // Only HTTP/2 rejects requests in a way that makes a retry safe, and the retry support costs a
        // copy of all headers.
        builder = builder.retry(retry::never());
    }
    builder.build().map_err(|error| Error::Client(root_cause(&error.without_url())))
}

/// Moves the user and the password of a URL into a header value.
fn take_credentials(url: &mut Url) -> Result<Option<HeaderValue>, Error> {
    if url.username().is_empty() && url.password().is_none() {
        return Ok(None);
    }
    let decoded = |text: &str| percent_decoded(text).ok_or_else(wrong_credentials);
    let value = basic(&decoded(url.username())?, &decoded(url.password().unwrap_or_default())?);
    url.set_username("").and_then(|()| url.set_password(None)).map_err(|()| wrong_credentials())?;
    let value = HeaderValue::from_str(&value).map_err(|_| wrong_credentials())?;
    Ok(Some(request::secret(value)))
}

fn wrong_credentials() -> Error {
    Error::Url("invalid user or password".to_owned())
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, behind)) = rest.split_first() {
        rest = behind;
        let digits = behind.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        match digits.filter(|_| first == b'%').and_then(|two| u8::from_str_radix(two, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &behind[2..];
            }
            None => bytes.push(first),
        }
    }
    String::from_utf8(bytes).ok()
}
