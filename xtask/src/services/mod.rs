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
    /// Starts it in a folder, unless it runs there already, and says where it is.
    start: fn(&Path) -> Result<Vec<Variable>, String>,
    stop: fn(&Path) -> Result<(), String>,
}

const SERVICES: [Service; 1] =
    [Service { name: "Kafka", variable: "LAZARET_TEST_KAFKA", start: kafka::start, stop: kafka::stop }];

/// The services of one test run. They are released by [`release`](Self::release).
pub(crate) struct Services {
    /// What the tests have to be told.
    pub(crate) variables: Vec<Variable>,
    /// What could not be had, and why.
    pub(crate) missing: Vec<String>,
    /// The folders of the services that this run uses, each with its share of `users`.
    used: Vec<(&'static Service, PathBuf, File)>,
}

/// Starts all services and prints their addresses as variables. They run until [`stop`].
pub(crate) fn start() -> Result<(), String> {
    let mut failed = Vec::new();
    for service in &SERVICES {
        if let Ok(address) = std::env::var(service.variable) {
            println!("export {}='{address}'", service.variable);
            continue;
        }
        let folder = folder_of(service)?;
        let started = locked(&folder, || {
            write(&folder.join("kept"), "")?;
            (service.start)(&folder)
        });
        match started {
            Ok(variables) => variables.iter().for_each(|(name, value)| println!("export {name}='{value}'")),
            Err(why) => failed.push(format!("{}: {why}", service.name)),
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

/// Stops all services that were started from here, whoever uses them.
pub(crate) fn stop() -> Result<(), String> {
    for service in &SERVICES {
        let folder = folder_of(service)?;
        locked(&folder, || stop_in(service, &folder))?;
        eprintln!("{} is stopped", service.name);
    }
    Ok(())
}

impl Services {
    /// The services for a test run, as far as they can be had.
    pub(crate) fn take() -> Result<Self, String> {
        let mut services = Self { variables: Vec::new(), missing: Vec::new(), used: Vec::new() };
        for service in &SERVICES {
            if std::env::var_os(service.variable).is_some() {
                continue;
            }
            let folder = folder_of(service)?;
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

/// The folder of a service, below the target directory that cargo uses.
fn folder_of(service: &Service) -> Result<PathBuf, String> {
    let metadata = Cargo::new("metadata --no-deps --format-version 1").output()?;
    let metadata: Value = serde_json::from_str(&metadata)
        .map_err(|error| format!("failed to read cargo's metadata: {error}"))?;
    let target = metadata["target_directory"].as_str().ok_or("cargo's metadata names no target directory")?;
    let folder = Path::new(target).join("services").join(service.name.to_lowercase());
    fs::create_dir_all(&folder).map_err(|error| format!("failed to make {}: {error}", folder.display()))?;
    Ok(folder)
}
