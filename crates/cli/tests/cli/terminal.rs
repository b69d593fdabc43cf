//! Output on a terminal: colors, prompts, progress bars and the editor.

use std::io::{Read, Write};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use lazaret_core::policy::OnDead;
use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};

use crate::support::{Bench, DEADLINE, Setup, message};

/// The end of a frame: the cursor is hidden.
const END_OF_FRAME: &[u8] = b"\x1b[?25l";

/// A command on a pseudoterminal.
pub(crate) struct Terminal {
    child: Box<dyn Child + Send + Sync>,
    keyboard: Box<dyn Write + Send>,
    output: Receiver<Vec<u8>>,
    shown: String,
    /// The screen of a program that draws on all of it.
    screen: vt100::Parser,
    /// Output that is not on the screen yet.
    undrawn: Vec<u8>,
    master: Box<dyn MasterPty + Send>,
    /// The terminal modes before.
    before: String,
}

impl Terminal {
    pub(crate) fn start(bench: &Bench, width: u16, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let variables = [&[("LAZARET_URL", bench.url.as_str())], variables].concat();
        Self::open((width, 24), arguments, &variables)
    }

    /// Starts a command on a terminal of this size.
    pub(crate) fn open((cols, rows): (u16, u16), arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let size = PtySize { rows, cols, pixel_width: 0, pixel_height: 0 };
        let pair = native_pty_system().openpty(size).unwrap();
        let before = modes(&*pair.master);
        let mut command = CommandBuilder::new(env!("CARGO_BIN_EXE_lazaret"));
        command.args(arguments);
        for name in [
            "LAZARET_URL",
            "NO_COLOR",
            "COLUMNS",
            "LAZARET_TOKEN",
            "CLICOLOR",
            "CLICOLOR_FORCE",
            "VISUAL",
            "CI",
        ] {
            command.env_remove(name);
        }
        command.env("USER", "ada");
        command.env("TERM", "xterm-256color");
        for (name, value) in variables {
            command.env(name, value);
        }
        let child = pair.slave.spawn_command(command).unwrap();
        drop(pair.slave);
        let mut reader = pair.master.try_clone_reader().unwrap();
        let (sender, output) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // A closed pseudoterminal returns an error.
            while let Ok(read) = reader.read(&mut buffer)
                && read > 0
                && sender.send(buffer[..read].to_vec()).is_ok()
            {}
        });
        let keyboard = pair.master.take_writer().unwrap();
        Self {
            child,
            keyboard,
            output,
            shown: String::new(),
            screen: vt100::Parser::new(rows, cols, 0),
            undrawn: Vec::new(),
            master: pair.master,
            before,
        }
    }

    /// Returns whether the terminal modes are restored.
    pub(crate) fn is_as_before(&self) -> bool {
        self.before == modes(&*self.master)
    }

    /// Waits until the screen shows this text.
    #[track_caller]
    pub(crate) fn sees(&mut self, text: &str) -> &mut Self {
        let deadline = Instant::now() + DEADLINE;
        while !self.shown.contains(text) {
            assert!(Instant::now() < deadline, "{text:?} is not in {:?}", self.end());
            self.read();
        }
        self
    }

    /// Waits until a frame of a program that draws on the whole screen shows this text. Frames are looked at one by one, so that
    /// what is shown for a moment is not missed.
    #[track_caller]
    pub(crate) fn shows(&mut self, text: &str) -> &mut Self {
        let deadline = Instant::now() + DEADLINE;
        while !self.screen.screen().contents().contains(text) {
            assert!(Instant::now() < deadline, "{text:?} is not in\n{}", self.screen.screen().contents());
            let end = self.undrawn.windows(END_OF_FRAME.len()).position(|bytes| bytes == END_OF_FRAME);
            let frame = end.map_or(self.undrawn.len(), |end| end + END_OF_FRAME.len());
            let drawn: Vec<u8> = self.undrawn.drain(..frame).collect();
            self.screen.process(&drawn);
            if drawn.is_empty() {
                self.read();
            }
        }
        self
    }

    /// Waits until a frame shows this text, and returns the word that begins with it.
    #[track_caller]
    pub(crate) fn shown_word(&mut self, start: &str) -> String {
        let screen = self.shows(start).screen.screen().contents();
        let (_, rest) = screen.split_once(start).expect("it is shown");
        format!("{start}{}", rest.split_whitespace().next().unwrap_or_default())
    }

    /// Changes the size of the terminal.
    pub(crate) fn resize(&mut self, (cols, rows): (u16, u16)) {
        self.screen.screen_mut().set_size(rows, cols);
        self.master.resize(PtySize { rows, cols, pixel_width: 0, pixel_height: 0 }).unwrap();
    }

    /// Sends a signal to the command.
    pub(crate) fn signal(&self, signal: &str) {
        let process = self.child.process_id().unwrap().to_string();
        assert!(std::process::Command::new("kill").args([signal, &process]).status().unwrap().success());
    }

    /// Returns the end of the output: a redrawn screen is long.
    fn end(&self) -> String {
        let mut end: Vec<char> = self.shown.chars().rev().take(6000).collect();
        end.reverse();
        end.into_iter().collect()
    }

    fn read(&mut self) -> bool {
        match self.output.recv_timeout(Duration::from_millis(100)) {
            Ok(bytes) => {
                self.shown.push_str(&String::from_utf8_lossy(&bytes));
                self.undrawn.extend(bytes);
                true
            }
            Err(error) => error == std::sync::mpsc::RecvTimeoutError::Timeout,
        }
    }

    pub(crate) fn types(&mut self, text: &str) -> &mut Self {
        self.keyboard.write_all(text.as_bytes()).unwrap();
        self.keyboard.flush().unwrap();
        self
    }

    /// Waits until the command exits with this code. Returns the output.
    #[track_caller]
    pub(crate) fn ends(mut self, code: u32) -> String {
        let deadline = Instant::now() + DEADLINE;
        while self.read() {
            assert!(Instant::now() < deadline, "it did not end: {:?}", self.end());
        }
        let status = self.child.wait().unwrap();
        assert_eq!(status.exit_code(), code, "{:?}", self.end());
        assert!(self.is_as_before(), "the terminal is not restored");
        self.shown
    }
}

