//! The metrics of the process itself, from `/proc`. Other systems export none.

use std::fs;

use super::instruments::Instruments;
use crate::names;

/// The unit of times in `/proc`, per second: the same on every architecture that Rust supports.
const TICKS_PER_SECOND: f64 = 100.0;

/// Reads the metrics of this process, and exports those that the system tells.
pub(super) fn export(instruments: &Instruments) {
    let (stat, system) = (read("/proc/self/stat"), read("/proc/stat"));
    if let Some(seconds) = stat.as_deref().and_then(cpu_seconds) {
        // Counters are whole numbers.
        instruments.counter(&names::PROCESS_CPU, Vec::new()).absolute(seconds as u64);
    }
    let started = stat.as_deref().zip(system.as_deref()).and_then(|(stat, system)| start_time(stat, system));
    let resident = read("/proc/self/status").as_deref().and_then(resident_bytes);
    let max_fds = read("/proc/self/limits").as_deref().and_then(max_fds);
    for (family, value) in [
        (&names::PROCESS_START, started),
        (&names::PROCESS_RESIDENT, resident),
        (&names::PROCESS_OPEN_FDS, open_fds()),
        (&names::PROCESS_MAX_FDS, max_fds),
    ] {
        if let Some(value) = value {
            instruments.gauge(family, Vec::new()).set(value);
        }
    }
}

fn read(path: &str) -> Option<String> {
    // The name of a program need not be UTF-8.
    fs::read(path).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

fn open_fds() -> Option<f64> {
    // One of them lists the others.
    fs::read_dir("/proc/self/fd").ok().map(|open| open.count().saturating_sub(1) as f64)
}

/// Returns a field of `/proc/self/stat` by its number in proc(5), from 3. The second is the name of the program, which may contain
/// blanks and parentheses.
fn stat_field(stat: &str, number: usize) -> Option<f64> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(number.checked_sub(3)?)?.parse().ok()
}

fn cpu_seconds(stat: &str) -> Option<f64> {
    Some((stat_field(stat, 14)? + stat_field(stat, 15)?) / TICKS_PER_SECOND)
}

/// Returns the start of the process, from its time after the boot and the time of the boot.
fn start_time(stat: &str, system: &str) -> Option<f64> {
    let boot: f64 = system.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(boot + stat_field(stat, 22)? / TICKS_PER_SECOND)
}

fn resident_bytes(status: &str) -> Option<f64> {
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: f64 = resident.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024.0)
}

/// Returns the soft limit; infinite where there is none.
fn max_fds(limits: &str) -> Option<f64> {
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match limit.split_ascii_whitespace().next()? {
        "unlimited" => Some(f64::INFINITY),
        number => number.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str =
        "4711 (a) b (c)) S 1 4711 4711 0 -1 4194560 9034 0 12 0 1250 350 0 0 20 0 9 0 200 1503399936 8123";

    #[test]
    fn fields_are_counted_behind_the_name_of_the_program() {
        assert_eq!(cpu_seconds(STAT), Some(16.0));
        assert_eq!(start_time(STAT, "cpu  1 2 3\nbtime 1700000000\nprocesses 7\n"), Some(1_700_000_002.0));
        assert_eq!(cpu_seconds("4711 (cut"), None);
        assert_eq!(start_time(STAT, "cpu 1\n"), None);
    }

    #[test]
    fn memory_and_limits_have_units() {
        assert_eq!(resident_bytes("VmPeak:\t  99 kB\nVmRSS:\t  2048 kB\n"), Some(2_097_152.0));
        assert_eq!(resident_bytes("Name:\tlazaret\n"), None);
        let limits = "Limit  Soft  Hard  Units\nMax open files            1024                 1048576              files\n";
        assert_eq!(max_fds(limits), Some(1024.0));
        assert_eq!(max_fds("Max open files  unlimited  unlimited  files\n"), Some(f64::INFINITY));
        assert_eq!(max_fds(""), None);
    }
}
