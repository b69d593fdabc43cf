//! What was recorded, and its exploration.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use lazaret_fuzz::Random;

use crate::disk::{Disk, FileId, Survival};

/// One change of the recorded folder.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields are named like what they hold")]
pub enum Event {
    /// A write by a call.
    Write { file: FileId, at: u64, bytes: Vec<u8> },
    /// A write to mapped memory.
    Store { file: FileId, at: u64, bytes: Vec<u8> },
    /// A new length.
    Resize { file: FileId, length: u64 },
    /// A new length, if it is larger.
    Extend { file: FileId, length: u64 },
    /// All earlier changes of a file are on the disk.
    Sync { file: FileId },
    /// A new file.
    Create { name: String, file: FileId },
    /// A file with a new name.
    Rename { from: String, to: String, file: FileId },
    /// A file without a name.
    Remove { name: String, file: FileId },
    /// All earlier changes of names are on the disk.
    SyncFolder,
    /// A mark of the test.
    Mark,
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write { file, at, bytes } => {
                write!(f, "write {} bytes at {at} of file {}", bytes.len(), file.0)
            }
            Self::Store { file, at, bytes } => {
                write!(f, "store {} bytes at {at} of mapped file {}", bytes.len(), file.0)
            }
            Self::Resize { file, length } => write!(f, "resize file {} to {length}", file.0),
            Self::Extend { file, length } => write!(f, "extend file {} to {length}", file.0),
            Self::Sync { file } => write!(f, "sync file {}", file.0),
            Self::Create { name, file } => write!(f, "create {name} as file {}", file.0),
            Self::Rename { from, to, file } => write!(f, "rename {from} to {to}, file {}", file.0),
            Self::Remove { name, file } => write!(f, "remove {name}, file {}", file.0),
            Self::SyncFolder => write!(f, "sync the folder"),
            Self::Mark => write!(f, "mark"),
        }
    }
}

/// What was recorded.
#[derive(Debug)]
pub struct Log {
    initial: BTreeMap<String, Vec<u8>>,
    events: Vec<Event>,
}

/// How many states to rebuild, and which.
#[derive(Clone, Copy, Debug)]
pub struct Exploration {
    /// The seed of every random choice. `LAZARET_POWER_LOSS_SEED` sets it.
    pub seed: u64,
    /// The maximum number of states; more are chosen by the seed. `LAZARET_POWER_LOSS_STATES` sets it.
    pub limit: usize,
    /// The number of random selections at each cut.
    pub random: usize,
    /// The first cut, to explore the end of a log only.
    pub from: usize,
}

impl Exploration {
    /// An exploration of up to this many states, or as the environment says.
    pub fn of(limit: usize) -> Self {
        let number = |name| std::env::var(name).ok().and_then(|value| value.parse().ok());
        let seed = number("LAZARET_POWER_LOSS_SEED").unwrap_or(1);
        let limit = number("LAZARET_POWER_LOSS_STATES").map_or(limit, |states| states as usize);
        Self { seed, limit, random: 3, from: 0 }
    }

    /// An exploration of every kind of state at each cut from this one on. What it finds does not depend on the seed.
    pub fn all_from(cut: usize) -> Self {
        Self { limit: usize::MAX, from: cut, ..Self::of(0) }
    }
}

/// What was explored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Explored {
    /// The number of cuts.
    pub cuts: usize,
    /// The number of different states that were checked.
    pub states: usize,
}

/// The files after a power cut.
#[derive(Debug)]
pub struct State {
    cut: usize,
    survival: Survival,
    files: BTreeMap<String, Vec<u8>>,
}

impl State {
    /// The number of events before the cut.
    pub fn cut(&self) -> usize {
        self.cut
    }

    /// What has survived it.
    pub fn survival(&self) -> Survival {
        self.survival
    }

    /// The files.
    pub fn files(&self) -> &BTreeMap<String, Vec<u8>> {
        &self.files
    }

    /// Adds a file.
    pub fn insert(&mut self, name: &str, content: Vec<u8>) {
        self.files.insert(name.to_owned(), content);
    }

    /// Puts the files into a folder, in place of all that it holds.
    ///
    /// # Panics
    /// If they cannot be written.
    pub fn write_to(&self, folder: &Path) {
        for entry in fs::read_dir(folder).expect("the folder can be read") {
            fs::remove_file(entry.expect("the folder can be read").path()).expect("the file can be removed");
        }
        for (name, content) in &self.files {
            let mut options = fs::OpenOptions::new();
            let file = options.write(true).create_new(true).mode(0o600).open(folder.join(name));
            file.and_then(|mut file| file.write_all(content)).expect("the file can be written");
        }
    }
}

