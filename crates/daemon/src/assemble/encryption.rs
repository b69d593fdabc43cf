//! Reads the encryption keys: from files, and from commands such as the client of a key management service.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use lazaret_config::{Encryption, KeySource};
use lazaret_sealing::{EncryptionKey, KeyRing};
use lazaret_server::StoreNotice;
use tokio::process::Command;

use crate::error::Error;

/// The largest file that is read as a key.
const FILE_LIMIT: u64 = 4096;
/// The number of characters of a command's error that are shown.
const ERROR_CHARS: usize = 200;

/// Reads all keys, the one that encrypts first.
pub(super) async fn keys(config: &Encryption) -> Result<Vec<EncryptionKey>, Error> {
    let mut keys = Vec::with_capacity(config.keys.len());
    for source in &config.keys {
        if let KeySource::File(path) = source
            && is_readable_by_all(path)
        {
            tracing::warn!(file = %path.display(), "key file readable by every user of this machine");
        }
        keys.push(key(source).await?);
    }
    Ok(keys)
}

/// Reads one key.
pub(crate) async fn key(source: &KeySource) -> Result<EncryptionKey, Error> {
    let text = match source {
        KeySource::File(path) => in_file(path),
        KeySource::Command { program, timeout } => printed(program, *timeout).await,
    };
    let key = text.and_then(|text| EncryptionKey::parse(&text).map_err(|error| error.to_string()));
    key.map_err(|why| Error::EncryptionKey { place: shown(source), why })
}

/// Why letters of a consumer cannot be decrypted. With keys that are missing, this process cannot do its work; a damaged letter holds its
/// own sequence only.
pub(crate) fn notice(keys: &KeyRing, consumer: &str) -> Option<StoreNotice> {
    match keys.missing() {
        Some(error) => {
            let why = format!("encryption: {error}; name the key under `encryption.keys`, and restart");
            Some(StoreNotice { why, is_ready: false })
        }
        None => keys.withheld(consumer).map(|why| StoreNotice { why, is_ready: true }),
    }
}

/// The place of a key, for messages. The arguments of a command may be secret.
pub(crate) fn shown(source: &KeySource) -> String {
    match source {
        KeySource::File(path) => format!("file {}", path.display()),
        KeySource::Command { program, .. } => {
            format!("command {}", program.first().map_or("", String::as_str))
        }
    }
}

/// Returns whether users that are neither the owner nor in the group of a file can read it.
#[cfg(unix)]
pub(crate) fn is_readable_by_all(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    path.metadata().is_ok_and(|file| file.mode() & 0o004 != 0)
}

#[cfg(not(unix))]
pub(crate) fn is_readable_by_all(_: &Path) -> bool {
    false
}

fn in_file(path: &Path) -> Result<Vec<u8>, String> {
    let mut text = Vec::new();
    let read = File::open(path).and_then(|file| file.take(FILE_LIMIT).read_to_end(&mut text));
    read.map(|_| text).map_err(|error| error.to_string())
}

/// Runs a command, and returns what it prints.
async fn printed(program: &[String], timeout: Duration) -> Result<Vec<u8>, String> {
    let Some((name, arguments)) = program.split_first() else { return Err("no program".to_owned()) };
    let mut command = Command::new(name);
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    let ended = tokio::time::timeout(timeout, command.output()).await;
    let output = ended.map_err(|_| format!("it did not end within {timeout:?}"))?;
    let output = output.map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let told = String::from_utf8_lossy(&output.stderr);
    let told: String = told.trim().chars().filter(|c| !c.is_control()).take(ERROR_CHARS).collect();
    Err(format!("it failed with {}: {told}", output.status))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn command(script: &str, timeout: Duration) -> KeySource {
        KeySource::Command { program: ["sh", "-c", script].map(str::to_owned).to_vec(), timeout }
    }

    #[tokio::test]
    async fn a_key_comes_from_a_file_or_a_command() {
        let here = tempfile::tempdir().unwrap();
        let path = here.path().join("lazaret.key");
        let text = EncryptionKey::generate();
        std::fs::write(&path, format!("{text}\n")).unwrap();
        let in_file = key(&KeySource::File(path.clone())).await.unwrap();
        let script = format!("cat '{}'", path.display());
        let printed = key(&command(&script, Duration::from_secs(60))).await.unwrap();
        assert_eq!(in_file.id(), printed.id());
    }

    #[tokio::test]
    async fn a_key_that_cannot_be_read_is_told_without_arguments() {
        let minute = Duration::from_secs(60);
        let cases = [
            (KeySource::File("/no/such/lazaret.key".into()), "file /no/such/lazaret.key"),
            (command("echo hunter2", minute), "expected 32 bytes"),
            (command("echo sealed >&2; exit 3", minute), "exit status: 3: sealed"),
            (command("exec sleep 600", Duration::from_millis(10)), "did not end within"),
            (
                KeySource::Command { program: vec!["/no/such/program".into()], timeout: minute },
                "command /no/such/program",
            ),
        ];
        for (source, expected) in cases {
            let error = key(&source).await.unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("hunter2"), "{error}");
        }
    }
}
