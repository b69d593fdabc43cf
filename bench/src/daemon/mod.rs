//! The group `daemon`: HTTP handlers and inboxes, against the same client and server without Lazaret.

mod bare;
mod http;
mod inbox;
pub(crate) mod memory;
mod server;

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::Scale;
use crate::embedded::disk::Disk;
use crate::table::Row;

const BENCH: &str = "daemon";
/// The consumer of all runs.
const CONSUMER: &str = "bench";
/// The number of concurrent attempts and clients.
const CONCURRENCY: usize = 64;

/// The benchmarks of the group, in order.
pub(crate) const NAMES: [&str; 3] = ["http", "inbox", "memory"];

/// Runs every benchmark of the group, or only the given one.
pub(crate) async fn run(scale: Scale, only: Option<&str>) -> Result<Vec<Row>, String> {
    let disk = Disk::find()?;
    let mut rows = Vec::new();
    for name in NAMES.into_iter().filter(|name| only.is_none_or(|only| only == *name)) {
        eprintln!("running {name}");
        let started = Instant::now();
        rows.extend(match name {
            "http" => http::run(scale, &disk).await?,
            "inbox" => inbox::run(scale, &disk).await?,
            "memory" => memory::run(scale, &disk)?,
            _ => unreachable!("every name has its benchmark"),
        });
        eprintln!("{name} took {:.0} s", started.elapsed().as_secs_f64());
    }
    Ok(rows)
}

/// Returns the payload of a message: an order of about 200 bytes.
fn payload(number: usize) -> String {
    let mut text = format!(r#"{{"order":{number},"customer":"customer-{}","items":["#, number % 10_000);
    for item in 0..5 {
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            r#"{}{{"sku":"sku-{item}","cents":{}}}"#,
            if item > 0 { "," } else { "" },
            number % 9973
        );
    }
    text.push_str("]}");
    text
}

/// Writes a file with this many messages, one per line.
fn file(disk: &Disk, count: usize, line: impl Fn(usize) -> String) -> Result<PathBuf, String> {
    let path = disk.file();
    write_lines(&path, count, line)
        .map_err(|error| format!("failed to write {}: {error}", path.display()))?;
    Ok(path)
}

fn write_lines(path: &Path, count: usize, line: impl Fn(usize) -> String) -> std::io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    for number in 0..count {
        writeln!(file, "{}", line(number))?;
    }
    file.flush()
}