/// Returns the terminal modes.
fn modes(master: &dyn MasterPty) -> String {
    format!("{:?}", master.get_termios().unwrap())
}

fn bench() -> Bench {
    let bench = Bench::new();
    bench.letters(&[message("m-1", "a", "bad"), message("m-2", "b", "bad"), message("m-3", "a", "good")], 3);
    bench
}

#[test]
fn colors_are_for_terminals() {
    let bench = bench();
    let colored = |text: &str| text.contains("\u{1b}[31m");
    assert!(colored(&Terminal::start(&bench, 120, &["ls"], &[]).ends(0)));
    assert!(!colored(&Terminal::start(&bench, 120, &["ls"], &[("NO_COLOR", "1")]).ends(0)));
    assert!(!Terminal::start(&bench, 120, &["ls", "--color", "never"], &[]).ends(0).contains('\u{1b}'));
    assert!(!bench.run(&["ls"]).ends(0).out.contains('\u{1b}'));
    assert!(colored(&bench.run(&["ls", "--color", "always"]).ends(0).out));
    // The option overrides the variable.
    assert!(colored(
        &Terminal::start(&bench, 120, &["ls", "--color", "always"], &[("NO_COLOR", "1")]).ends(0)
    ));
}

#[test]
fn tables_fit_the_terminal() {
    let bench = bench();
    for width in [40_u16, 60, 80, 100, 160] {
        for command in [&["ls"][..], &["groups"], &["status"], &["seq", "orders", "a"]] {
            let arguments = [command, &["--color", "never"]].concat();
            let shown = Terminal::start(&bench, width, &arguments, &[]).ends(0);
            // Messages may wrap.
            let is_talk = |line: &str| line.contains("next:") || line.contains("letters failed");
            for line in shown.lines().filter(|line| !is_talk(line)) {
                assert!(line.chars().count() <= usize::from(width), "{command:?} at {width}: {line:?}");
            }
        }
    }
}

#[test]
fn json_is_indented_for_people() {
    let bench = bench();
    let shown = Terminal::start(&bench, 80, &["ls", "--json", "state:dead"], &[]).ends(0);
    assert!(shown.contains("{\r\n  \"letters\": ["), "{shown}");
}

#[test]
fn changes_are_confirmed_on_a_terminal() {
    let bench = bench();
    let mut no = Terminal::start(&bench, 100, &["evict", "--all", "--reason", "test"], &[]);
    no.sees("Evict 3 letters of 2 sequences? [y/N] ").types("\n");
    let shown = no.ends(1);
    // The outcome is printed before the next command.
    let (before, after) = shown.split_once("aborted: nothing was changed").unwrap();
    assert!(!before.contains("next: ") && after.contains("lazaret evict --plan p_1"), "{shown}");
    assert_eq!(bench.run(&["op", "ls", "-o", "jsonl"]).ends(0).out, "");

    let mut yes = Terminal::start(&bench, 100, &["evict", "--all", "--reason", "test", "--wait"], &[]);
    yes.sees("? [y/N] ").types("y\n");
    assert!(yes.ends(0).contains("done"), "it is done");

    // Irreversible actions need a typed word.
    let mut half = Terminal::start(&bench, 100, &["purge", "--all", "--reason", "test"], &[]);
    half.sees("Purge 3 letters? This cannot be undone. Type purge to confirm: ").types("y\n");
    half.ends(1);
    let mut half = Terminal::start(&bench, 140, &["erase", "--all", "--reason", "test"], &[]);
    half.sees("Erase the content of 3 letters? Open ones are evicted. This cannot be undone. Type erase to confirm: ");
    half.types("y\n");
    half.ends(1);
    let mut typed = Terminal::start(&bench, 100, &["purge", "--all", "--reason", "test"], &[]);
    typed.sees("to confirm: ").types("purge\n");
    assert!(typed.ends(0).contains("3 letters purged, 0 failed"));
    // Without matches there is nothing to confirm.
    for verb in ["purge", "restore"] {
        let shown = Terminal::start(&bench, 100, &[verb, "--all", "--reason", "test"], &[]).ends(0);
        assert!(shown.contains("no letters match") && !shown.contains('?'), "{shown}");
    }
}

