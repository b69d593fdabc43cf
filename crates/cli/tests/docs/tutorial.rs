//! Runs the tutorial: its blocks in order, in an empty folder, with the real program and handler, and compares the output.
//!
//! `sh` blocks are run. A `text` block after one is its expected output: `…` matches anything on a line, or any lines, and columns
//! may be wider. A comment above a block selects how it is run; see [`How`]. Only the port differs, because the machine may run
//! a daemon already.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::pages::Page;

/// The timeout of every wait.
const DEADLINE: Duration = Duration::from_secs(240);
/// The port in the tutorial.
const PORT: &str = "7117";

/// How a block is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// Once. It must succeed with the expected output.
    Once,
    /// Repeatedly, until it prints the expected output.
    Look { any_order: bool },
    /// In the background. The expected lines occur in its output, in any order.
    SecondTerminal,
    /// Not run.
    NotRun,
}

struct Step {
    how: How,
    line: usize,
    script: String,
    shown: Option<String>,
}

fn steps() -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for block in Page::named("tutorial.md").blocks() {
        match block.language() {
            "sh" => {
                let how = match block.remark.as_deref() {
                    None => How::Once,
                    Some("look") => How::Look { any_order: false },
                    Some("look, in any order") => How::Look { any_order: true },
                    Some("second terminal") => How::SecondTerminal,
                    Some(remark) if remark.starts_with("not run: ") => How::NotRun,
                    Some(other) => panic!("line {}: {other:?} says nothing", block.line),
                };
                steps.push(Step { how, line: block.line, script: block.text, shown: None });
            }
            "text" => {
                let step = steps.last_mut().unwrap();
                assert!(step.shown.is_none(), "line {}: whose output is it?", block.line);
                step.shown = Some(block.text);
            }
            other => panic!("line {}: nobody knows what to do with {other:?}", block.line),
        }
    }
    steps
}

/// Returns whether a text matches the expected output.
fn is_shown(shown: &str, text: &str, any_order: bool) -> bool {
    let (mut shown, mut text): (Vec<&str>, Vec<&str>) = (shown.lines().collect(), text.lines().collect());
    if any_order {
        shown.sort_unstable();
        text.sort_unstable();
    }
    lines_match(&shown, &text)
}

fn lines_match(shown: &[&str], text: &[&str]) -> bool {
    match shown.split_first() {
        None => text.is_empty(),
        Some((&"…", rest)) => (0..=text.len()).any(|skipped| lines_match(rest, &text[skipped..])),
        Some((first, rest)) => text
            .split_first()
            .is_some_and(|(line, behind)| line_matches(first, line) && lines_match(rest, behind)),
    }
}

