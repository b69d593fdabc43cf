//! Services for tests: started, shared by overlapping runs, and stopped.
//!
//! Each service has a folder below the target directory, with its log and three files that coordinate runs:
//!
//! - `lock`: locked while the service is started or stopped.
//! - `users`: locked shared by every test run. The last run that ends stops the service.
//! - `kept`: exists when the service was started by hand. Test runs use it and leave it running.

mod chromium;
mod daemon;
mod install;
mod kafka;
mod maven;
mod mongodb;
mod postgres;
mod promtool;

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use serde_json::Value;

pub(crate) use chromium::browser;

use crate::process::Cargo;

/// An environment variable with the address of a service.
pub(crate) type Variable = (String, String);

/// One service.
struct Service {
    name: &'static str,
    /// When this variable is set, the service is provided externally.
    variable: &'static str,
    /// Optional variables, and what is not tested if neither the environment nor the started service sets them. Of `A or B`, one is enough.
    optional: &'static [(&'static str, &'static str)],
    /// Variables that tell of a substitute for the real service, and what is not tested with it.
    substitutes: &'static [(&'static str, &'static str)],
    /// Starts the service in a folder unless it runs there, and returns its variables.
    start: fn(&Path) -> Result<Vec<Variable>, String>,
    stop: fn(&Path) -> Result<(), String>,
}

impl Service {
    /// Returns what is not tested: in one line for optional variables that are not set, and one for each that tells of a substitute.
    fn untested(&self, is_set: impl Fn(&str) -> bool) -> Vec<String> {
        let unset = self.optional.iter().filter(|(names, _)| !names.split(" or ").any(&is_set));
        let unset: Vec<String> = unset.map(|(names, what)| format!("{what} ({names})")).collect();
        let unset = (!unset.is_empty()).then(|| format!("{}: not set", unset.join(", ")));
        let substitutes = self.substitutes.iter().filter(|(name, _)| is_set(name));
        unset.into_iter().chain(substitutes.map(|(_, what)| (*what).to_owned())).collect()
    }
}

/// The names of the services that programs of the workspace need, beside its tests.
pub(crate) const KAFKA: &str = "Kafka";
pub(crate) const MONGODB: &str = "MongoDB";
pub(crate) const POSTGRES: &str = "PostgreSQL";

static SERVICES: [Service; 5] = [
    Service {
        name: KAFKA,
        variable: "LAZARET_TEST_KAFKA",
        optional: &[
            ("LAZARET_TEST_KAFKA_SASL", "a Kafka listener with users"),
            ("LAZARET_TEST_KAFKA_STARTER", "a Kafka that may be killed"),
        ],
        substitutes: &[],
        start: kafka::start,
        stop: kafka::stop,
    },
    Service {
        name: MONGODB,
        variable: "LAZARET_TEST_MONGODB",
        optional: &[
            ("LAZARET_TEST_MONGOD", "MongoDB servers that tests kill, freeze and roll back"),
            ("LAZARET_TEST_MONGODB_FAILOVER or LAZARET_TEST_MONGOD", "elections of MongoDB"),
            ("LAZARET_TEST_MONGODB_SHARDED or LAZARET_TEST_MONGOS", "a sharded MongoDB cluster"),
        ],
        substitutes: &[(
            "LAZARET_TEST_MONGODB_KIND",
            "a MongoDB replica set: transactions, the watch of a database, invalidation by a drop, post-batch tokens, lost \
             history, documents before the change, killed cursors, wrong credentials and missing rights, which the wire server \
             cannot do",
        )],
        start: mongodb::start,
        stop: mongodb::stop,
    },
    Service {
        name: POSTGRES,
        variable: "LAZARET_TEST_POSTGRES",
        optional: &[],
        substitutes: &[],
        start: postgres::start,
        stop: postgres::stop,
    },
    Service {
        name: "Chromium",
        variable: "LAZARET_TEST_CHROMEDRIVER",
        optional: &[("LAZARET_TEST_AXE", "axe-core")],
        substitutes: &[],
        start: chromium::start,
        stop: chromium::stop,
    },
    Service {
        name: "promtool",
        variable: "LAZARET_TEST_PROMTOOL",
        optional: &[],
        substitutes: &[],
        start: promtool::start,
        stop: promtool::stop,
    },
];

