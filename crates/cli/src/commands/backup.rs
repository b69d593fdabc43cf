//! `backup`, and `restore` with a file: copies of the embedded store.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use lazaret_config::StoreLocation;
use lazaret_daemon::{read, store_file};
use serde::Serialize;

use super::Run;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::output::{Line, print_value};

/// The first bytes of an SQLite file.
const SQLITE: &[u8; 16] = b"SQLite format 3\0";

/// The options that select the embedded store.
#[derive(Debug, Args)]
pub(super) struct StoreFile {
    /// Use the store of this configuration file; default: lazaret.yaml
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    config: Option<PathBuf>,

    /// Use this store, such as sqlite:lazaret.db
    #[arg(long, value_name = "URL", conflicts_with = "config")]
    store: Option<String>,
}

impl StoreFile {
    /// Returns whether one of the options is set.
    pub(super) fn is_given(&self) -> bool {
        self.config.is_some() || self.store.is_some()
    }

    fn path(&self) -> Result<PathBuf> {
        if let Some(url) = &self.store {
            let path = url.strip_prefix("sqlite:").filter(|path| !path.is_empty());
            return path.map(PathBuf::from).ok_or_else(|| {
                // A URL may hold a password: only its scheme is shown.
                let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
                Error::usage_hint(format!("{scheme}: is not an embedded store"), tool_of(scheme))
            });
        }
        let config = self.config.as_deref().unwrap_or(Path::new("lazaret.yaml"));
        let loaded = read(config).map_err(|error| Error::Other(error.to_string()))?;
        match loaded.config.store {
            StoreLocation::Sqlite(path) => Ok(path.into()),
            other => Err(Error::usage_hint(
                format!("the store of {} is {}, which has no file", config.display(), other.kind()),
                tool_of(other.kind()),
            )),
        }
    }
}

/// Names the tool that copies a store of this kind.
fn tool_of(kind: &str) -> &'static str {
    match kind {
        "postgres" | "postgresql" => {
            "use pg_dump and pg_restore: `pg_dump --schema=lazaret --format=custom --file=FILE DATABASE`"
        }
        "mongodb" | "mongodb+srv" => "use mongodump and mongorestore",
        _ => "write --store sqlite:PATH",
    }
}

/// Back up the embedded store to a new file, while the daemon runs. All writes that were acknowledged before are in it.
#[derive(Debug, Args)]
pub struct Backup {
    /// Write the backup to this file, which must not exist
    file: PathBuf,

    #[command(flatten)]
    store: StoreFile,
}

impl Run for Backup {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        let store = self.store.path()?;
        store_file::backup(&store, &self.file).await.map_err(|error| Error::Other(error.to_string()))?;
        let bytes = self.file.metadata().map_or(0, |file| file.len());
        let answer = Answer { store: shown(&store), file: shown(&self.file), bytes, set_aside: Vec::new() };
        let line = format!("{} backed up to {}, {bytes} bytes", answer.store, answer.file);
        print(context, &answer, &line)?;
        Ok(Exit::Ok)
    }
}

/// The file that `restore` names, if it names one: with an option for stores always, else if the word looks like a file or is
/// the name of one.
///
/// # Errors
/// When an option for stores comes with something else.
pub(super) fn named_file(words: &[String], is_for_stores: bool) -> Result<Option<PathBuf>> {
    let file = match words {
        [word] if is_for_stores || is_file(word) => Some(PathBuf::from(word)),
        _ => None,
    };
    if is_for_stores && file.is_none() {
        let hint = "name one backup file; -c, --store and --force do not apply to letters";
        return Err(Error::usage_hint("no backup file", hint));
    }
    Ok(file)
}

/// Returns whether a word names a file. A term of a query may contain a slash after its colon, as `queue:shop/mail` does.
fn is_file(word: &str) -> bool {
    let is_path = ["/", "./", "../"].iter().any(|start| word.starts_with(start));
    let is_term = word.contains(':');
    is_path || (!is_term && (word.contains('/') || word.ends_with(".db"))) || Path::new(word).is_file()
}

fn is_database(path: &Path) -> bool {
    let mut start = [0; SQLITE.len()];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && start == *SQLITE
}

/// Puts a backup in the place of the store.
pub(super) async fn restore(
    context: &Context,
    file: PathBuf,
    store: &StoreFile,
    force: bool,
) -> Result<Exit> {
    if !file.exists() {
        return Err(Error::not_found(format!("the backup {} does not exist", file.display())));
    }
    if !is_database(&file) {
        return Err(Error::usage_hint(
            format!("{} is no backup of a store, or it is damaged", file.display()),
            "name a file that `lazaret backup` wrote",
        ));
    }
    let store = store.path()?;
    if store.exists() && !force {
        return Err(Error::usage_hint(
            format!("there is a store at {}", store.display()),
            "pass --force to replace it; it is kept under another name",
        ));
    }
    let bytes = file.metadata().map_or(0, |file| file.len());
    let restored = store_file::restore(file.clone(), store.clone(), force).await;
    let restored = restored.map_err(|error| Error::Other(error.to_string()))?;
    let set_aside: Vec<String> = restored.set_aside.iter().map(|path| shown(path)).collect();
    for path in &set_aside {
        context.screen.info(&format!("the earlier file is kept as {path}"));
    }
    let answer = Answer { store: shown(&store), file: shown(&file), bytes, set_aside };
    let line = format!("{} restored from {}", answer.store, answer.file);
    print(context, &answer, &line)?;
    Ok(Exit::Ok)
}

/// The result of both commands.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Answer {
    store: String,
    file: String,
    bytes: u64,
    set_aside: Vec<String>,
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn print(context: &Context, answer: &Answer, line: &str) -> Result<()> {
    let (screen, columns) = (&context.screen, ["store", "file", "bytes", "set-aside"]);
    print_value(screen, context.format(), &columns, answer, || screen.line(&Line::of(line)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_looks_like_a_file_or_is_one_names_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let existing = folder.path().join("backup");
        std::fs::write(&existing, "").unwrap();
        let existing = existing.to_str().unwrap();
        for file in [existing, "missing.db", "backups/monday", "/backups/monday:1", "./x", "../x"] {
            assert!(is_file(file), "{file}");
        }
        for query in ["state:evicted", "queue:shop/mail", "payload./customer/id:42", "timeout", "seq:a.db.x"]
        {
            assert!(!is_file(query), "{query}");
        }
    }
}
