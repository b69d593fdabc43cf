//! Processor time of the server and of those who look at its pages, from the kernel.

use std::time::Duration;

use super::viewers::THREAD;

/// The CPU time of this process without that of the viewers.
pub(super) fn server_cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("the kernel describes this process");
    cpu_time(&stat).saturating_sub(viewers_cpu())
}

/// The CPU time of the viewers that are there.
pub(super) fn viewers_cpu() -> Duration {
    let threads = std::fs::read_dir("/proc/self/task").expect("the kernel lists the threads");
    let viewers = threads.filter_map(|thread| {
        let stat = std::fs::read_to_string(thread.ok()?.path().join("stat")).ok()?;
        stat.contains(&format!("({THREAD})")).then(|| cpu_time(&stat))
    });
    viewers.sum()
}

/// User and system time. The clock of the kernel has 100 ticks a second.
fn cpu_time(stat: &str) -> Duration {
    // The second field is the name in parentheses; the fourteenth and fifteenth are user and system time.
    let fields = stat.rsplit_once(") ").expect("the name is in parentheses").1;
    let ticks: u64 = fields.split(' ').skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}
