//! A daemon whose disk is small, or full when it starts.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use lazaret_core::policy::CapacityPolicy;
use rustix::process::Signal;

use crate::support::{Folder, WORKER, ask, event, get, wait_for};

const CONFIG: &str = "
listen: 127.0.0.1:0
store: sqlite:disk/lazaret.db
consumers:
  shop:
    source: { file: { path: events.jsonl, follow: true } }
    handler: { command: { program: [python3, handler.py], mode: lines, workers: 2, timeout: 5m } }
    advanced: { commit-interval: 10ms }
";

/// A small disk, as long as this lives.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts a disk of this size. Where this process may not, the test says that it did not run, and fails where
    /// everything must run.
    fn mount(at: PathBuf, mib: u64) -> Option<Self> {
        std::fs::create_dir(&at).unwrap();
        let size = format!("size={mib}m");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&at).output();
        if let Some(refusal) = refusal(mounted) {
            let must = std::env::var("CI").is_ok_and(|value| value == "true");
            assert!(!must, "a small disk could not be mounted, which needs the rights of root: {refusal}");
            println!("not run: a small disk needs the right to mount it: {refusal}");
            return None;
        }
        Some(Self(at))
    }

    fn enlarge(&self, mib: u64) {
        let size = format!("remount,size={mib}m");
        let mounted = Command::new("mount").args(["-o", &size]).arg(&self.0).output();
        assert_eq!(refusal(mounted), None);
    }

    /// The bytes of which a store on this disk takes none.
    fn reserve(&self) -> u64 {
        let disk = rustix::fs::statvfs(&self.0).unwrap();
        let size = disk.f_blocks * disk.f_frsize;
        CapacityPolicy::default().min_free.unwrap().min(CapacityPolicy::largest_reserve(size))
    }

    fn ballast(&self) -> PathBuf {
        self.0.join("ballast")
    }

    /// Writes until there is no room, not even for a byte.
    fn fill(&self) {
        let mut file = File::options().create(true).append(true).open(self.ballast()).unwrap();
        for part in [1 << 16, 1 << 12, 1] {
            while file.write_all(&vec![b'x'; part]).is_ok() {}
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Watches what is free of a disk, from another thread.
struct LowestFree {
    lowest: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    watching: JoinHandle<()>,
}

impl LowestFree {
    fn of(disk: &SmallDisk) -> Self {
        let (lowest, stop) = (Arc::new(AtomicU64::new(u64::MAX)), Arc::new(AtomicBool::new(false)));
        let (place, least, stopped) = (disk.0.clone(), lowest.clone(), stop.clone());
        let watching = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                // Gone with the disk, if the test fails.
                let Ok(disk) = rustix::fs::statvfs(&place) else { return };
                least.fetch_min(disk.f_bavail * disk.f_frsize, Ordering::Relaxed);
                std::thread::sleep(Duration::from_micros(500));
            }
        });
        Self { lowest, stop, watching }
    }

    /// The least that was free until now.
    fn so_far(&self) -> u64 {
        self.lowest.load(Ordering::Relaxed)
    }

    /// The least that was free until the end.
    fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.watching.join().unwrap();
        self.lowest.load(Ordering::Relaxed)
    }
}

/// Why a program did not do its work. `None` if it did.
fn refusal(ran: std::io::Result<Output>) -> Option<String> {
    match ran {
        Ok(ran) if ran.status.success() => None,
        Ok(ran) => Some(String::from_utf8_lossy(&ran.stderr).trim().to_owned()),
        Err(error) => Some(error.to_string()),
    }
}

/// Starts the daemon, kills it when it has letters, and leaves no room for what it has to do at its next start.
fn killed_on_a_full_disk(folder: &Folder) -> Option<SmallDisk> {
    let disk = SmallDisk::mount(folder.path("disk"), 16)?;
    folder.write("lazaret.yaml", CONFIG);
    folder.write("handler.py", WORKER);
    let lines: String = (0..40).map(|n| event(n, &format!("k{n}"), "poison")).collect();
    folder.write("events.jsonl", &lines);
    let mut daemon = folder.start(&["run"]);
    let address = daemon.address();
    wait_for("the letters", || get(&address, "/v1/status").1.contains("\"dead\":40").then_some(()));
    daemon.kill();
    disk.fill();
    // After a crash of the machine the shared memory of SQLite is gone, and needs room again.
    std::fs::remove_file(folder.path("disk/lazaret.db-shm")).unwrap();
    disk.fill();
    Some(disk)
}

fn waits(log: &Path) -> bool {
    std::fs::read_to_string(log).is_ok_and(|log| log.contains("store not opened, its disk is full"))
}