/// The services of one test run. They are released by [`release`](Self::release).
pub(crate) struct Services {
    /// The variables for the tests.
    pub(crate) variables: Vec<Variable>,
    /// The unavailable services, with reasons.
    pub(crate) missing: Vec<String>,
    /// What the services in use do not offer: optional variables that are not set, and what substitutes cannot do.
    pub(crate) not_offered: Vec<String>,
    /// The folders of the services in use, each with its shared lock.
    used: Vec<(&'static Service, PathBuf, File)>,
}

/// Starts all services and prints their variables. They run until [`stop`].
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

/// Starts a service that runs until [`stop`].
fn keep(service: &Service, target: &Path) -> Result<Vec<Variable>, String> {
    let folder = folder_of(service, target)?;
    locked(&folder, || {
        let variables = (service.start)(&folder)?;
        write(&folder.join("kept"), "")?;
        Ok(variables)
    })
}

/// Starts another Kafka in this folder, for a test that kills it, and prints its process id and address. The caller stops it.
pub(crate) fn start_another_kafka(folder: &Path) -> Result<(), String> {
    let home = folder_of(&SERVICES[0], &target()?)?;
    let folder =
        folder.canonicalize().map_err(|error| format!("failed to find {}: {error}", folder.display()))?;
    // Two tests may fetch the classes at once.
    let fetched = locked(&home, || kafka::fetch(&home).map(|_| ()));
    let (pid, address) = fetched.and_then(|()| kafka::start_another(&folder, &home))?;
    println!("{pid} {address}");
    Ok(())
}

/// Stops all services of this workspace, even if they are in use.
pub(crate) fn stop() -> Result<(), String> {
    let target = target()?;
    for service in &SERVICES {
        let folder = folder_of(service, &target)?;
        locked(&folder, || stop_in(service, &folder))?;
        eprintln!("{} stopped", service.name);
    }
    Ok(())
}

impl Services {
    /// Starts the services for a test run, as far as they are available.
    pub(crate) fn take() -> Result<Self, String> {
        Self::take_from(&SERVICES, &target()?)
    }

    /// Starts only the services with these names, as far as they are available.
    pub(crate) fn take_only(names: &[&str]) -> Result<Self, String> {
        let named = SERVICES.iter().filter(|service| names.contains(&service.name));
        Self::take_from(named, &target()?)
    }

    fn take_from(all: impl IntoIterator<Item = &'static Service>, target: &Path) -> Result<Self, String> {
        let (missing, not_offered) = (Vec::new(), Vec::new());
        let mut services = Self { variables: Vec::new(), missing, not_offered, used: Vec::new() };
        let is_set = |name: &str| std::env::var_os(name).is_some();
        for service in all {
            if is_set(service.variable) {
                services.not_offered.extend(service.untested(is_set));
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
                    // A program that the tests start may be named in the environment, whatever runs here.
                    let starts = |name: &str| variables.iter().any(|(variable, _)| variable == name);
                    let is_set = |name: &str| is_set(name) || starts(name);
                    services.not_offered.extend(service.untested(is_set));
                    services.variables.extend(variables);
                    services.used.push((service, folder, users));
                }
                Err(why) => services.missing.push(format!("{}: {why}", service.name)),
            }
        }
        Ok(services)
    }

    /// Stops the services that no other run uses.
    pub(crate) fn release(self) -> Result<(), String> {
        for (service, folder, users) in self.used {
            // Drop our own shared lock first, or the exclusive lock would fail.
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
            Err(format!("failed to remove its `kept` file: {error}"))
        }
        _ => Ok(()),
    }
}

/// Runs a function while no other run starts or stops the service of this folder.
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

