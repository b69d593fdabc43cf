//! The real services that the tests need: started, shared by overlapping runs, and stopped.
//!
//! A service lives in a folder of its own below the target directory, with its log. Three files there say who needs it:
//!
//! - `lock`: held while somebody starts or stops it, so that two runs do not do so at once.
//! - `users`: every test run holds it shared. A run that ends stops the service only if it was the last one.
//! - `kept`: somebody started it by hand. Test runs use it and leave it running.

mod daemon;
mod install;
mod kafka;

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::process::Cargo;

/// A variable by which the tests learn where a service is.
pub(crate) type Variable = (String, String);

/// One service.
struct Service {
    name: &'static str,
    /// Who sets this variable brings the service along.
    variable: &'static str,
    /// What else such a one may set, and what is not tested without it.
    optional: &'static [(&'static str, &'static str)],
    /// Starts it in a folder, unless it runs there already, and says where it is.
    start: fn(&Path) -> Result<Vec<Variable>, String>,
    stop: fn(&Path) -> Result<(), String>,
}

static SERVICES: [Service; 1] = [Service {
    name: "Kafka",
    variable: "LAZARET_TEST_KAFKA",
    optional: &[
        ("LAZARET_TEST_KAFKA_SASL", "a Kafka listener with users"),
        ("LAZARET_TEST_KAFKA_STARTER", "a Kafka that may be killed"),
    ],
    start: kafka::start,
    stop: kafka::stop,
}];