#[test]
fn a_prompt_says_what_may_run_behind_the_letters_and_how_long_it_takes() {
    let bench = bench();
    let arguments = ["retry", "state:dead", "--reason", "test", "--rate", "1/s"];
    let mut prompt = Terminal::start(&bench, 140, &arguments, &[]);
    prompt.sees("1 letter behind them may run after them; it takes 3s at least");
    prompt.sees("Retry 2 letters of 2 sequences? [y/N] ").types("\n");
    prompt.ends(1);
}

#[test]
fn a_prompt_says_that_letters_run_out_of_order() {
    let bench = Bench::with(Setup { on_dead: OnDead::Continue, ..Setup::default() });
    bench.letters(&[message("m-1", "a", "bad")], 1);
    let mut prompt = Terminal::start(&bench, 140, &["retry", "state:dead", "--reason", "test"], &[]);
    prompt.sees("1 of 1 letter out of order: it left its sequence when it died (on-dead: continue)");
    prompt.sees("Retry 1 letter of 1 sequence? [y/N] ").types("\n");
    prompt.ends(1);
}

#[test]
fn waiting_for_a_paused_consumer_says_how_to_resume_it_and_ends_with_ctrl_c() {
    let bench = bench();
    bench.run(&["pause", "orders", "--reason", "deploy"]).ends(0);
    let arguments = ["retry", "--all", "--reason", "test", "--yes", "--wait"];
    let mut waiting = Terminal::start(&bench, 140, &arguments, &[]);
    waiting.sees("op_1 is blocked: orders is paused by").sees("lazaret resume orders --reason TEXT");
    waiting.types("\x03");
    assert!(waiting.ends(130).contains("detached: op_1 continues in the daemon"));
    let operation = bench.run(&["op", "show", "op_1", "-o", "json"]).ends(0).out;
    assert!(operation.contains("running"), "{operation}");
}

#[test]
fn a_bar_shows_progress_and_ctrl_c_detaches() {
    let bench = bench();
    // Slow enough to observe: one letter every ten seconds.
    let arguments =
        ["park", "--all", "--reason", "test", "--yes", "--wait", "--ramp", "none", "--rate", "6/m"];
    let mut terminal = Terminal::start(&bench, 140, &arguments, &[]);
    terminal.sees("op_1 running [").sees("1/3 1 sent, 1 ok, 0 failed again, 0 skipped").types("\u{3}");
    let shown = terminal.ends(130);
    assert!(shown.contains("detached: op_1 continues in the daemon"), "{shown}");
    assert!(shown.contains("next: ") && shown.contains("lazaret op cancel op_1"), "{shown}");
    assert_eq!(bench.run(&["op", "show", "op_1", "-o", "json"]).ends(0).json()["state"], "running");
}

#[test]
fn a_bar_fits_the_terminal() {
    for width in [60_u16, 80] {
        let bench = bench();
        let arguments =
            ["park", "--all", "--reason", "test", "--yes", "--wait", "--rate", "6/m", "--color", "never"];
        let mut terminal = Terminal::start(&bench, width, &arguments, &[]);
        terminal.sees("op_1 running [").sees("] 1/3 ").types("\u{3}");
        let shown = terminal.ends(130);
        // Messages may be long. A redrawn line must not wrap.
        let drawn = shown.split(['\r', '\n']).filter(|line| line.contains(" running ["));
        for line in drawn.map(without_controls) {
            // The terminal echoes typed text.
            let line = line.trim_end_matches("^C").trim_end();
            assert!(line.chars().count() < usize::from(width), "at {width}: {line:?}");
        }
    }
}

/// Returns the visible part of a line, without control sequences.
fn without_controls(line: &str) -> String {
    let mut pieces = line.split('\u{1b}');
    let first = pieces.next().unwrap_or_default().to_owned();
    let rest = pieces.map(|piece| piece.trim_start_matches(|c: char| !c.is_ascii_alphabetic()).get(1..));
    rest.fold(first, |text, piece| text + piece.unwrap_or_default())
}

