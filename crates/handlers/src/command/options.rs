//! The options of a command handler.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use lazaret_core::{ConsumerName, Sequencing};

use crate::attempt_info::Caller;

/// The default timeout of an attempt.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// The default time between `SIGTERM` and `SIGKILL`.
const DEFAULT_GRACE: Duration = Duration::from_secs(2);
/// The variables that a program inherits by default. They are needed to run on this machine and hold no
/// secrets.
const INHERITED_ENV: [&str; 18] = [
    "HOME",
    "HOSTNAME",
    "JAVA_HOME",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "LD_LIBRARY_PATH",
    "LOGNAME",
    "NODE_PATH",
    "PATH",
    "PYTHONPATH",
    "SHELL",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "TMPDIR",
    "TZ",
    "USER",
    "VIRTUAL_ENV",
];

/// The way in which the program is run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Runs the program once per attempt. It gets the payload on standard input and the attempt in
    /// `LAZARET_*` variables, and sets the outcome with its exit code.
    #[default]
    Once,
    /// Runs long-running workers: one JSON line in, one JSON line out.
    Lines,
}

/// The program, and how to run it.
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
    pub(crate) inherited_env: Vec<String>,
    pub(crate) folder: Option<PathBuf>,
}

impl CommandOptions {
    /// Creates options for a program, from its name or path and its arguments. No shell is used.
    pub fn new<A: Into<String>>(program: impl IntoIterator<Item = A>) -> Self {
        Self {
            program: program.into_iter().map(Into::into).collect(),
            caller: Caller::default(),
            mode: Mode::default(),
            workers: None,
            timeout: DEFAULT_TIMEOUT,
            grace: DEFAULT_GRACE,
            env: Vec::new(),
            inherited_env: INHERITED_ENV.map(str::to_owned).into(),
            folder: None,
        }
    }

    /// Sets the name of the consumer, which is passed to the program.
    #[must_use]
    pub fn for_consumer(mut self, consumer: impl Into<ConsumerName>) -> Self {
        self.caller.consumer = consumer.into();
        self
    }

    /// Sets the sequencing of the consumer, which determines the sequence that is passed to the program.
    /// Default: by key.
    #[must_use]
    pub fn with_sequencing(mut self, sequencing: Sequencing) -> Self {
        self.caller.sequencing = sequencing;
        self
    }

    /// Sets the mode.
    #[must_use]
    pub fn with_mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets the maximum number of concurrent processes. Default: one worker per processor in mode
    /// [`Lines`](Mode::Lines), and the concurrency of the consumer in mode [`Once`](Mode::Once).
    #[must_use]
    pub fn with_workers(mut self, limit: usize) -> Self {
        self.workers = Some(limit);
        self
    }

    /// Sets the timeout of an attempt, without the wait for a worker. Default: 10 s.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the time between `SIGTERM` and `SIGKILL` after a timeout. Default: 2 s.
    #[must_use]
    pub fn with_grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Sets an environment variable. The value is never shown. Variables of the attempt take precedence.
    #[must_use]
    pub fn with_env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Inherits more variables of this process: names, or prefixes that end with `*`.
    ///
    /// By default a program inherits the variables that it needs to run on this machine: `PATH`, `HOME`,
    /// `USER`, `LOGNAME`, `SHELL`, `HOSTNAME`, `LANG`, `LANGUAGE`, `LC_*`, `TZ`, `TMPDIR`,
    /// `SSL_CERT_FILE`, `SSL_CERT_DIR`, `LD_LIBRARY_PATH`, `JAVA_HOME`, `NODE_PATH`, `PYTHONPATH` and
    /// `VIRTUAL_ENV`. It does not inherit the secrets of this process. Variables that belong to Lazaret
    /// (`LAZARET_*`, `TRACEPARENT`, `TRACESTATE`) are never inherited.
    #[must_use]
    pub fn inherit_env<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.inherited_env.extend(names.into_iter().map(Into::into));
        self
    }

    /// Inherits no variables of this process.
    #[must_use]
    pub fn without_inherited_env(mut self) -> Self {
        self.inherited_env.clear();
        self
    }

    /// Sets the working directory.
    #[must_use]
    pub fn in_folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }
}

impl fmt::Debug for CommandOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Arguments and values may be secret.
        let names: Vec<_> = self.env.iter().map(|(name, _)| name).collect();
        f.debug_struct("CommandOptions")
            .field("program", &self.program.first())
            .field("caller", &self.caller)
            .field("mode", &self.mode)
            .field("workers", &self.workers)
            .field("timeout", &self.timeout)
            .field("grace", &self.grace)
            .field("env", &names)
            .field("inherited_env", &self.inherited_env)
            .field("folder", &self.folder)
            .finish()
    }
}