/// Removes a folder if it exists.
fn remove(folder: &Path) -> Result<(), String> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("failed to remove {}: {error}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// Returns cargo's target directory.
pub(crate) fn target() -> Result<PathBuf, String> {
    let metadata = Cargo::new("metadata --no-deps --format-version 1").output()?;
    let metadata: Value = serde_json::from_str(&metadata)
        .map_err(|error| format!("failed to read cargo's metadata: {error}"))?;
    let target = metadata["target_directory"].as_str();
    target.map(PathBuf::from).ok_or_else(|| "cargo's metadata has no target directory".to_owned())
}

/// Returns the folder of a service, created if it is missing.
fn folder_of(service: &Service, target: &Path) -> Result<PathBuf, String> {
    let folder = target.join("services").join(service.name.to_lowercase());
    fs::create_dir_all(&folder).map_err(|error| format!("failed to create {}: {error}", folder.display()))?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use super::*;

    /// Serializes tests of locks and tests that start programs: a child briefly inherits our locks between fork and exec.
    pub(super) fn exclusive() -> MutexGuard<'static, ()> {
        static EXCLUSIVE: Mutex<()> = Mutex::new(());
        EXCLUSIVE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A service that runs as long as a file exists.
    fn start_file(folder: &Path) -> Result<Vec<Variable>, String> {
        write(&folder.join("runs"), "")?;
        Ok(vec![("WHERE".to_owned(), "here".to_owned())])
    }

    fn stop_file(folder: &Path) -> Result<(), String> {
        fs::remove_file(folder.join("runs")).map_err(|error| error.to_string())
    }

    const NOT_SET: &str = "LAZARET_TEST_NO_SUCH_THING";
    static FILE: [Service; 1] = [Service {
        name: "File",
        variable: NOT_SET,
        optional: &[
            ("WHERE", "a place"),
            ("LAZARET_TEST_NOT_THIS or PATH", "one of two"),
            (NOT_SET, "an attic"),
            ("LAZARET_TEST_NOT_THIS or LAZARET_TEST_NOR_THAT", "a cellar"),
        ],
        substitutes: &[("WHERE", "a real file"), (NOT_SET, "nothing")],
        start: start_file,
        stop: stop_file,
    }];
    static BROKEN: [Service; 1] = [Service {
        name: "Broken",
        variable: NOT_SET,
        optional: &[],
        substitutes: &[],
        start: |_| Err("it is broken".to_owned()),
        stop: |_| Ok(()),
    }];
    static GIVEN: [Service; 1] = [Service {
        name: "Given",
        variable: "PATH",
        optional: &[("PATH", "paths"), (NOT_SET, "other things")],
        substitutes: &[("PATH", "real things")],
        start: |_| Err("it is given".to_owned()),
        stop: |_| Ok(()),
    }];

    /// A folder that is removed when the test ends.
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
        let _exclusive = exclusive();
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
    fn a_service_started_by_hand_is_left_running() {
        let _exclusive = exclusive();
        let folder = Folder::new("kept");
        keep(&FILE[0], &folder.0).unwrap();
        Services::take_from(&FILE, &folder.0).unwrap().release().unwrap();
        assert!(folder.runs());
        stop_in(&FILE[0], &folder.0.join("services/file")).unwrap();
        assert!(!folder.runs());
        Services::take_from(&FILE, &folder.0).unwrap().release().unwrap();
        assert!(!folder.runs(), "it is no longer kept");
    }

    #[test]
    fn unavailable_services_are_listed_and_external_ones_are_not_started() {
        let _exclusive = exclusive();
        let folder = Folder::new("missing");
        let services = Services::take_from(&BROKEN, &folder.0).unwrap();
        assert_eq!(services.missing, ["Broken: it is broken"]);
        services.release().unwrap();
        let services = Services::take_from(&GIVEN, &folder.0).unwrap();
        assert!(services.missing.is_empty() && services.variables.is_empty());
        assert_eq!(
            services.not_offered,
            ["other things (LAZARET_TEST_NO_SUCH_THING): not set", "real things"]
        );
    }

    #[test]
    fn what_is_not_set_is_listed_in_one_line_before_what_a_substitute_cannot_do() {
        let _exclusive = exclusive();
        let folder = Folder::new("substitute");
        let services = Services::take_from(&FILE, &folder.0).unwrap();
        let unset = "an attic (LAZARET_TEST_NO_SUCH_THING), a cellar (LAZARET_TEST_NOT_THIS or LAZARET_TEST_NOR_THAT): not set";
        assert_eq!(services.not_offered, [unset, "a real file"]);
        services.release().unwrap();
    }
}
