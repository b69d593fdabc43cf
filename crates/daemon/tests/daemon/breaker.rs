//! A handler that is down for a while.

use std::io::Write;
use std::process::{Child, Command, Stdio};

use lazaret_port_testkit::free_port;

use crate::support::{Folder, event, get};

/// A handler over HTTP that is down until it is told, and writes down when a request begins and ends.
const HANDLER: &str = r#"
import os, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
log = os.open("requests.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        os.write(log, f'begin {self.headers["ce-id"]} {self.headers["lazaret-attempt"]}\n'.encode())
        self.rfile.read(int(self.headers["content-length"] or 0))
        os.write(log, f'end {self.headers["ce-id"]}\n'.encode())
        self.send_response(204)
        self.end_headers()
    def log_message(self, *arguments):
        pass
sys.stdin.readline()
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"#;

struct Handler(Child);

impl Drop for Handler {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn while_the_handler_is_down_attempts_are_not_burnt_and_its_return_is_not_flooded() {
    // I4, I9
    let folder = Folder::new();
    let port = free_port();
    let config = format!(
        "
listen: 127.0.0.1:0
store: sqlite:lazaret.db
consumers:
  shop:
    source: {{ file: {{ path: events.jsonl }} }}
    handler: {{ http: {{ url: 'http://127.0.0.1:{port}/' }} }}
    concurrency: 8
    retry: {{ max-attempts: 5, initial-delay: 50ms, max-delay: 100ms, hold: 10s }}
    breaker: {{ failures: 5, window: 10s, open-for: 500ms, probes: 2 }}
"
    );
    folder.write("lazaret.yaml", &config);
    folder.write("handler.py", HANDLER);
    let messages = 200;
    let lines: String = (0..messages).map(|n| event(n, &format!("k{}", n % 20), "fine")).collect();
    folder.write("events.jsonl", &lines);
    let handler = Command::new("python3")
        .args(["handler.py", &port.to_string()])
        .current_dir(folder.path("."))
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut handler = Handler(handler);
    let mut daemon = folder.start(&["run", "--until-idle"]);
    let address = daemon.address();
    // The breaker opens, probes, and opens again, more often than there are attempts for a message.
    daemon.logs("circuit breaker opened", 8);
    let (_, status) = get(&address, "/v1/status");
    assert!(status.contains("\"dead\":0") && status.contains("\"handled\":0"), "{status}");
    // Long before a message that is probed over and over has used up its attempts.
    handler.0.stdin.take().unwrap().write_all(b"up\n").unwrap();
    assert_eq!(daemon.wait().code(), Some(0), "{}", folder.read("stderr.log"));
    assert!(folder.open_letters().is_empty());
    let log = folder.read("requests.log");
    let mut handled: Vec<_> = log.lines().filter_map(|line| line.strip_prefix("end ")).collect();
    handled.sort_unstable();
    handled.dedup();
    assert_eq!(handled.len(), messages);
    // No third request before two probes were answered.
    let third = log.lines().enumerate().filter(|(_, line)| line.starts_with("begin")).nth(2).unwrap().0;
    let ends = log.lines().take(third).filter(|line| line.starts_with("end")).count();
    assert_eq!(ends, 2, "{}", log.lines().take(8).collect::<Vec<_>>().join("; "));
}
