//! Tests with processes that really crash, and the records that the next process finds.
//!
//! Each test runs this binary a second time, with only [`victim`] in it, and lets it crash.

#![allow(clippy::unwrap_used, reason = "a test that fails panics; that is its answer")]
#![cfg(unix)]

use std::hint::black_box;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use lazaret_core::recorder::{Identity, Suspect};
use lazaret_core::{FlightRecorder, Message, Position, QueueName};
use lazaret_flight_recorder::{MappedRecorder, Options};
use tempfile::TempDir;

const FILE: &str = "FLIGHT_RECORDER_VICTIM_FILE";
const DEATH: &str = "FLIGHT_RECORDER_VICTIM_DEATH";
const IN_FLIGHT: &str = "FLIGHT_RECORDER_VICTIM_IN_FLIGHT";
const READY: &str = "victim: ready to die";

const SIGABRT: i32 = 6;
const SIGKILL: i32 = 9;

fn open(path: &Path) -> MappedRecorder {
    MappedRecorder::open(path, Options { slots: 16 }).unwrap()
}

fn queue() -> QueueName {
    QueueName::of("orders", "mail")
}

fn message(number: u64) -> Message {
    Message::new(format!("evt-{number}"), "orders", Position::new(0, number))
}

#[test]
#[ignore = "started by the other tests, in a process of its own"]
fn victim() {
    let path = PathBuf::from(std::env::var_os(FILE).expect("only the other tests start this one"));
    let in_flight: u64 = std::env::var(IN_FLIGHT).unwrap().parse().unwrap();
    let recorder = open(&path);
    for number in 100..200 {
        let slot = recorder.enter(&queue(), &message(number), 1);
        recorder.leave(slot);
    }
    for number in 0..in_flight {
        let _taken = recorder.enter(&queue(), &message(number), 1);
    }
    println!("{READY}");
    std::io::stdout().flush().unwrap();
    match std::env::var(DEATH).unwrap().as_str() {
        "abort" => std::process::abort(),
        "stack" => drop(black_box(deeper(black_box(1)))),
        "memory" => eat(),
        "exit" => std::process::exit(0),
        "kill" => loop {
            std::thread::park();
        },
        other => panic!("nobody dies of {other}"),
    }
}

/// Exhausts the stack.
#[allow(unconditional_recursion, reason = "that is the point")]
fn deeper(depth: u64) -> u64 {
    let room = black_box([depth; 512]);
    deeper(depth + 1) + room[black_box(7)]
}

/// Exhausts the memory.
fn eat() {
    let mut eaten: Vec<Vec<u8>> = Vec::new();
    loop {
        eaten.push(black_box(vec![1; 1 << 20]));
    }
}

/// A file, and the crashes of the processes that use it.
struct Scene {
    _folder: TempDir,
    path: PathBuf,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("orders.flight");
        Self { _folder: folder, path }
    }

    fn command(&self, mut command: Command, death: &str, in_flight: u64) -> Child {
        command
            .args(["victim", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env(FILE, &self.path)
            .env(DEATH, death)
            .env(IN_FLIGHT, in_flight.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    fn start(&self, death: &str, in_flight: u64) -> Child {
        self.command(Command::new(std::env::current_exe().unwrap()), death, in_flight)
    }

    /// Runs a process that crashes with this many attempts in flight.
    fn dies(&self, death: &str, in_flight: u64) -> ExitStatus {
        wait_until_ready(self.start(death, in_flight)).wait().unwrap()
    }

    fn suspects(&self) -> Vec<Suspect> {
        open(&self.path).suspects()
    }

    /// Checks that the only suspect is the first message and that it has this number of charges.
    fn charged(&self, crashes: u32) {
        let suspects = self.suspects();
        assert_eq!(suspects.len(), 1, "{suspects:?}");
        assert_eq!(suspects[0].identity, Identity::of(&queue(), &"evt-0".into()));
        assert_eq!((suspects[0].alone, suspects[0].crashes), (true, crashes));
    }
}

fn wait_until_ready(mut child: Child) -> Child {
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains(READY)), "it died too early");
    // Read to the end, so that the victim never blocks on its output.
    lines.for_each(drop);
    child
}

#[test]
fn an_abort_is_charged() {
    let scene = Scene::new();
    assert_eq!(scene.dies("abort", 1).signal(), Some(SIGABRT));
    scene.charged(1);
    assert_eq!(scene.dies("abort", 1).signal(), Some(SIGABRT));
    scene.charged(2);
}

#[test]
fn a_stack_overflow_is_charged() {
    let scene = Scene::new();
    assert!(scene.dies("stack", 1).signal().is_some());
    scene.charged(1);
}

#[test]
fn running_out_of_memory_is_charged() {
    let scene = Scene::new();
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -v 1000000; exec \"$0\" \"$@\""]).arg(std::env::current_exe().unwrap());
    let status = wait_until_ready(scene.command(shell, "memory", 1)).wait().unwrap();
    assert_eq!(status.signal(), Some(SIGABRT), "{status}");
    scene.charged(1);
}

#[test]
fn a_file_for_which_there_is_no_room_is_not_made_by_halves() {
    let scene = Scene::new();
    let mut shell = Command::new("sh");
    // A file size limit stands for a full disk: the write fails in the middle.
    shell
        .args(["-c", "trap '' XFSZ; ulimit -f 64; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap());
    let status = scene.command(shell, "exit", 0).wait().unwrap();
    assert!(!status.success());
    assert_eq!(std::fs::metadata(&scene.path).unwrap().len(), 0);
    assert!(scene.dies("exit", 0).success(), "with room it works");
}

#[test]
fn a_kill_is_charged() {
    let scene = Scene::new();
    let mut child = scene.start("kill", 1);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains(READY)));
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(SIGKILL));
    scene.charged(1);
}

#[test]
fn a_living_process_keeps_the_file_to_itself() {
    let scene = Scene::new();
    let mut child = scene.start("kill", 1);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains(READY)));
    let refused = MappedRecorder::open(&scene.path, Options::default()).unwrap_err();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(refused.to_string().ends_with("is in use by another process"), "{refused}");
    scene.charged(1);
}

#[test]
fn of_several_in_flight_none_is_charged() {
    let scene = Scene::new();
    scene.dies("abort", 5);
    let suspects = scene.suspects();
    let ids: Vec<&str> = suspects.iter().map(|suspect| suspect.message.as_str()).collect();
    assert_eq!(ids, ["evt-0", "evt-1", "evt-2", "evt-3", "evt-4"]);
    assert!(suspects.iter().all(|suspect| !suspect.alone && suspect.crashes == 0));
    // The first message runs alone, and it is the culprit.
    scene.dies("abort", 1);
    let charges: Vec<u32> = scene.suspects().iter().map(|suspect| suspect.crashes).collect();
    assert_eq!(charges, [1, 0, 0, 0, 0]);
}

#[test]
fn a_clean_exit_charges_nobody() {
    let scene = Scene::new();
    assert!(scene.dies("exit", 0).success());
    assert_eq!(scene.suspects(), []);
}
