//! The memory of a process that handles ten million messages: the second half against the first.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lazaret_core::handler::Payload;
use lazaret_engine::{Consumer, Options};
use lazaret_flight_recorder::MappedRecorder;
use lazaret_source_file::FileSource;
use tokio_util::sync::CancellationToken;

use super::{BENCH, CONSUMER, file};
use crate::Scale;
use crate::embedded::disk::{Disk, remove};
use crate::embedded::open;
use crate::table::{Bar, Compared, ROUNDS, Row};

/// The argument that starts this program as the measured process.
pub(crate) const CHILD: &str = "daemon-memory-of";

const MESSAGES: usize = 10_000_000;
const KEYS: usize = 100_000;
/// The allowed growth in MiB. Retained allocator memory varies by a few MiB, so the peaks of both halves are compared: one
/// leaked byte per message would show.
const FLAT: f64 = 1.1;

pub(super) fn run(scale: Scale, disk: &Disk) -> Result<Vec<Row>, String> {
    let messages = scale.count(MESSAGES);
    let events = file(disk, messages, |number| {
        format!(r#"{{"key":"k-{}","payload":{{"order":{number}}}}}"#, number % KEYS)
    })?;
    let program = std::env::current_exe().map_err(|error| format!("failed to find this program: {error}"))?;
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (early, late) = look(&program, &events, messages)?;
        first.push(early);
        second.push(late);
    }
    remove(&events);
    let name = format!("memory/{messages} messages, their second half beside the first");
    Ok(vec![
        Row::compared(BENCH, name, "MiB", &Compared::new(&second, &first)).with_bar(Bar::RatioAtMost(FLAT)),
    ])
}

/// Returns the peak memory of a separate process in the first half of the messages and in the second.
fn look(program: &Path, events: &Path, messages: usize) -> Result<(f64, f64), String> {
    let child = Command::new(program)
        .arg(CHILD)
        .arg(events)
        .arg(messages.to_string())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("failed to start the process: {error}"))?;
    for beside in ["store.db", "flight"] {
        remove(&events.with_extension(beside));
    }
    let said = String::from_utf8_lossy(&child.stdout);
    let mut sizes = said.split_whitespace().map(|word| word.parse::<f64>().ok().map(|kib| kib / 1024.0));
    let (Some(Some(early)), Some(Some(late)), true) = (sizes.next(), sizes.next(), child.status.success())
    else {
        return Err(format!("the process exited with {} and printed {said:?}", child.status));
    };
    Ok((early, late))
}

/// Runs the measured process: reads the file through a consumer on the embedded store, and prints the peak memory in both halves
/// of the messages, in KiB.
pub(crate) fn child(events: &Path, messages: u64) -> ExitCode {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(crate::WORKERS).enable_all().build();
    let (early, late) = runtime.expect("a runtime can be made").block_on(consume(events, messages));
    println!("{early} {late}");
    ExitCode::SUCCESS
}

async fn consume(events: &Path, messages: u64) -> (u64, u64) {
    let store = open(&events.with_extension("store.db"));
    let source = FileSource::open(events, store.clone(), CONSUMER, Default::default()).await;
    let recorder = MappedRecorder::open(events.with_extension("flight"), Default::default());
    let options = Options {
        until_idle: true,
        flight_recorder: Some(Arc::new(recorder.expect("the recorder can be opened"))),
        ..Options::default()
    };
    let handled = Arc::new(AtomicU64::new(0));
    let peaks: Arc<[AtomicU64; 2]> = Arc::default();
    let (count, noted) = (handled.clone(), peaks.clone());
    let (half, step) = (messages.div_ceil(2).max(1), (messages / 1000).max(1));
    let handler = move |_: Payload| {
        let number = count.fetch_add(1, Ordering::Relaxed);
        if number.is_multiple_of(step)
            && let Some(peak) = noted.get((number / half) as usize)
        {
            peak.fetch_max(resident_kib(), Ordering::Relaxed);
        }
        std::future::ready(())
    };
    let consumer = Consumer::builder(CONSUMER)
        .source(source.expect("the file can be opened"))
        .store(store)
        .handler(handler)
        .options(options)
        .build()
        .expect("the options of the benchmarks are valid");
    let stats = consumer.run(CancellationToken::new()).await.expect("the engine ends without an error");
    assert_eq!(
        (stats.handled, handled.load(Ordering::Relaxed)),
        (messages, messages),
        "every message is handled once"
    );
    (peaks[0].load(Ordering::Relaxed), peaks[1].load(Ordering::Relaxed))
}

/// Returns the resident memory of this process.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok())
        .expect("the system reports the memory of a process")
}
