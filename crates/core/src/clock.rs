//! Time as a parameter.

use std::sync::LazyLock;
use std::time::Duration;

use jiff::Timestamp;

/// The source of the current time. The engine and the stores take one as a parameter, so that a simulation controls time.
pub trait Clock: Send + Sync + 'static {
    /// The current time.
    fn now(&self) -> Timestamp;

    /// The time since some fixed moment. It never goes back, and goes on while the process is stopped and while the machine is
    /// suspended: leases end meanwhile. Nobody can set it. Default: that of the machine. A clock of simulated time has one of its own.
    fn steady(&self) -> Duration {
        since_boot()
    }

    /// Names the moment from which [`steady`](Self::steady) counts, if it outlives the process: a later process goes on with the
    /// count. Default: the boot of the machine, where the system names it.
    fn boot(&self) -> Option<String> {
        BOOT.clone()
    }
}

/// The machine's clock.
///
/// ```
/// use lazaret_core::{Clock, SystemClock};
/// let before = SystemClock.steady();
/// assert!(SystemClock.steady() >= before);
/// assert_eq!(SystemClock.boot(), SystemClock.boot());
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// The clock that counts suspends. Linux has another one that does not, under the name that it has elsewhere.
#[cfg(any(target_os = "linux", target_os = "android"))]
const STEADY: rustix::time::ClockId = rustix::time::ClockId::Boottime;
#[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
const STEADY: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

#[cfg(unix)]
fn since_boot() -> Duration {
    let time = rustix::time::clock_gettime(STEADY);
    // It starts at zero, and has less than a second of nanoseconds.
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The id of this boot of the machine.
static BOOT: LazyLock<Option<String>> = LazyLock::new(|| {
    // Only Linux has it, and with it the clock that counts suspends.
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned()).filter(|id| !id.is_empty())
});

#[cfg(not(unix))]
fn since_boot() -> Duration {
    static START: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);
    START.elapsed()
}
