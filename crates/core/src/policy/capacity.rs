//! Capacity: how many letters a queue may hold, and how much room its store may take.

use std::fmt;

use crate::store::Occupancy;

const GIB: u64 = 1 << 30;

/// The share of a file system beyond which no reserve is demanded: a small disk is not too small for its reserve.
const LARGEST_RESERVE: u64 = 20;

/// Bounds that stop a consumer from reading before its store is out of room. They are generous: what fails on one key, or on
/// a thousand, stops no other key. Beyond a bound nothing is lost, the source waits (I9).
///
/// ```
/// use lazaret_core::policy::CapacityPolicy;
/// use lazaret_core::store::Occupancy;
/// let policy = CapacityPolicy { max_letters: Some(1_000), ..CapacityPolicy::default() };
/// let room = Occupancy { used: Some(1 << 20), free: Some(1 << 40), ..Occupancy::default() };
/// assert_eq!(policy.shortage(999, &room), None);
/// let shortage = policy.shortage(1_000, &room).unwrap();
/// assert_eq!(shortage.to_string(), "the queue holds 1000 open letters, and max-letters is 1000");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapacityPolicy {
    /// The most open letters of a queue.
    pub max_letters: Option<u64>,
    /// The most bytes that the store takes, closed letters included.
    pub max_bytes: Option<u64>,
    /// The least number of bytes that stay free on the file system of the store, but never more than a twentieth of it.
    pub min_free: Option<u64>,
}

impl Default for CapacityPolicy {
    /// 10 million letters, 100 GiB, 1 GiB of free disk.
    fn default() -> Self {
        Self { max_letters: Some(10_000_000), max_bytes: Some(100 * GIB), min_free: Some(GIB) }
    }
}

impl CapacityPolicy {
    /// No bounds.
    pub const NONE: Self = Self { max_letters: None, max_bytes: None, min_free: None };

    /// The bound that is reached, if any; what the store does not know bounds nothing.
    pub fn shortage(&self, letters: u64, store: &Occupancy) -> Option<Shortage> {
        if let Some(max) = self.max_letters.filter(|max| letters >= *max) {
            return Some(Shortage::Letters { open: letters, max });
        }
        if let (Some(max), Some(used)) = (self.max_bytes, store.used)
            && used >= max
        {
            return Some(Shortage::Bytes { used, max });
        }
        let (min, available) = (self.reserve(store)?, store.available()?);
        self.disk(store).filter(|_| available < min).map(Shortage::Disk)
    }

    /// The bytes that may be written before a bound is reached; `None` if none depends on bytes, as far as the store knows.
    ///
    /// ```
    /// use lazaret_core::policy::CapacityPolicy;
    /// use lazaret_core::store::Occupancy;
    /// let policy = CapacityPolicy { max_bytes: Some(1_000), min_free: Some(100), max_letters: None };
    /// let room = |used, free| Occupancy { used: Some(used), free: Some(free), ..Occupancy::default() };
    /// assert_eq!(policy.room(&room(400, 5_000)), Some(600));
    /// assert_eq!(policy.room(&room(400, 300)), Some(200));
    /// assert_eq!(policy.room(&room(2_000, 300)), Some(0));
    /// assert_eq!(CapacityPolicy::NONE.room(&room(400, 300)), None);
    /// ```
    pub fn room(&self, store: &Occupancy) -> Option<u64> {
        let by_size = self.max_bytes.zip(store.used).map(|(max, used)| max.saturating_sub(used));
        let by_disk = self.reserve(store).zip(store.available()).map(|(min, free)| free.saturating_sub(min));
        by_size.into_iter().chain(by_disk).min()
    }

    /// What is free of the store's disk, and its reserve; `None` if the store does not know its disk.
    pub fn disk(&self, store: &Occupancy) -> Option<DiskSpace> {
        let Occupancy { free, pending, reusable, .. } = *store;
        Some(DiskSpace { free: free?, pending, reusable, reserve: self.reserve(store) })
    }

