//! Processes that work on one store at the same time: this program, started again as each of them.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

use lazaret_core::Store;
use lazaret_engine::Options;
use tokio_util::sync::CancellationToken;

use crate::consumer::consumer;
use crate::core::options;
use crate::operation::nothing;
use crate::source::Plan;

/// One process of a fleet.
pub(crate) struct Member {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Member {
    /// Starts this program with these arguments.
    pub(crate) fn start(arguments: &[&str]) -> Result<Self, String> {
        let program =
            std::env::current_exe().map_err(|error| format!("failed to find this program: {error}"))?;
        let mut process = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("failed to start a process: {error}"))?;
        let (input, output) = (process.stdin.take(), process.stdout.take());
        let (Some(input), Some(output)) = (input, output) else {
            return Err("the process has no pipes".into());
        };
        Ok(Self { process, input, output: BufReader::new(output) })
    }

    /// Waits until it says this word.
    pub(crate) fn hear(&mut self, word: &str) -> Result<(), String> {
        let mut line = String::new();
        self.output.read_line(&mut line).map_err(|error| error.to_string())?;
        if line.trim() == word { Ok(()) } else { Err(format!("the process said {line:?}, not {word}")) }
    }

    /// Says a word to it.
    pub(crate) fn say(&mut self, word: &str) -> Result<(), String> {
        writeln!(self.input, "{word}").map_err(|error| error.to_string())
    }

    /// Closes its input, which ends it.
    pub(crate) fn end(self) -> Result<(), String> {
        let Self { mut process, input, .. } = self;
        drop(input);
        let status = process.wait().map_err(|error| error.to_string())?;
        if status.success() { Ok(()) } else { Err(format!("the process ended with {status}")) }
    }
}

/// Runs a consumer on this store, in a process of a fleet, until the input of the process has a line or ends.
pub(crate) async fn drain<S: Store + 'static>(store: &Arc<S>) {
    let run = Options { until_idle: false, ..options() };
    let consumer = consumer(&Plan::uniform(0, 1), store, run, nothing);
    let drain = CancellationToken::new();
    let running = tokio::spawn(consumer.run(drain.clone()));
    wait_for_line().await;
    drain.cancel();
    running.await.expect("the engine does not panic").expect("the engine ends without an error");
}

/// Waits for a line, or for the end of the input.
pub(crate) async fn wait_for_line() {
    let read = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
    let _ = read.await.expect("reading does not panic");
}
