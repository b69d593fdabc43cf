//! Builds all test programs, then runs several of them at once: many of them wait for a server most of their time.

use std::env;
use std::fs::{self, File};
use std::io::{self, Write};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::process::{Cargo, passed_in};

/// The number of programs that run at the same time.
const AT_ONCE: usize = 3;
/// The number of tests that a program runs at the same time, for each core.
const TESTS_PER_CORE: usize = 2;
/// The variable that tells a test program how many tests it runs at the same time.
const TEST_THREADS: &str = "RUST_TEST_THREADS";
/// How often the programs that still run are listed, with the last line of each: it shows where a test hangs.
const PROGRESS: Duration = Duration::from_secs(60);
/// The number of lines of a failed program that the summary repeats.
const FAILURE_LINES: usize = 120;

/// A test program.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Program {
    /// The package, the name of the target and its source.
    name: String,
    executable: PathBuf,
    /// The folder of the package, in which cargo runs its tests.
    folder: PathBuf,
    /// The file for what the program writes.
    output: PathBuf,
}

/// A program that runs.
struct Running {
    program: Program,
    since: Instant,
}

/// What the workers share.
struct Work {
    /// The next program is the last one.
    waiting: Vec<Program>,
    running: Vec<Running>,
    passed: u64,
    failed: Vec<String>,
    ended: bool,
}

/// Builds the tests of this call of `cargo test`, runs all of them, and returns the number of passed ones.
///
/// # Errors
/// When the build or a program fails. All programs run in any case.
pub(crate) fn run(tests: &Cargo) -> Result<u64, String> {
    let build = tests
        .clone()
        .with_arguments(["--no-run", "--message-format", "json-render-diagnostics"].map(str::to_owned));
    let mut waiting = programs(&build.output()?)?;
    // Large programs contain the client of a server and take longest. They must not begin last.
    waiting.sort_by_cached_key(|program| fs::metadata(&program.executable).map_or(0, |file| file.len()));
    println!("running {} test programs, {AT_ONCE} at once", waiting.len());
    let work = Mutex::new(Work { waiting, running: Vec::new(), passed: 0, failed: Vec::new(), ended: false });
    thread::scope(|scope| {
        let progress = scope.spawn(|| report(&work));
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(|| run_next(&work, tests))).collect();
        for worker in workers {
            worker.join().expect("a worker does not panic");
        }
        work.lock().expect("no worker panics").ended = true;
        progress.thread().unpark();
    });
    let work = work.into_inner().expect("no worker panics");
    match &work.failed[..] {
        [] => Ok(work.passed),
        failed => Err(format!("these test programs failed:\n{}", failed.join("\n"))),
    }
}

/// Returns the test programs in cargo's messages.
fn programs(messages: &str) -> Result<Vec<Program>, String> {
    let mut programs = Vec::new();
    for line in messages.lines() {
        let message: Value =
            serde_json::from_str(line).map_err(|error| format!("cargo wrote an invalid message: {error}"))?;
        let is_test = message["reason"] == "compiler-artifact" && message["profile"]["test"] == true;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let (true, Some(executable)) = (is_test, text(&message["executable"])) else { continue };
        let field = |pointer: &str| {
            let value = message.pointer(pointer).and_then(text);
            value.ok_or_else(|| format!("cargo's message about {executable} has no {pointer}"))
        };
        let manifest = PathBuf::from(field("/manifest_path")?);
        let folder = manifest.parent().map(Path::to_path_buf).unwrap_or_default();
        let source = PathBuf::from(field("/target/src_path")?);
        let source = source.strip_prefix(&folder).unwrap_or(&source).display();
        let package = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let output = PathBuf::from(format!("{executable}.output"));
        programs.push(Program {
            name: format!("{package} {source}"),
            executable: executable.into(),
            folder,
            output,
        });
    }
    Ok(programs)
}

/// Runs programs until none waits.
fn run_next(work: &Mutex<Work>, tests: &Cargo) {
    loop {
        let program = {
            let mut work = work.lock().expect("no worker panics");
            let Some(program) = work.waiting.pop() else { return };
            work.running.push(Running { program: program.clone(), since: Instant::now() });
            program
        };
        let result = execute(program.command(tests), &program.output);
        let output = fs::read(&program.output).unwrap_or_default();
        let mut work = work.lock().expect("no worker panics");
        let place = work.running.iter().position(|running| running.program == program).expect("it runs");
        let seconds = work.running.swap_remove(place).since.elapsed().as_secs_f64();
        work.passed += String::from_utf8_lossy(&output).lines().map(passed_in).sum::<u64>();
        let mut out = io::stdout().lock();
        // A closed output is no reason to end the tests: their result counts.
        let _ = writeln!(out, "\n     Running {} ({seconds:.1} s)", program.name);
        let _ = out.write_all(&output).and_then(|()| out.flush());
        if let Err(why) = result {
            let repeat = format!("cd {} && {}", program.folder.display(), program.executable.display());
            let failed = format!("{}: {why}\n  repeat it with: {repeat}", program.name);
            let _ = writeln!(out, "{failed}");
            // Once more at the end: other programs write many lines after these.
            work.failed.push(format!("{failed}\n{}", failures(&String::from_utf8_lossy(&output))));
        }
    }
}

