//! What one can choose about a handler that is a command.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use lazaret_core::{ConsumerName, Sequencing};

use crate::facts::Caller;

/// How long a handler may take, unless told otherwise.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a program has between being asked and being made to end, unless told otherwise.
const DEFAULT_GRACE: Duration = Duration::from_secs(2);

/// How the program is run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Once per attempt: the payload on its standard input, the facts in `LAZARET_*` variables, the outcome in its exit
    /// code.
    #[default]
    Once,
    /// As workers that live long: one JSON line in, one JSON line out.
    Lines,
}

/// Which program is run, and how.
///
/// ```
/// use std::time::Duration;
/// use lazaret_handlers::{CommandOptions, Mode};
///
/// let options = CommandOptions::new(["python3", "handler.py"])
///     .for_consumer("notification-service")
///     .with_mode(Mode::Lines)
///     .with_workers(4)
///     .with_timeout(Duration::from_secs(5))
///     .with_env("API_TOKEN", "s3cret");
/// assert!(!format!("{options:?}").contains("s3cret"));
/// ```
#[derive(Clone)]
pub struct CommandOptions {
    pub(crate) program: Vec<String>,
    pub(crate) caller: Caller,
    pub(crate) mode: Mode,
    pub(crate) workers: Option<usize>,
    pub(crate) timeout: Duration,
    pub(crate) grace: Duration,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) inherits_env: bool,
    pub(crate) folder: Option<PathBuf>,
}

impl CommandOptions {
    /// Runs this program: its name or path, and its arguments. No shell is involved.
    pub fn new<A: Into<String>>(program: impl IntoIterator<Item = A>) -> Self {
        Self {
            program: program.into_iter().map(Into::into).collect(),
            caller: Caller::default(),
            mode: Mode::default(),
            workers: None,
            timeout: DEFAULT_TIMEOUT,
            grace: DEFAULT_GRACE,
            env: Vec::new(),
            inherits_env: true,
            folder: None,
        }
    }

    /// The consumer whose name the program is told.
    #[must_use]
    pub fn for_consumer(mut self, consumer: impl Into<ConsumerName>) -> Self {
        self.caller.consumer = consumer.into();
        self
    }

    /// How the consumer finds the sequence of a message, so that the program is told the same. By key unless told
    /// otherwise.
    #[must_use]
    pub fn with_sequencing(mut self, sequencing: Sequencing) -> Self {
        self.caller.sequencing = sequencing;
        self
    }

    /// How the program is run.
    #[must_use]
    pub fn with_mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// At most so many processes at a time. Unless told otherwise, there are as many workers as processors in mode
    /// [`Lines`](Mode::Lines), and no limit but the consumer's concurrency in mode [`Once`](Mode::Once).
    #[must_use]
    pub fn with_workers(mut self, limit: usize) -> Self {
        self.workers = Some(limit);
        self
    }

    /// How long an attempt may take: 10 s unless told otherwise. Waiting for a worker does not count.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How long a program whose time is up has between `SIGTERM` and `SIGKILL`: 2 s unless told otherwise.
    #[must_use]
    pub fn with_grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Gives the program this variable. The value is never shown. The facts of a message go before it.
    #[must_use]
    pub fn with_env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Gives the program no variable of this process. Otherwise it gets all but those that begin with `LAZARET_`, which
    /// may be secret, or facts of another message.
    #[must_use]
    pub fn without_inherited_env(mut self) -> Self {
        self.inherits_env = false;
        self
    }

    /// The folder in which the program runs.
    #[must_use]
    pub fn in_folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }
}

impl fmt::Debug for CommandOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No arguments and no values: they may be secret.
        let names: Vec<_> = self.env.iter().map(|(name, _)| name).collect();
        f.debug_struct("CommandOptions")
            .field("program", &self.program.first())
            .field("caller", &self.caller)
            .field("mode", &self.mode)
            .field("workers", &self.workers)
            .field("timeout", &self.timeout)
            .field("grace", &self.grace)
            .field("env", &names)
            .field("inherits_env", &self.inherits_env)
            .field("folder", &self.folder)
            .finish()
    }
}