    /// The bytes that stay free on the file system of the store.
    fn reserve(&self, store: &Occupancy) -> Option<u64> {
        let min = self.min_free?;
        Some(store.size.map_or(min, |size| min.min(Self::largest_reserve(size))))
    }

    /// The largest reserve of a disk of this size.
    pub const fn largest_reserve(size: u64) -> u64 {
        size / LARGEST_RESERVE
    }
}

/// The bound that a consumer has reached. Its text is for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// The queue has too many letters.
    Letters {
        /// The number of open ones.
        open: u64,
        /// The most.
        max: u64,
    },
    /// The store takes too much room.
    Bytes {
        /// What it takes.
        used: u64,
        /// The most.
        max: u64,
    },
    /// The disk is almost full.
    Disk(DiskSpace),
}

impl Shortage {
    /// The key of the bound.
    pub const fn limit(&self) -> &'static str {
        match self {
            Self::Letters { .. } => "max-letters",
            Self::Bytes { .. } => "max-bytes",
            Self::Disk(_) => "min-free",
        }
    }

    /// What a person can do about it.
    pub const fn remedy(&self) -> &'static str {
        match self {
            Self::Letters { .. } => "replay, resolve or evict letters, or raise the bound",
            Self::Bytes { .. } => "shorten keep-closed, evict letters, or raise the bound",
            Self::Disk(_) => DiskSpace::REMEDY,
        }
    }

    /// Its text for people, with the place of the store's files, if it is known: it tells which disk is short of room.
    ///
    /// ```
    /// use lazaret_core::policy::{DiskSpace, Shortage};
    /// let disk = DiskSpace { free: 100 << 20, reserve: Some(1 << 30), ..DiskSpace::default() };
    /// let shortage = Shortage::Disk(disk);
    /// assert_eq!(
    ///     shortage.describe(Some("/var/lib/lazaret/lazaret.db")),
    ///     "100.0 MiB are free on the disk of /var/lib/lazaret/lazaret.db, and 1.0 GiB must stay free (min-free)"
    /// );
    /// ```
    pub fn describe(&self, place: Option<&str>) -> String {
        match *self {
            Self::Disk(disk) => disk.describe(place),
            Self::Letters { .. } | Self::Bytes { .. } => self.to_string(),
        }
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Letters { open, max } => {
                write!(f, "the queue holds {open} open letters, and max-letters is {max}")
            }
            Self::Bytes { used, max } => {
                write!(f, "the store takes {}, and max-bytes is {}", Bytes(*used), Bytes(*max))
            }
            Self::Disk(_) => f.write_str(&self.describe(None)),
        }
    }
}

/// What is free of the disk of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskSpace {
    /// What is free on the disk, as the system tells it.
    pub free: u64,
    /// What the logs of the store still take of it, at most.
    pub pending: u64,
    /// What is free in the files of the store.
    pub reusable: u64,
    /// What must stay free.
    pub reserve: Option<u64>,
}

impl DiskSpace {
    /// What a person can do when it is too little.
    pub const REMEDY: &'static str = "free some of the disk, enlarge it, or lower min-free";

    /// Its text for people, with the place of the store's files, if it is known.
    ///
    /// ```
    /// use lazaret_core::policy::DiskSpace;
    /// let full = DiskSpace::default();
    /// assert_eq!(full.describe(Some("/data/lazaret.db")), "0 bytes are free on the disk of /data/lazaret.db");
    /// assert_eq!(full.describe(None), "0 bytes of the store's disk are free");
    /// let disk = DiskSpace { free: 3 << 20, pending: 2 << 20, reusable: 0, reserve: Some(3 << 20) };
    /// assert_eq!(
    ///     disk.describe(Some("/data/lazaret.db")),
    ///     "3.0 MiB are free on the disk of /data/lazaret.db, of which the store's logs may take 2.0 MiB, \
    ///      and 3.0 MiB must stay free (min-free)"
    /// );
    /// let disk = DiskSpace { pending: 0, reusable: 1 << 20, reserve: None, ..disk };
    /// assert_eq!(
    ///     disk.describe(Some("/data/lazaret.db")),
    ///     "3.0 MiB are free on the disk of /data/lazaret.db and 1.0 MiB in the file itself"
    /// );
    /// ```
    pub fn describe(&self, place: Option<&str>) -> String {
        let free = Bytes(self.free);
        let mut text = match place {
            Some(place) => format!("{free} are free on the disk of {place}"),
            None => format!("{free} of the store's disk are free"),
        };
        if self.reusable > 0 {
            text += &format!(" and {} in the file itself", Bytes(self.reusable));
        }
        if self.pending > 0 {
            text += &format!(", of which the store's logs may take {}", Bytes(self.pending));
        }
        if let Some(reserve) = self.reserve {
            text += &format!(", and {} must stay free (min-free)", Bytes(reserve));
        }
        text
    }
}

