//! What a daemon tells of itself: a scrape, signed webhooks, spans by OTLP. All of it from outside, by real requests.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lazaret_core::Timestamp;
use lazaret_telemetry::alerts::signature;
use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Folder, WORKER, ask, event, get, wait_for};

const CONFIG: &str = "
listen: 127.0.0.1:0
store: sqlite:lazaret.db
TELEMETRY
consumers:
  shop:
    source: { inbox: {} }
    handler: { command: { program: [python3, handler.py], mode: lines, workers: 1 } }
    breaker: off
    retry: { max-attempts: 3, initial-delay: 5ms, max-delay: 20ms, hold: 1s }
    dead-letter: { owner: shop-team, alert-on-first: true }
";

/// A request as it came.
#[derive(Clone, Debug)]
struct Got {
    path: String,
    /// By name in small letters.
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Got {
    fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(given, _)| given == name);
        found.map_or_else(|| panic!("no {name} in {self:?}"), |(_, value)| value.as_str())
    }
}

/// A server that keeps what it gets. It goes with the test.
struct Receiver {
    address: SocketAddr,
    got: Arc<Mutex<Vec<Got>>>,
}

impl Receiver {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, got) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<Got>>>::default());
        let kept = got.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let kept = kept.clone();
                std::thread::spawn(move || while take(&stream, &kept).is_some() {});
            }
        });
        Self { address, got }
    }

    fn all(&self) -> Vec<Got> {
        self.got.lock().unwrap().clone()
    }
}

/// Reads one request and answers it; `None` at the end of the connection.
fn take(mut stream: &TcpStream, kept: &Mutex<Vec<Got>>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let path = line.split(' ').nth(1)?.to_owned();
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.push((name.to_ascii_lowercase(), value.to_owned()));
    }
    let length = headers.iter().find(|(name, _)| name == "content-length")?.1.parse().ok()?;
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    kept.lock().unwrap().push(Got { path, headers, body });
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").ok()
}

fn folder(telemetry: &str) -> Folder {
    let folder = Folder::new();
    folder.write("lazaret.yaml", &CONFIG.replace("TELEMETRY", telemetry));
    folder.write("handler.py", WORKER);
    folder
}

fn post(address: &str, n: usize, kind: &str, headers: &str) {
    let headers = format!(
        "lazaret-id: e-{n}\r\nlazaret-key: key-of-a-person-{n}\r\ncontent-type: application/json\r\n{headers}"
    );
    let body = format!("{{\"n\": {n}, \"kind\": \"{kind}\", \"name\": \"payload-of-a-person\"}}");
    assert_eq!(ask(address, "POST", "/v1/inbox/shop", &headers, &body).0, 202);
}

#[test]
fn a_scrape_shows_what_happened_and_nothing_of_a_message() {
    let folder = folder("");
    let mut daemon = folder.start(&["run"]);
    let address = daemon.address();
    for (n, kind) in ["fine", "flaky", "poison", "fine"].into_iter().enumerate() {
        post(&address, n, kind, "");
    }
    let scrape = || get(&address, "/metrics");
    let shows = |line: &str| scrape().1.lines().any(|known| known == line);
    wait_for("what is settled", || shows("lazaret_handled_total{consumer=\"shop\"} 3").then_some(()));
    wait_for("the letter", || {
        shows("lazaret_letters{consumer=\"shop\",queue=\"shop/shop\",state=\"dead\"} 1").then_some(())
    });
    let (status, text) = scrape();
    assert_eq!(status, 200);
    for line in [
        "# TYPE lazaret_handled_total counter",
        "# TYPE lazaret_attempt_seconds histogram",
        "lazaret_attempt_seconds_count{consumer=\"shop\",queue=\"shop/shop\"} 6",
        "lazaret_retry_attempts_total{consumer=\"shop\",queue=\"shop/shop\",attempt=\"2\"} 1",
        "lazaret_retry_attempts_total{consumer=\"shop\",queue=\"shop/shop\",attempt=\"3\"} 1",
        "lazaret_letters_total{consumer=\"shop\",queue=\"shop/shop\",state=\"dead\",reason=\"POISONED\"} 1",
        "lazaret_consumer_info{consumer=\"shop\",owner=\"shop-team\"} 1",
        "lazaret_paused{consumer=\"shop\"} 0",
        "lazaret_inflight{consumer=\"shop\"} 0",
        "# TYPE process_cpu_seconds_total counter",
        "# TYPE process_open_fds gauge",
    ] {
        assert!(text.lines().any(|known| known == line), "no {line} in:\n{text}");
    }
    for word in ["payload-of", "key-of", "never works", "e-2"] {
        assert!(!text.contains(word), "{word} in:\n{text}");
    }
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0));
}