/// Lists the programs that still run, from time to time.
fn report(work: &Mutex<Work>) {
    let mut next = Instant::now() + PROGRESS;
    loop {
        thread::park_timeout(next.saturating_duration_since(Instant::now()));
        let work = work.lock().expect("no worker panics");
        if work.ended {
            return;
        }
        if Instant::now() < next {
            continue;
        }
        next += PROGRESS;
        for Running { program, since } in &work.running {
            println!(
                "  … {} for {} s: {}",
                program.name,
                since.elapsed().as_secs(),
                last_line(&program.output)
            );
        }
    }
}

impl Program {
    /// Returns the command that runs this program as cargo does.
    fn command(&self, tests: &Cargo) -> Command {
        let mut command = Command::new(&self.executable);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder).envs(tests.variables());
        if env::var_os(TEST_THREADS).is_none() {
            let cores = thread::available_parallelism().map_or(1, NonZero::get);
            command.env(TEST_THREADS, (cores * TESTS_PER_CORE).to_string());
        }
        command
    }
}

/// Runs a command until it ends, with all that it writes in this file. A pipe would stay open for as long as any process
/// that a test left behind.
fn execute(mut command: Command, output: &Path) -> Result<(), String> {
    let started = File::create(output)
        .and_then(|file| command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).spawn());
    let mut child = started.map_err(|error| format!("failed to start: {error}"))?;
    match child.wait() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(status.to_string()),
        Err(error) => Err(format!("failed to wait: {error}")),
    }
}

/// Returns what a failed program wrote about its failures, or the end of its output when it died without a word.
fn failures(output: &str) -> String {
    let lines: Vec<&str> = output.lines().collect();
    let told = lines.iter().position(|line| *line == "failures:");
    let from = told.unwrap_or_else(|| lines.len().saturating_sub(FAILURE_LINES));
    let mut text: Vec<String> = lines[from..].iter().map(|line| format!("  | {line}")).collect();
    if text.len() > FAILURE_LINES {
        let left_out = text.len() - FAILURE_LINES;
        // Why it failed stands at the beginning, which tests failed at the end.
        text.splice(FAILURE_LINES / 2..FAILURE_LINES / 2 + left_out, [format!("  | … {left_out} lines …")]);
    }
    text.join("\n")
}

/// Returns the last line of a file.
fn last_line(file: &Path) -> String {
    let text = fs::read(file).unwrap_or_default();
    String::from_utf8_lossy(&text).lines().last().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_found_in_the_messages_of_cargo() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","profile":{"test":false},"executable":"/t/lazaret","target":{}}"#,
            "\n",
            r#"{"reason":"compiler-artifact","profile":{"test":true},"executable":"/t/deps/it-1","#,
            r#""manifest_path":"/w/crates/core/Cargo.toml","target":{"src_path":"/w/crates/core/tests/it/main.rs"}}"#,
            "\n",
            r#"{"reason":"compiler-artifact","profile":{"test":true},"executable":null,"target":{}}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#,
        );
        let expected = Program {
            name: "core tests/it/main.rs".to_owned(),
            executable: "/t/deps/it-1".into(),
            folder: "/w/crates/core".into(),
            output: "/t/deps/it-1.output".into(),
        };
        assert_eq!(programs(messages).unwrap(), [expected]);
        assert!(programs("warning: no message").is_err());
    }

    /// Runs a command with an output file of its own.
    fn output(command: Command, file: &str) -> (String, Result<(), String>) {
        let file = env::temp_dir().join(format!("xtask-{}-{file}", std::process::id()));
        let result = execute(command, &file);
        let output = fs::read_to_string(&file).unwrap();
        assert_eq!(last_line(&file), output.lines().last().unwrap_or_default());
        fs::remove_file(&file).unwrap();
        (output, result)
    }

    #[test]
    fn the_output_of_a_program_is_kept_in_order_and_its_failure_is_told() {
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            output(command, "order")
        };
        let (text, result) = shell("echo one; echo two >&2; printf three");
        assert_eq!((&text[..], result), ("one\ntwo\nthree", Ok(())));
        let (text, result) = shell("echo before; exit 3");
        assert_eq!(text, "before\n");
        assert!(result.unwrap_err().contains('3'));
    }

    #[test]
    fn the_summary_repeats_what_a_program_wrote_about_its_failures() {
        let output = "running 2 tests\ntest a ... ok\nfailures:\n\n---- b stdout ----\nexpected 1";
        assert_eq!(failures(output), "  | failures:\n  | \n  | ---- b stdout ----\n  | expected 1");
        let many: Vec<String> = (0..500).map(|number| number.to_string()).collect();
        // It died: the end of what it wrote.
        let died = failures(&many.join("\n"));
        assert!(died.starts_with("  | 380\n") && died.ends_with("  | 499"), "{died}");
        let long = failures(&format!("failures:\n{}", many.join("\n")));
        assert!(long.starts_with("  | failures:\n  | 0\n") && long.ends_with("  | 499"), "{long}");
        assert!(long.contains("  | 58\n  | … 381 lines …\n  | 440\n"), "{long}");
    }

    #[test]
    fn programs_run_in_the_folder_of_their_package_with_the_variables_of_the_tests() {
        let folder = env::temp_dir().canonicalize().unwrap();
        let name = "environment".to_owned();
        let program =
            Program { name, executable: "env".into(), folder: folder.clone(), output: PathBuf::new() };
        let tests = Cargo::new("test").with_variable("WHERE", "here");
        let (text, _) = output(program.command(&tests), "environment");
        assert!(text.lines().any(|line| line == "WHERE=here"));
        assert!(text.lines().any(|line| line == format!("CARGO_MANIFEST_DIR={}", folder.display())));
    }
}
