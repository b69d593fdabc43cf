//! The file source fulfils the contract of sources.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lazaret_core::source::Source;
use lazaret_core::{Partition, StreamName, SystemClock};
use lazaret_memory::MemoryStore;
use lazaret_source_file::{FileSource, Options};
use lazaret_testkit::suite::source::{Capabilities, SourceHarness};
use lazaret_testkit::{SideBySide, source_test_suite};
use tempfile::TempDir;

/// Two followed files as two partitions. The ends of files are tested in `lines.rs`.
struct Files {
    folder: TempDir,
    checkpoints: Arc<MemoryStore>,
    batch: usize,
}

impl Files {
    fn new(batch: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let files = Self { folder, checkpoints: Arc::new(MemoryStore::new(Arc::new(SystemClock))), batch };
        for partition in 0..files.partitions() {
            std::fs::write(files.path(partition), "").unwrap();
        }
        files
    }

    fn path(&self, partition: u32) -> PathBuf {
        self.folder.path().join(format!("{partition}.jsonl"))
    }
}

#[async_trait]
impl SourceHarness for Files {
    fn capabilities(&self) -> Capabilities {
        Capabilities { groups: false, settled_ranges: true, finite: false }
    }

    fn stream(&self) -> StreamName {
        "orders".into()
    }

    fn partitions(&self) -> u32 {
        2
    }

    async fn push(&mut self, partition: u32, payload: &str) {
        // The cases compare the payloads that they push, which are not JSON.
        let mut line = String::from("{\"key\":\"k\",\"payload-base64\":\"");
        line.push_str(&base64(payload));
        line.push_str("\"}\n");
        let mut file = OpenOptions::new().append(true).open(self.path(partition)).unwrap();
        file.write_all(line.as_bytes()).unwrap();
    }

    async fn finish(&mut self) {
        unreachable!("it says that it is not finite")
    }

    async fn open(&mut self) -> Box<dyn Source> {
        let mut sources: Vec<(Box<dyn Source>, Partition)> = Vec::new();
        for partition in 0..self.partitions() {
            let options = Options {
                follow: true,
                poll: Duration::from_millis(5),
                batch: self.batch,
                ..Options::default()
            };
            let name = format!("file-{partition}");
            let source = FileSource::open(self.path(partition), self.checkpoints.clone(), name, options)
                .await
                .unwrap();
            let inner = source.partition();
            sources.push((Box::new(source), inner));
        }
        Box::new(SideBySide::new(self.stream(), sources))
    }

    async fn expel(&mut self, _nth: usize) {
        unreachable!("it says that it has no groups")
    }
}

/// Encodes short texts in base64.
fn base64(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for chunk in text.as_bytes().chunks(3) {
        let bits =
            chunk.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for digit in 0..=chunk.len() {
            out.push(char::from(DIGITS[(bits >> (18 - 6 * digit) & 63) as usize]));
        }
    }
    out
}

source_test_suite!(files, io, || async { Files::new(512) });
source_test_suite!(files_one_by_one, io, || async { Files::new(1) });