#[test]
fn the_log_has_the_head_of_the_audit_as_the_api_shows_it() {
    let folder = folder("");
    let mut daemon = folder.start(&["run"]);
    let address = daemon.address();
    let json = "content-type: application/json\r\n";
    let (status, said) =
        ask(&address, "POST", "/v1/consumers/shop/pause", json, "{\"reason\": \"maintenance\"}");
    assert_eq!(status, 200, "{said}");
    let check: Value = serde_json::from_str(&get(&address, "/v1/audit/verify").1).unwrap();
    let (number, hash) = (check["intact"].as_u64().unwrap(), check["hash"].as_str().unwrap());
    assert!(number > 0 && hash.starts_with("hmac-sha256:"), "{check}");
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0));
    let log = folder.read("stderr.log");
    let is_head = |line: &str| line.contains("audit head") && line.contains(&format!("number={number}"));
    let line = log.lines().find(|line| is_head(line)).unwrap_or_else(|| panic!("no head in:\n{log}"));
    assert!(line.contains(hash), "{line}");
}

#[test]
fn a_webhook_gets_one_signed_notice_for_a_new_kind_of_failure() {
    let receiver = Receiver::start();
    let alerts = format!(
        "alerts: {{ webhooks: [{{ url: 'http://{}/hook', secret: '${{SECRET:-secret-of-the-hook}}' }}] }}",
        receiver.address
    );
    let folder = folder(&alerts);
    let mut daemon = folder.start(&["run"]);
    let address = daemon.address();
    for n in 0..3 {
        post(&address, n, "poison", "");
    }
    wait_for("three letters", || get(&address, "/v1/status").1.contains("\"dead\":3").then_some(()));
    wait_for("a notice", || (!receiver.all().is_empty()).then_some(()));
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0));
    let got = receiver.all();
    assert_eq!(got.len(), 1, "{got:?}");
    assert_eq!(got[0].path, "/hook");
    let signed = got[0].header(signature::HEADER);
    assert!(signature::verify(signed, b"secret-of-the-hook", &got[0].body), "{signed}");
    assert!(documented_check_accepts(&folder, "secret-of-the-hook", signed, &got[0].body));
    assert!(!documented_check_accepts(&folder, "another", signed, &got[0].body));
    let notice: Value = serde_json::from_slice(&got[0].body).unwrap();
    let fact =
        |name: &str| notice[name].as_str().unwrap_or_else(|| panic!("no {name} in {notice}")).to_owned();
    assert_eq!((fact("event"), fact("status")), ("first-letter".to_owned(), "firing".to_owned()));
    assert_eq!((fact("consumer"), fact("owner")), ("shop".to_owned(), "shop-team".to_owned()));
    assert_eq!((fact("queue"), fact("reason")), ("shop/shop".to_owned(), "POISONED".to_owned()));
    for word in ["payload-of", "key-of", "never works"] {
        assert!(!notice.to_string().contains(word), "{word} in {notice}");
    }
    let log = folder.read("stderr.log");
    assert!(!log.contains("secret-of-the-hook") && !log.contains("/hook"), "{log}");
}

#[test]
fn a_webhook_is_told_before_letters_expire_and_when_they_have() {
    let receiver = Receiver::start();
    let alerts = format!(
        "alerts: {{ thresholds: {{ expires-within: 4h }}, \
         webhooks: [{{ url: 'http://{}/hook', events: [letters-expiring, letters-expired] }}] }}",
        receiver.address
    );
    let folder = folder(&alerts);
    let mut daemon = folder.start(&["run"]);
    let address = daemon.address();
    post(&address, 0, "poison", "");
    wait_for("the letter", || get(&address, "/v1/status").1.contains("\"dead\":1").then_some(()));
    let letters: Value = serde_json::from_str(&get(&address, "/v1/letters").1).unwrap();
    let path = format!("/v1/letters/{}/expiry", letters["letters"][0]["id"].as_str().unwrap());
    let set_expiry = |at: Timestamp| {
        let body = format!("{{\"expires-at\": \"{at}\", \"reason\": \"nobody needs it later\"}}");
        let (status, body) = ask(&address, "PUT", &path, "content-type: application/json\r\n", &body);
        assert_eq!(status, 200, "{body}");
    };
    let told = |event: &str| {
        let read = |got: Got| -> Value { serde_json::from_slice(&got.body).unwrap() };
        wait_for(event, || receiver.all().into_iter().map(read).find(|notice| notice["event"] == event))
    };
    set_expiry(Timestamp::now() + Duration::from_secs(3 * 3600));
    let notice = told("letters-expiring");
    assert_eq!(notice["status"], "firing");
    assert_eq!((&notice["queue"], &notice["owner"]), (&"shop/shop".into(), &"shop-team".into()));
    assert_eq!(notice["limit"], 14400.0);
    // It is closed when the consumer starts again, not a minute later.
    set_expiry(Timestamp::now());
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0));
    let daemon = folder.start(&["run"]);
    let notice = told("letters-expired");
    assert_eq!(notice["status"], "firing");
    assert_eq!((&notice["queue"], &notice["count"]), (&"shop/shop".into(), &1.into()));
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0));
}