/// A number of bytes for people.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(GIB, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match units.into_iter().find(|(size, _)| self.0 >= *size) {
            Some((size, unit)) => write!(f, "{:.1} {unit}", self.0 as f64 / size as f64),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLENTY: Occupancy =
        Occupancy { used: Some(GIB), free: Some(50 * GIB), size: Some(100 * GIB), pending: 0, reusable: 0 };

    #[test]
    fn each_bound_is_reached_by_its_own_measure() {
        let policy = CapacityPolicy::default();
        let text = |letters, room: Occupancy| policy.shortage(letters, &room).map(|short| short.to_string());
        assert_eq!(text(9_999_999, PLENTY), None);
        assert!(text(10_000_000, PLENTY).unwrap().contains("max-letters is 10000000"));
        let large = text(0, Occupancy { used: Some(100 * GIB), ..PLENTY });
        assert_eq!(large.unwrap(), "the store takes 100.0 GiB, and max-bytes is 100.0 GiB");
        let low = text(0, Occupancy { free: Some(GIB - 1), ..PLENTY });
        assert_eq!(
            low.unwrap(),
            "1024.0 MiB of the store's disk are free, and 1.0 GiB must stay free (min-free)"
        );
        assert_eq!(CapacityPolicy::NONE.shortage(u64::MAX, &Occupancy { free: Some(0), ..PLENTY }), None);
        let disk = |policy: CapacityPolicy| policy.disk(&PLENTY).unwrap();
        let expected = DiskSpace { free: 50 * GIB, reserve: Some(GIB), ..DiskSpace::default() };
        assert_eq!(disk(policy), expected);
        assert_eq!(disk(CapacityPolicy::NONE).reserve, None);
    }

    #[test]
    fn a_small_disk_has_a_small_reserve() {
        let small = Occupancy { used: Some(0), free: Some(60 << 20), size: Some(1 << 30), ..PLENTY };
        assert_eq!(CapacityPolicy::default().shortage(0, &small), None);
        let full = Occupancy { free: Some(50 << 20), ..small };
        assert!(matches!(CapacityPolicy::default().shortage(0, &full), Some(Shortage::Disk(_))));
    }

    #[test]
    fn room_in_the_files_counts_and_what_the_logs_still_take_does_not() {
        let policy = CapacityPolicy { min_free: Some(GIB), ..CapacityPolicy::NONE };
        let room = |free, pending, reusable| Occupancy { free: Some(free), pending, reusable, ..PLENTY };
        assert_eq!(policy.room(&room(2 * GIB, GIB / 2, 0)), Some(GIB / 2));
        assert!(policy.shortage(0, &room(2 * GIB, GIB + 1, 0)).is_some());
        assert_eq!(policy.room(&room(GIB / 2, 0, GIB)), Some(GIB / 2));
        assert_eq!(policy.shortage(0, &room(GIB / 2, 0, GIB)), None);
        assert_eq!(
            policy.shortage(0, &room(2 * GIB, 3 * GIB, GIB)),
            None,
            "the logs take what is free at most"
        );
    }

    #[test]
    fn what_a_store_does_not_know_bounds_nothing() {
        assert_eq!(CapacityPolicy::default().shortage(1, &Occupancy::default()), None);
    }
}
