//! What a browser loads for the first view: the overview and its files, compressed as a proxy in front would.

use std::io::Write;
use std::process::{Command, Stdio};

use super::BENCH;
use super::site::{Site, fetch};
use crate::table::{Bar, Row};

/// The budget of the first view.
const LIMIT_KB: f64 = 100.0;

pub(super) async fn run(site: &Site) -> Result<Vec<Row>, String> {
    let overview = fetch(&site.client, &format!("{}/console/overview", site.base)).await;
    let files = overview.split('"').filter(|part| part.starts_with("/console/assets/"));
    let (mut plain, mut compressed, mut count) = (overview.len(), gzip(&overview)?, 0);
    for file in files {
        let text = fetch(&site.client, &format!("{}{file}", site.base)).await;
        plain += text.len();
        compressed += gzip(&text)?;
        count += 1;
    }
    let row = Row::new(BENCH, "first-view/overview with its files, gzip", "kB", compressed as f64 / 1e3);
    let note = format!("{count} files; without compression {:.0} kB", plain as f64 / 1e3);
    Ok(vec![row.with_bar(Bar::ValueAtMost(LIMIT_KB)).with_note(note)])
}

/// The compressed size of a text, by the program `gzip`.
fn gzip(text: &str) -> Result<usize, String> {
    let failed = |error: std::io::Error| format!("failed to run gzip: {error}");
    let mut child = Command::new("gzip")
        .arg("-c")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut input = child.stdin.take().expect("the input is piped");
    let text = text.to_owned();
    // In a thread: gzip writes before it has read all.
    let writing = std::thread::spawn(move || input.write_all(text.as_bytes()));
    let output = child.wait_with_output().map_err(failed)?;
    writing.join().expect("writing does not panic").map_err(failed)?;
    match output.status.success() {
        true => Ok(output.stdout.len()),
        false => Err(format!("gzip failed with {}", output.status)),
    }
}