/// Whether the Python code of the docs takes this request for one of Lazaret.
fn documented_check_accepts(folder: &Folder, secret: &str, signed: &str, body: &[u8]) -> bool {
    let docs = include_str!("../../../../docs/observability.md");
    let (_, code) = docs.split_once("```python\n").unwrap();
    let (code, _) = code.split_once("```").unwrap();
    let call = "import sys\nbody = open('body', 'rb').read()\n\
                sys.exit(0 if is_from_lazaret(sys.argv[1].encode(), sys.argv[2], body) else 3)\n";
    folder.write("check.py", &format!("{code}\n{call}"));
    std::fs::write(folder.path("body"), body).unwrap();
    let mut python = Command::new("python3");
    python.args(["check.py", secret, signed]).current_dir(folder.path(""));
    let code = python.status().unwrap().code();
    assert!(matches!(code, Some(0 | 3)), "the code of the docs does not run: {code:?}");
    code == Some(0)
}

#[test]
fn alert_on_first_can_be_switched_off() {
    for keys in ["alert-on-first: false", "alert-on-first: false, enabled: false"] {
        let receiver = Receiver::start();
        let alerts = format!(
            "alerts: {{ webhooks: [{{ url: 'http://{}/hook', events: [first-letter, paused] }}] }}",
            receiver.address
        );
        let folder = folder(&alerts);
        let silent = folder.read("lazaret.yaml").replace("alert-on-first: true", keys);
        folder.write("lazaret.yaml", &silent);
        let mut daemon = folder.start(&["run"]);
        let address = daemon.address();
        post(&address, 0, "poison", "");
        wait_for("the letter", || get(&address, "/v1/status").1.contains("\"dead\":1").then_some(()));
        let pause = "{\"reason\": \"to have something told\"}";
        let path = "/v1/consumers/shop/pause";
        let (status, body) = ask(&address, "POST", path, "content-type: application/json\r\n", pause);
        assert_eq!(status, 200, "{body}");
        wait_for("a notice", || (!receiver.all().is_empty()).then_some(()));
        let notice: Value = serde_json::from_slice(&receiver.all()[0].body).unwrap();
        assert_eq!(notice["event"], "paused", "the letter came before and was not told");
        daemon.signal(Signal::TERM);
        daemon.wait();
    }
}

#[test]
fn the_first_letter_that_is_kept_without_dead_letters_is_told() {
    let receiver = Receiver::start();
    let alerts = format!(
        "alerts: {{ webhooks: [{{ url: 'http://{}/hook', events: [first-letter, paused] }}] }}",
        receiver.address
    );
    let folder = folder(&alerts);
    let disabled = folder.read("lazaret.yaml").replace("alert-on-first: true", "enabled: false");
    folder.write("lazaret.yaml", &disabled);
    let mut daemon = folder.start(&["run"]);
    let address = daemon.address();
    // A failure that is final is discarded, and nobody is told.
    post(&address, 0, "transient", "");
    wait_for("the end of the message", || {
        get(&address, "/v1/audit").1.contains("\"action\":\"skip\"").then_some(())
    });
    // What the handler sends to the dead letters is kept.
    post(&address, 1, "poison", "");
    wait_for("the letter", || get(&address, "/v1/status").1.contains("\"dead\":1").then_some(()));
    let notices = || -> Vec<Value> {
        receiver.all().iter().map(|got| serde_json::from_slice(&got.body).unwrap()).collect()
    };
    wait_for("a notice", || (!notices().is_empty()).then_some(()));
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0));
    let told = notices();
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!((&told[0]["event"], &told[0]["status"]), (&"first-letter".into(), &"firing".into()));
    assert_eq!((&told[0]["reason"], &told[0]["owner"]), (&"POISONED".into(), &"shop-team".into()));
}