/// The services of one test run. They are released by [`release`](Self::release).
pub(crate) struct Services {
    /// What the tests have to be told.
    pub(crate) variables: Vec<Variable>,
    /// What could not be had, and why.
    pub(crate) missing: Vec<String>,
    /// What the services that were brought along do not have.
    pub(crate) left_out: Vec<String>,
    /// The folders of the services that this run uses, each with its share of `users`.
    used: Vec<(&'static Service, PathBuf, File)>,
}

/// Starts all services and prints their addresses as variables. They run until [`stop`].
pub(crate) fn start() -> Result<(), String> {
    let target = target()?;
    let mut failed = Vec::new();
    for service in &SERVICES {
        if let Ok(address) = std::env::var(service.variable) {
            println!("export {}='{address}'", service.variable);
            continue;
        }
        match keep(service, &target) {
            Ok(variables) => variables.iter().for_each(|(name, value)| println!("export {name}='{value}'")),
            Err(why) => failed.push(format!("{}: {why}", service.name)),
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

/// Starts a service that runs until it is stopped by hand.
fn keep(service: &Service, target: &Path) -> Result<Vec<Variable>, String> {
    let folder = folder_of(service, target)?;
    locked(&folder, || {
        let variables = (service.start)(&folder)?;
        write(&folder.join("kept"), "")?;
        Ok(variables)
    })
}

/// Starts one more Kafka in this folder, for a test that kills it, and prints its number and its address. Who starts it ends
/// it.
pub(crate) fn start_another_kafka(folder: &Path) -> Result<(), String> {
    let home = folder_of(&SERVICES[0], &target()?)?;
    let folder =
        folder.canonicalize().map_err(|error| format!("failed to find {}: {error}", folder.display()))?;
    // Two tests may need the classes at once.
    let fetched = locked(&home, || kafka::fetch(&home).map(|_| ()));
    let (pid, address) = fetched.and_then(|()| kafka::start_another(&folder, &home))?;
    println!("{pid} {address}");
    Ok(())
}

/// Stops all services that were started from here, whoever uses them.
pub(crate) fn stop() -> Result<(), String> {
    let target = target()?;
    for service in &SERVICES {
        let folder = folder_of(service, &target)?;
        locked(&folder, || stop_in(service, &folder))?;
        eprintln!("{} is stopped", service.name);
    }
    Ok(())
}

impl Services {
    /// The services for a test run, as far as they can be had.
    pub(crate) fn take() -> Result<Self, String> {
        Self::take_from(&SERVICES, &target()?)
    }

    fn take_from(all: &'static [Service], target: &Path) -> Result<Self, String> {
        let (missing, left_out) = (Vec::new(), Vec::new());
        let mut services = Self { variables: Vec::new(), missing, left_out, used: Vec::new() };
        let is_set = |name: &str| std::env::var_os(name).is_some();
        for service in all {
            if is_set(service.variable) {
                let unset = service.optional.iter().filter(|(name, _)| !is_set(name));
                services.left_out.extend(unset.map(|(name, what)| format!("{what}: {name} is not set")));
                continue;
            }
            let folder = folder_of(service, target)?;
            let users = open(&folder.join("users"))?;
            let started = locked(&folder, || {
                users.lock_shared().map_err(|error| format!("failed to lock its users: {error}"))?;
                (service.start)(&folder)
            });
            match started {
                Ok(variables) => {
                    services.variables.extend(variables);
                    services.used.push((service, folder, users));
                }
                Err(why) => services.missing.push(format!("{}: {why}", service.name)),
            }
        }
        Ok(services)
    }

    /// Stops what nobody else uses.
    pub(crate) fn release(self) -> Result<(), String> {
        for (service, folder, users) in self.used {
            // Our share goes first, or we would wait for ourselves.
            drop(users);
            locked(&folder, || {
                let users = open(&folder.join("users"))?;
                if users.try_lock().is_err() || folder.join("kept").exists() {
                    return Ok(());
                }
                stop_in(service, &folder)
            })?;
        }
        Ok(())
    }
}

fn stop_in(service: &Service, folder: &Path) -> Result<(), String> {
    (service.stop)(folder)?;
    match fs::remove_file(folder.join("kept")) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("failed to remove its mark: {error}"))
        }
        _ => Ok(()),
    }
}

/// Does something while no other run starts or stops the service of this folder.
fn locked<T>(folder: &Path, work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let lock = open(&folder.join("lock"))?;
    lock.lock().map_err(|error| format!("failed to lock {}: {error}", folder.display()))?;
    work()
}

fn open(path: &Path) -> Result<File, String> {
    let file = File::options().create(true).truncate(false).write(true).open(path);
    file.map_err(|error| format!("failed to open {}: {error}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("failed to write {}: {error}", path.display()))
}

/// The target directory that cargo uses.
pub(crate) fn target() -> Result<PathBuf, String> {
    let metadata = Cargo::new("metadata --no-deps --format-version 1").output()?;
    let metadata: Value = serde_json::from_str(&metadata)
        .map_err(|error| format!("failed to read cargo's metadata: {error}"))?;
    let target = metadata["target_directory"].as_str();
    target.map(PathBuf::from).ok_or_else(|| "cargo's metadata names no target directory".to_owned())
}

/// The folder of a service, which is there from now on.
fn folder_of(service: &Service, target: &Path) -> Result<PathBuf, String> {
    let folder = target.join("services").join(service.name.to_lowercase());
    fs::create_dir_all(&folder).map_err(|error| format!("failed to make {}: {error}", folder.display()))?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use super::*;

    /// A program that is just being started has a copy of every lock of ours for a moment. So tests of locks and tests that
    /// start programs take turns.
    pub(super) fn turn() -> MutexGuard<'static, ()> {
        static TURN: Mutex<()> = Mutex::new(());
        TURN.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A service that runs as long as there is a file.
    fn start_file(folder: &Path) -> Result<Vec<Variable>, String> {
        write(&folder.join("runs"), "")?;
        Ok(vec![("WHERE".to_owned(), "here".to_owned())])
    }

    fn stop_file(folder: &Path) -> Result<(), String> {
        fs::remove_file(folder.join("runs")).map_err(|error| error.to_string())
    }

    const NOT_SET: &str = "LAZARET_TEST_NO_SUCH_THING";
    static FILE: [Service; 1] =
        [Service { name: "File", variable: NOT_SET, optional: &[], start: start_file, stop: stop_file }];
    static BROKEN: [Service; 1] = [Service {
        name: "Broken",
        variable: NOT_SET,
        optional: &[],
        start: |_| Err("it is broken".to_owned()),
        stop: |_| Ok(()),
    }];
    static GIVEN: [Service; 1] = [Service {
        name: "Given",
        variable: "PATH",
        optional: &[("PATH", "paths"), (NOT_SET, "other things")],
        start: |_| Err("it is given".to_owned()),
        stop: |_| Ok(()),
    }];

    /// A folder that is gone when the test is over.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            Self(std::env::temp_dir().join(format!("lazaret-services-{name}-{}", std::process::id())))
        }

        fn runs(&self) -> bool {
            self.0.join("services/file/runs").exists()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_last_of_overlapping_runs_stops_the_service() {
        let _turn = turn();
        let folder = Folder::new("overlap");
        let first = Services::take_from(&FILE, &folder.0).unwrap();
        let second = Services::take_from(&FILE, &folder.0).unwrap();
        assert_eq!(second.variables, [("WHERE".to_owned(), "here".to_owned())]);
        first.release().unwrap();
        assert!(folder.runs(), "the second still needs it");
        second.release().unwrap();
        assert!(!folder.runs());
    }

    #[test]
    fn what_was_started_by_hand_is_left_running() {
        let _turn = turn();
        let folder = Folder::new("kept");
        keep(&FILE[0], &folder.0).unwrap();
        Services::take_from(&FILE, &folder.0).unwrap().release().unwrap();
        assert!(folder.runs());
        stop_in(&FILE[0], &folder.0.join("services/file")).unwrap();
        assert!(!folder.runs());
        Services::take_from(&FILE, &folder.0).unwrap().release().unwrap();
        assert!(!folder.runs(), "it is nobody's any more");
    }

    #[test]
    fn what_cannot_be_had_is_named_and_what_is_given_is_not_started() {
        let _turn = turn();
        let folder = Folder::new("missing");
        let services = Services::take_from(&BROKEN, &folder.0).unwrap();
        assert_eq!(services.missing, ["Broken: it is broken"]);
        services.release().unwrap();
        let services = Services::take_from(&GIVEN, &folder.0).unwrap();
        assert!(services.missing.is_empty() && services.variables.is_empty());
        assert_eq!(services.left_out, ["other things: LAZARET_TEST_NO_SUCH_THING is not set"]);
    }
}
