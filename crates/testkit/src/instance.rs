//! Instances of a consumer as processes of a test, and the journal of what they do.
//!
//! Only a real process shows what a crash leaves behind, or what an instance does that was stopped for longer than its session. A test
//! program runs itself again as its instances: an ignored test is their body, and [`Instance::start`] runs it in a process of its own.
//!
//! ```no_run
//! use lazaret_testkit::{Instance, Journal};
//!
//! // `#[tokio::test] #[ignore = "started by the other test, in its own process"]`
//! async fn instance() {
//!     let [number, folder] = Instance::arguments();
//!     let journal = Journal::new(folder);
//!     journal.call(&number, "the first message").await;
//! }
//!
//! // `#[tokio::test]`
//! async fn an_instance_that_was_stopped_goes_on(folder: &std::path::Path) {
//!     let journal = Journal::new(folder);
//!     let first = Instance::start("instance", &["1", &folder.display().to_string()]);
//!     journal.until("its call", |journal| journal.has("1 begins the first message", 0)).await;
//!     first.signal("STOP");
//!     journal.allow("go-1");
//!     first.signal("CONT");
//!     journal.until("its end", |journal| journal.has("1 ends the first message", 0)).await;
//! }
//! ```

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The arguments of an instance, one a line.
const ARGUMENTS: &str = "LAZARET_TEST_INSTANCE";
/// How long to wait for an event that must occur.
const LONG: Duration = Duration::from_secs(240);
/// The interval of looks at what another process does.
const LOOK: Duration = Duration::from_millis(10);

/// A process of this test program. It does not outlive this value.
#[derive(Debug)]
pub struct Instance(Child);

impl Instance {
    /// Runs the ignored test with this name, such as `stopped::instance`, in a process of its own, with arguments without line
    /// breaks.
    ///
    /// # Panics
    /// If the process cannot be started.
    pub fn start(test: &str, arguments: &[&str]) -> Self {
        let program = std::env::current_exe().expect("a test program has a path");
        let mut instance = Command::new(program);
        instance.args(["--ignored", "--exact", test, "--nocapture"]).env(ARGUMENTS, arguments.join("\n"));
        Self(instance.stdout(Stdio::null()).spawn().expect("a test program can be started"))
    }

    /// The arguments of the instance that this process is.
    ///
    /// # Panics
    /// If this process is no instance, or one with another number of arguments.
    pub fn arguments<const N: usize>() -> [String; N] {
        let arguments =
            std::env::var(ARGUMENTS).expect("the test that starts an instance sets its arguments");
        let arguments: Vec<String> = arguments.split('\n').map(str::to_owned).collect();
        arguments.try_into().unwrap_or_else(|arguments| panic!("not {N} arguments: {arguments:?}"))
    }

    /// Sends the signal with this name, such as `STOP` or `CONT`, by the program `kill`.
    ///
    /// # Panics
    /// If the process has ended.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("sh").args(["-c", &format!("kill -{name} {}", self.0.id())]).status();
        assert!(sent.is_ok_and(|status| status.success()), "{name} was not sent");
    }

    /// Kills the process, and waits for its end.
    ///
    /// # Panics
    /// If the process has ended by itself.
    pub fn kill(mut self) {
        self.0.kill().expect("a process that was started can be killed");
        let status = self.0.wait().expect("a process that was started can be waited for");
        assert!(!status.success(), "the instance ended before it was killed");
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The lines that instances write, and what the test allows them to do, in a folder that they share.
#[derive(Clone, Debug)]
pub struct Journal {
    folder: PathBuf,
}

impl Journal {
    /// The journal in this folder.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    fn file(&self) -> PathBuf {
        self.folder.join("journal")
    }

    /// Appends a line. Lines of several processes do not mix.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn write(&self, line: &str) {
        let file = OpenOptions::new().create(true).append(true).open(self.file());
        let written = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
        written.expect("the folder of a test can be written to");
    }

    /// Notes that an instance `begins` something, waits until the test allows `go-NUMBER`, and notes that the instance `ends` it.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub async fn call(&self, number: &str, what: impl Display) {
        self.write(&format!("{number} begins {what}"));
        self.until_allowed(&format!("go-{number}")).await;
        self.write(&format!("{number} ends {what}"));
    }

    /// Allows this from now on.
    ///
    /// # Panics
    /// If the folder cannot be written to.
    pub fn allow(&self, what: &str) {
        std::fs::write(self.folder.join(what), "").expect("the folder of a test can be written to");
    }

    /// Returns whether the test has allowed this.
    pub fn is_allowed(&self, what: &str) -> bool {
        self.folder.join(what).exists()
    }

    /// Waits until the test allows this. Ends with the process at the latest.
    pub async fn until_allowed(&self, what: &str) {
        while !self.is_allowed(what) {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// All lines that are complete.
    pub fn lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.file()).unwrap_or_default();
        text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).map(str::to_owned).collect()
    }

    /// Returns whether this line is there, from a number of lines on.
    pub fn has(&self, line: &str, from: usize) -> bool {
        self.lines().iter().skip(from).any(|found| found == line)
    }

    /// What follows this beginning in its lines, from a number of lines on.
    pub fn of(&self, beginning: &str, from: usize) -> Vec<String> {
        let lines = self.lines();
        lines.iter().skip(from).filter_map(|line| line.strip_prefix(beginning)).map(str::to_owned).collect()
    }

    /// Waits until this holds.
    ///
    /// # Panics
    /// If it does not hold after minutes.
    pub async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let started = Instant::now();
        while !holds(self) {
            assert!(started.elapsed() < LONG, "waited in vain for {what}: {:?}", self.lines());
            tokio::time::sleep(LOOK).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_counts_when_it_is_complete() {
        let folder = std::env::temp_dir().join(format!("lazaret-journal-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let journal = Journal::new(&folder);
        assert_eq!(journal.lines(), [""; 0]);
        journal.write("1 begins a");
        journal.write("2 begins b");
        OpenOptions::new().append(true).open(journal.file()).unwrap().write_all(b"2 en").unwrap();
        assert_eq!(journal.lines(), ["1 begins a", "2 begins b"]);
        assert_eq!((journal.of("2 begins ", 0), journal.of("1 begins ", 1)), (vec!["b".to_owned()], vec![]));
        assert!(journal.has("1 begins a", 0) && !journal.has("1 begins a", 1) && !journal.has("2 en", 0));
        assert!(!journal.is_allowed("go-1"));
        journal.allow("go-1");
        assert!(journal.is_allowed("go-1"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