#[test]
fn a_daemon_that_starts_on_a_full_disk_says_why_and_goes_on_when_there_is_room() {
    // I1, I9
    let folder = Folder::new();
    let Some(disk) = killed_on_a_full_disk(&folder) else { return };
    folder.append("events.jsonl", &event(40, "k40", "fine"));
    let mut daemon = folder.start(&["run"]);
    wait_for("the reason in the log", || waits(&folder.path("stderr.log")).then_some(()));
    daemon.logs("API listening, store not open", 1);
    let address = daemon.address();
    assert_eq!(get(&address, "/healthz").0, 200);
    let (status, ready) = get(&address, "/readyz");
    assert_eq!(status, 503, "{ready}");
    assert!(ready.contains("shop is waiting: store not opened") && ready.contains("full"), "{ready}");
    let (status, told) = get(&address, "/v1/status");
    assert!(status == 507 && told.contains("the store is not open"), "{status} {told}");
    let disk_of = format!("are free on the disk of {}", folder.path("disk/lazaret.db").display());
    assert!(told.contains(&disk_of), "{told}");
    assert!(get(&address, "/metrics").1.contains("lazaret_consumer_failed{consumer=\"shop\"} 1"));
    std::fs::remove_file(disk.ballast()).unwrap();
    daemon.logs("store opened", 1);
    wait_for("the consumer", || (get(&address, "/readyz").0 == 200).then_some(()));
    wait_for("the rest", || {
        let (_, status) = get(&address, "/v1/status");
        (status.contains("\"dead\":40") && status.contains("\"handled\":1,")).then_some(())
    });
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0));
}

#[test]
fn more_than_a_small_disk_holds_passes_through_an_inbox() {
    // I9
    let folder = Folder::new();
    let Some(disk) = SmallDisk::mount(folder.path("disk"), 16) else { return };
    let (reserve, free) = (disk.reserve(), LowestFree::of(&disk));
    folder.write(
        "lazaret.yaml",
        &CONFIG.replace("{ file: { path: events.jsonl, follow: true } }", "{ inbox: {} }"),
    );
    folder.write("handler.py", WORKER);
    let mut daemon = folder.start(&["run"]);
    let address = daemon.address();
    wait_for("the consumer", || (get(&address, "/readyz").0 == 200).then_some(()));
    let (posts, filler) = (100, "x".repeat(400_000));
    for n in 0..posts {
        let body = format!("{{\"n\": {n}, \"kind\": \"fine\", \"filler\": \"{filler}\"}}");
        let headers = format!("lazaret-key: k{n}\r\ncontent-type: application/json\r\n");
        wait_for("room for a post", || match ask(&address, "POST", "/v1/inbox/shop", &headers, &body) {
            (202, _) => Some(()),
            (507, _) => None,
            other => panic!("{other:?}"),
        });
    }
    let handled = format!("\"handled\":{posts},");
    wait_for("the handler", || get(&address, "/v1/status").1.contains(&handled).then_some(()));
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0));
    let lowest = free.end();
    assert!(lowest >= reserve, "{lowest} bytes were free, and the reserve is {reserve}");
}

#[test]
fn a_burst_of_failures_leaves_the_reserve_free() {
    // I1, I9
    for mib in [16, 48] {
        burst_of_failures(mib);
    }
}

/// Fails more messages at once than a disk of this size has room for, and enlarges it.
fn burst_of_failures(mib: u64) {
    let folder = Folder::new();
    let Some(disk) = SmallDisk::mount(folder.path("disk"), mib) else { return };
    let (reserve, free) = (disk.reserve(), LowestFree::of(&disk));
    let burst = "workers: 16, timeout: 5m } }\n    concurrency: 1024\n    fuse: off\n    breaker: off";
    let config = CONFIG.replace("workers: 2, timeout: 5m } }", burst);
    let config = config.replace("commit-interval: 10ms", "commit-interval: 10ms, window: 1000000");
    folder.write("lazaret.yaml", &config);
    folder.write("handler.py", WORKER);
    let (events, filler) = (256 * mib as usize, "x".repeat(4096));
    let lines = (0..events).map(|n| {
        event(n, &format!("k{n}"), "poison").replace("}}", &format!(", \"filler\": \"{filler}\"}}}}"))
    });
    folder.write("events.jsonl", &lines.collect::<String>());
    let mut daemon = folder.start(&["run"]);
    let address = daemon.address();
    wait_for("the reserve", || {
        get(&address, "/v1/status").1.contains("\"held-by\":\"min-free\"").then_some(())
    });
    // What was read before is refused again and again, once a second in the log.
    daemon.logs("letter hand-off failed, source held", 3);
    let lowest = free.so_far();
    assert!(lowest >= reserve, "{lowest} bytes of {mib} MiB were free, and the reserve is {reserve}");
    let all = format!("\"dead\":{events},");
    assert!(!get(&address, "/v1/status").1.contains(&all), "all of them found room");
    disk.enlarge(16 * mib);
    wait_for("the letters", || get(&address, "/v1/status").1.contains(&all).then_some(()));
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0));
    assert!(free.end() >= reserve);
}

#[test]
fn a_daemon_that_waits_for_its_disk_can_be_stopped() {
    let folder = Folder::new();
    let Some(_disk) = killed_on_a_full_disk(&folder) else { return };
    let mut daemon = folder.start(&["run"]);
    daemon.logs("API listening, store not open", 1);
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0));
}