/// Says where a check has failed.
struct Place<'a> {
    log: &'a Log,
    state: &'a State,
    seed: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let (cut, survival) = (self.state.cut, self.state.survival);
        eprintln!("power cut after event {cut} of {}, survival: {survival:?}", self.log.events.len());
        eprintln!(
            "repeat it with LAZARET_POWER_LOSS_SEED={} and LAZARET_POWER_LOSS_STATES=1000000",
            self.seed
        );
        let lengths =
            self.state.files.iter().map(|(name, content)| format!("{name}: {} bytes", content.len()));
        eprintln!("files: {}", lengths.collect::<Vec<_>>().join(", "));
        for (index, event) in self.log.events[..cut].iter().enumerate().skip(cut.saturating_sub(30)) {
            eprintln!("{index:6} {event:?}");
        }
    }
}

impl Log {
    pub(crate) fn new(initial: BTreeMap<String, Vec<u8>>, events: Vec<Event>) -> Self {
        Self { initial, events }
    }

    /// The events, in order.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The log of a program that does not sync the files with these names, to see that this is found. Marks take the place of the
    /// syncs, so that events keep their numbers.
    #[must_use]
    pub fn without_syncs(&self, is_meant: impl Fn(&str) -> bool) -> Self {
        let meant: HashSet<FileId> = self
            .events
            .iter()
            .filter_map(|event| match event {
                Event::Create { name, file } | Event::Rename { to: name, file, .. } => Some((name, *file)),
                _ => None,
            })
            .filter_map(|(name, file)| is_meant(name).then_some(file))
            .collect();
        let without = |event: &Event| match event {
            Event::Sync { file } if meant.contains(file) => Event::Mark,
            event => event.clone(),
        };
        Self { initial: self.initial.clone(), events: self.events.iter().map(without).collect() }
    }

    /// The state without a power cut, after the last event.
    pub fn last(&self) -> State {
        State { cut: self.events.len(), survival: Survival::Everything, files: self.end() }
    }

    /// The files without a power cut.
    pub(crate) fn end(&self) -> BTreeMap<String, Vec<u8>> {
        let mut disk = Disk::new(&self.initial);
        self.events.iter().for_each(|event| disk.add(event));
        disk.after(Survival::Everything)
    }

    /// Cuts the power after every event, and checks the states that the files may have then: those of every [`Survival`], and random
    /// ones. Equal states between two marks are checked once.
    pub fn explore(&self, exploration: &Exploration, mut check: impl FnMut(&State)) -> Explored {
        let chosen = self.choose(exploration);
        let mut disk = Disk::new(&self.initial);
        let (mut marks, mut added, mut cuts) = (0, 0, 0);
        let mut seen = HashSet::new();
        for (cut, survivals) in chosen {
            for event in &self.events[added..cut] {
                marks += usize::from(*event == Event::Mark);
                disk.add(event);
            }
            added = cut;
            cuts += 1;
            for survival in survivals {
                let state = State { cut, survival, files: disk.after(survival) };
                let mut hasher = DefaultHasher::new();
                (marks, &state.files).hash(&mut hasher);
                if seen.insert(hasher.finish()) {
                    let _place = Place { log: self, state: &state, seed: exploration.seed };
                    check(&state);
                }
            }
        }
        Explored { cuts, states: seen.len() }
    }

    /// The cuts, and what survives each.
    fn choose(&self, exploration: &Exploration) -> BTreeMap<usize, Vec<Survival>> {
        let mut random = Random::new(exploration.seed);
        let mut disk = Disk::new(&self.initial);
        let mut all = Vec::new();
        for cut in 0..=self.events.len() {
            let last = cut.checked_sub(1).map(|index| &self.events[index]);
            if let Some(last) = last {
                disk.add(last);
            }
            // More is demanded after the mark, of the same disk.
            if cut < exploration.from || self.events.get(cut) == Some(&Event::Mark) {
                continue;
            }
            all.extend(disk.survivals(last).into_iter().map(|survival| (cut, survival)));
            if disk.is_dirty() {
                all.extend((0..exploration.random).map(|_| (cut, Survival::Random(random.number()))));
            }
        }
        let mut chosen: BTreeMap<usize, Vec<Survival>> = BTreeMap::new();
        for index in 0..exploration.limit.min(all.len()) {
            let other = index + random.below(all.len() - index);
            all.swap(index, other);
            let (cut, survival) = all[index];
            chosen.entry(cut).or_default().push(survival);
        }
        chosen
    }
}