fn line_matches(shown: &str, line: &str) -> bool {
    let one_space = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (shown, mut rest) = (one_space(shown), &*one_space(line));
    let parts: Vec<&str> = shown.split('…').map(str::trim).collect();
    let Some(begun) = rest.strip_prefix(parts[0]) else { return false };
    rest = begun;
    let [_, middle @ .., last] = &parts[..] else { return rest.is_empty() };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[test]
fn outputs_are_compared_with_wildcards() {
    assert!(line_matches("a  b …  d", "a b ccc d") && line_matches("a …", "a") && line_matches("… d", "c d"));
    assert!(!line_matches("a b", "a b c") && !line_matches("a … d", "a d e") && !line_matches("a", "b"));
    assert!(is_shown("a\n…\nd\n", "a\nb\nc\nd\n", false) && is_shown("a\n…\n", "a\n", false));
    assert!(!is_shown("a\n", "a\nb\n", false) && !is_shown("a\nb\n", "b\na\n", false));
    assert!(is_shown("a\nb\n", "b\na\n", true));
}

/// A user with a shell.
struct User {
    folder: PathBuf,
    port: String,
    daemon: Option<(Child, PathBuf)>,
    home: tempfile::TempDir,
}

impl User {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let port = lazaret_port_testkit::free_port().to_string();
        Self { folder: home.path().to_owned(), port, daemon: None, home }
    }

    fn shell(&self, script: &str) -> Command {
        let program = Path::new(env!("CARGO_BIN_EXE_lazaret")).parent().unwrap();
        let path = std::env::var("PATH").unwrap();
        let mut command = Command::new("bash");
        command.args(["-e", "-u", "-o", "pipefail", "-c", &script.replace(PORT, &self.port)]);
        command.current_dir(&self.folder).stdin(Stdio::null());
        command.env("PATH", format!("{}:{path}", program.display())).env("COLUMNS", "122").env("USER", "ada");
        command.env("LAZARET_URL", format!("http://127.0.0.1:{}", self.port));
        for name in ["LAZARET_TOKEN", "CLICOLOR_FORCE"] {
            command.env_remove(name);
        }
        command
    }

    /// Runs a script until it exits. Its last working directory is that of the next script.
    fn run(&mut self, script: &str) -> (bool, String) {
        let place = self.home.path().join("place");
        let whole = format!("exec 2>&1\n{script}\npwd > '{}'\n", place.display());
        let output = self.shell(&whole).output().expect("there is bash");
        if let Ok(folder) = fs::read_to_string(&place) {
            self.folder = PathBuf::from(folder.trim());
        }
        (output.status.success(), String::from_utf8_lossy(&output.stdout).replace(&self.port, PORT))
    }

    fn start(&mut self, script: &str) {
        let log = self.home.path().join("second-terminal");
        let file = fs::File::create(&log).unwrap();
        let mut command = self.shell(&format!("exec {script}"));
        command.stdout(file.try_clone().unwrap()).stderr(file);
        assert!(self.daemon.is_none(), "there is no third terminal");
        self.daemon = Some((command.spawn().unwrap(), log));
    }

    fn second_terminal(&self) -> String {
        let mut text = String::new();
        let (_, log) = self.daemon.as_ref().unwrap();
        fs::File::open(log).unwrap().read_to_string(&mut text).unwrap();
        text.replace(&self.port, PORT)
    }

    /// Sends Ctrl-C to the second terminal.
    fn interrupt(&mut self) -> Option<i32> {
        let (child, _) = self.daemon.as_mut().unwrap();
        let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        assert!(sent.success());
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                self.daemon = None;
                return status.code();
            }
            assert!(Instant::now() < deadline, "the daemon does not stop");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for User {
    fn drop(&mut self) {
        if let Some((mut child, _)) = self.daemon.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Retries until the check succeeds; panics with the last output.
fn eventually(line: usize, mut look: impl FnMut() -> Result<(), String>) {
    let deadline = Instant::now() + DEADLINE;
    while let Err(seen) = look() {
        assert!(Instant::now() < deadline, "unexpected output at line {line} of the tutorial:\n{seen}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn the_tutorial_prints_what_it_shows() {
    let mut user = User::new();
    for step in steps() {
        let shown = step.shown.as_deref();
        match step.how {
            How::NotRun => assert!(shown.is_none()),
            How::Once => {
                let (well, text) = user.run(&step.script);
                assert!(well, "line {}:\n{}\n{text}", step.line, step.script);
                let fits = shown.is_none_or(|shown| is_shown(shown, &text, false));
                assert!(fits, "unexpected output at line {} of the tutorial:\n{text}", step.line);
            }
            How::Look { any_order } => eventually(step.line, || {
                let (well, text) = user.run(&step.script);
                let fits = well && is_shown(shown.unwrap(), &text, any_order);
                if fits { Ok(()) } else { Err(text) }
            }),
            How::SecondTerminal => {
                user.start(&step.script);
                eventually(step.line, || {
                    let text = user.second_terminal();
                    let has = |shown: &str| text.lines().any(|line| line_matches(shown, line));
                    if shown.unwrap().lines().all(has) { Ok(()) } else { Err(text.clone()) }
                });
            }
        }
    }
    assert_eq!(user.interrupt(), Some(0), "Ctrl-C stops the daemon gracefully");
}