#[test]
fn payload_changes_are_confirmed_on_a_terminal() {
    let bench = bench();
    let id = bench.run(&["ls", "seq:b", "-o", "jsonl"]).ends(0).last()["id"].as_str().unwrap().to_owned();
    let file = bench.folder().join("payload");
    std::fs::write(&file, "\"good\"").unwrap();
    let payload = || bench.run(&["show", &id, "--payload"]).ends(0).out;
    let from_file = ["edit", &id, "--payload", file.to_str().unwrap(), "--reason", "typo"];
    let mut no = Terminal::start(&bench, 100, &from_file, &[]);
    no.sees(&format!("Replace the payload of {} (6 bytes)? [y/N] ", &id[..8])).types("n\n");
    assert!(no.ends(1).contains(&format!("lazaret show {}", &id[..8])));
    let mut away = Terminal::start(&bench, 100, &["edit", &id, "--tombstone", "--reason", "typo"], &[]);
    away.sees(&format!("Remove the payload of {}? [y/N] ", &id[..8])).types("\n");
    away.ends(1);
    assert_eq!(payload(), "\"bad\"");
    let mut yes = Terminal::start(&bench, 100, &from_file, &[]);
    yes.sees("[y/N] ").types("y\n");
    yes.ends(0);
    assert_eq!(payload(), "\"good\"");
    // --yes skips the confirmation.
    let said = [&from_file[..], &["--yes"]].concat();
    assert!(!Terminal::start(&bench, 100, &said, &[]).ends(0).contains("[y/N]"));
}

#[test]
fn a_payload_is_changed_in_an_editor() {
    use std::os::unix::fs::PermissionsExt;
    let bench = bench();
    let id = bench.run(&["ls", "seq:b", "-o", "jsonl"]).ends(0).last()["id"].as_str().unwrap().to_owned();
    let editor = bench.folder().join("editor");
    let script = |text: &str| {
        std::fs::write(&editor, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&editor, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    let variables = [("EDITOR", editor.to_str().unwrap())];
    let arguments = ["edit", &id, "--reason", "typo"];
    let payload = || bench.run(&["show", &id, "--payload"]).ends(0).out;

    script("exit 0");
    assert!(Terminal::start(&bench, 100, &arguments, &variables).ends(0).contains("payload unchanged"));
    script("exit 7");
    assert!(Terminal::start(&bench, 100, &arguments, &variables).ends(1).contains("nothing was changed"));
    // The editor replaces the file and appends a line break.
    script("ls -l \"$1\" | cut -c1-10; echo '\"mended\"' > \"$1.new\"; mv \"$1.new\" \"$1\"");
    let mut no = Terminal::start(&bench, 100, &arguments, &variables);
    no.sees("Save this payload (8 bytes, 5 before)? [y/N] ").types("n\n");
    let shown = no.ends(1);
    assert!(shown.contains("-rw-------"), "only its owner reads it: {shown}");
    assert_eq!(payload(), "\"bad\"");
    let mut yes = Terminal::start(&bench, 100, &arguments, &variables);
    yes.sees("[y/N] ").types("y\n");
    yes.ends(0);
    assert_eq!(payload(), "\"mended\"");
    script("echo '{' > \"$1\"");
    // Broken JSON is refused, and the text is kept.
    let folder = bench.folder().to_str().unwrap();
    let broken = Terminal::start(&bench, 100, &arguments, &[variables[0], ("TMPDIR", folder)]).ends(2);
    assert!(broken.contains("the payload is no longer valid JSON"), "{broken}");
    let kept = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let kept = kept.filter(|path| path.to_str().unwrap().contains("lazaret-edit-")).collect::<Vec<_>>();
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert_eq!(std::fs::read_to_string(&kept[0]).unwrap(), "{");
    assert_eq!(payload(), "\"mended\"");
    let mut forced = Terminal::start(&bench, 100, &[&arguments[..], &["--force"]].concat(), &variables);
    forced.sees("the payload is no longer valid JSON").sees("[y/N] ").types("n\n");
    forced.ends(1);
}

#[test]
fn a_payload_is_sanitized_on_a_terminal() {
    let bench = Bench::new();
    bench.letters(&[message("m-1", "a", "bad \u{202e}")], 1);
    let id = bench.run(&["ls", "-o", "jsonl"]).ends(0).last()["id"].as_str().unwrap().to_owned();
    bench
        .run_with(&["edit", &id, "--payload", "-", "--reason", "x", "-y", "--force"], "\u{1b}[31mred\nline")
        .ends(0);
    let shown = Terminal::start(&bench, 100, &["show", &id, "--payload"], &[]).ends(0);
    assert_eq!(shown, "\\u{1b}[31mred\r\nline\r\n");
}
