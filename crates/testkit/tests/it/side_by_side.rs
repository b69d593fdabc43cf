//! Sources side by side keep the contract as one source does.

use async_trait::async_trait;
use lazaret_core::source::Source;
use lazaret_core::{Partition, StreamName};
use lazaret_memory::MemoryLog;
use lazaret_testkit::suite::source::{Capabilities, SourceHarness};
use lazaret_testkit::{SideBySide, source_test_suite};

/// Three logs with one partition each, under names of their own.
struct Logs(Vec<MemoryLog>);

impl Logs {
    fn new() -> Self {
        Self((0..3).map(|number| MemoryLog::new(format!("log-{number}"), 1)).collect())
    }
}

#[async_trait]
impl SourceHarness for Logs {
    fn capabilities(&self) -> Capabilities {
        Capabilities { groups: false, settled_ranges: true, finite: true }
    }

    fn stream(&self) -> StreamName {
        "orders".into()
    }

    fn partitions(&self) -> u32 {
        self.0.len() as u32
    }

    async fn push(&mut self, partition: u32, payload: &str) {
        self.0[partition as usize].push(0, "key", payload.to_owned());
    }

    async fn finish(&mut self) {
        self.0.iter().for_each(MemoryLog::close);
    }

    async fn open(&mut self) -> Box<dyn Source> {
        let sources = self.0.iter().map(|log| {
            let inner = Partition::new(log.stream().clone(), 0);
            (Box::new(log.join()) as Box<dyn Source>, inner)
        });
        Box::new(SideBySide::new(self.stream(), sources.collect()))
    }

    async fn expel(&mut self, _nth: usize) {
        unreachable!("it says that it has no groups")
    }
}

source_test_suite!(logs, || async { Logs::new() });