#[test]
fn a_webhook_is_told_of_a_consumer_that_failed_for_good_until_it_runs_again() {
    let receiver = Receiver::start();
    let alerts = format!(
        "alerts: {{ webhooks: [{{ url: 'http://{}/hook', events: [consumer-failed] }}] }}",
        receiver.address
    );
    let folder = folder(&alerts);
    let mut daemon = folder.start(&["run"]);
    let address = daemon.address();
    post(&address, 0, "fine", "");
    post(&address, 1, "stop", "");
    wait_for("a notice", || (!receiver.all().is_empty()).then_some(()));
    let notices = || -> Vec<Value> {
        receiver.all().iter().map(|got| serde_json::from_slice(&got.body).unwrap()).collect()
    };
    let fired = notices().remove(0);
    assert_eq!((&fired["event"], &fired["status"]), (&"consumer-failed".into(), &"firing".into()));
    assert_eq!((&fired["consumer"], &fired["owner"]), (&"shop".into(), &"shop-team".into()));
    assert_eq!(fired["severity"], "critical");
    for word in ["payload-of", "key-of", "ENOUGH"] {
        assert!(!fired.to_string().contains(word), "{word} in {fired}");
    }
    // Nobody restarts it but a person.
    daemon.logs("correct the cause and send SIGHUP", 1);
    assert!(get(&address, "/v1/status").1.contains("\"state\":\"failed\""));
    folder.write("handler.py", &WORKER.replace("\"verdict\": \"stop\"", "\"verdict\": \"handled\""));
    daemon.signal(Signal::HUP);
    wait_for("its end", || (notices().len() == 2).then_some(()));
    let resolved = notices().remove(1);
    assert_eq!((&resolved["key"], &resolved["status"]), (&fired["key"], &"resolved".into()));
    wait_for("readiness", || (get(&address, "/readyz").0 == 200).then_some(()));
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0));
}

#[test]
fn a_run_until_idle_tells_of_a_consumer_that_failed_for_good_before_it_ends() {
    let receiver = Receiver::start();
    let hook = format!("url: 'http://{}/hook', events: [consumer-failed]", receiver.address);
    let folder = folder(&format!("alerts: {{ webhooks: [{{ {hook} }}] }}"));
    let file = folder.read("lazaret.yaml").replace("inbox: {}", "file: { path: events.jsonl }");
    folder.write("lazaret.yaml", &file);
    folder.write("events.jsonl", &event(0, "a", "stop"));
    assert_eq!(folder.run(&["run", "--until-idle"]), 1, "{}", folder.read("stderr.log"));
    let got = receiver.all();
    assert_eq!(got.len(), 1, "{got:?}");
    let notice: Value = serde_json::from_slice(&got[0].body).unwrap();
    assert_eq!((&notice["event"], &notice["status"]), (&"consumer-failed".into(), &"firing".into()));
    assert_eq!((&notice["consumer"], &notice["owner"]), (&"shop".into(), &"shop-team".into()));
}

#[cfg(feature = "otlp")]
#[test]
fn attempts_are_spans_of_the_trace_that_the_message_names() {
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
    use prost::Message as _;

    let collector = Receiver::start();
    let folder = folder(&format!("telemetry: {{ otlp-endpoint: 'http://{}' }}", collector.address));
    let mut daemon = folder.start(&["run"]);
    let address = daemon.address();
    post(&address, 0, "flaky", "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n");
    let handled = || get(&address, "/metrics").1.contains("lazaret_handled_total{consumer=\"shop\"} 1");
    wait_for("the message", || handled().then_some(()));
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0));
    let mut spans = Vec::new();
    for got in collector.all() {
        assert_eq!((got.path.as_str(), got.header("content-type")), ("/v1/traces", "application/x-protobuf"));
        assert!(!got.body.windows(10).any(|window| window == b"payload-of"));
        let decoded = ExportTraceServiceRequest::decode(got.body.as_slice()).unwrap();
        spans.extend(
            decoded.resource_spans.into_iter().flat_map(|all| all.scope_spans).flat_map(|all| all.spans),
        );
    }
    spans.sort_by_key(|span| span.start_time_unix_nano);
    assert_eq!(spans.len(), 3, "what waits is sent before the end");
    let trace = 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c_u128.to_be_bytes();
    assert!(spans.iter().all(|span| span.trace_id == trace && span.name == "shop"));
    assert!(spans[1..].iter().all(|span| span.links[0].span_id == spans[0].span_id));
}

#[test]
fn the_words_of_failures_are_logged_for_those_who_ask_for_them() {
    for (flag, level, times) in [("true", "info", 1), ("true", "debug", 2), ("false", "debug", 0)] {
        let telemetry = format!("telemetry: {{ log-level: {level}, log-error-messages: {flag} }}");
        let folder = folder(&telemetry);
        let file = folder.read("lazaret.yaml").replace("inbox: {}", "file: { path: events.jsonl }");
        folder.write("lazaret.yaml", &file);
        folder.write("events.jsonl", &event(0, "a", "poison"));
        assert_eq!(folder.run(&["run", "--until-idle"]), 3);
        let log = folder.read("stderr.log");
        assert_eq!(log.matches("never works").count(), times, "{log}");
    }
}
