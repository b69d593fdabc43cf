//! A disk: what is surely on it, and what may be.

use std::collections::BTreeMap;

use lazaret_fuzz::Random;

use crate::log::Event;

/// What a disk writes as a whole.
pub(crate) const SECTOR_BYTES: usize = 512;
/// What a processor writes as a whole.
const WORD_BYTES: usize = 8;

/// A file, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub(crate) usize);

/// What of the changes since the last syncs has survived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Survival {
    /// Nothing.
    Nothing,
    /// All changes.
    Everything,
    /// All data, and no change of a name.
    NoNames,
    /// All data, as far as the old lengths reach.
    OldLengths,
    /// All lengths, without data.
    OnlyLengths,
    /// The last change of each file.
    OnlyLast,
    /// Everything, but only the first half of the last write.
    TornLast,
    /// Everything in this file, nothing in the others.
    OnlyIn(FileId),
    /// Nothing in this file, everything in the others.
    NothingIn(FileId),
    /// A random selection.
    Random(u64),
}

/// The disk at a cut.
#[derive(Default)]
pub(crate) struct Disk<'a> {
    files: BTreeMap<FileId, File<'a>>,
    names: BTreeMap<String, FileId>,
    /// Changes of names since the folder was synced.
    renames: Vec<&'a Event>,
}

/// A file: as synced, and what was changed since.
#[derive(Default)]
struct File<'a> {
    synced: Vec<u8>,
    changes: Vec<Change<'a>>,
    /// The lengths that it had since; the first is the synced one.
    lengths: Vec<usize>,
}

#[derive(Clone, Copy)]
enum Change<'a> {
    Write { at: usize, bytes: &'a [u8], unit: usize },
    Resize(usize),
    Extend(usize),
}

/// What of the changes of one file has survived.
enum Kept {
    Nothing,
    All,
    Last,
    AllButHalfOfLast,
    First(usize),
    /// Each change with this chance in 8.
    Changes(usize),
    /// Each unit of each write with this chance in 8.
    Units(usize),
}

impl<'a> Disk<'a> {
    pub(crate) fn new(initial: &'a BTreeMap<String, Vec<u8>>) -> Self {
        let mut disk = Self::default();
        for (index, (name, content)) in initial.iter().enumerate() {
            let file = File { synced: content.clone(), changes: Vec::new(), lengths: vec![content.len()] };
            disk.files.insert(FileId(index), file);
            disk.names.insert(name.clone(), FileId(index));
        }
        disk
    }

    /// Adds the next event.
    pub(crate) fn add(&mut self, event: &'a Event) {
        match event {
            Event::Write { file, at, bytes } => self.change(*file, *at, bytes, SECTOR_BYTES),
            Event::Store { file, at, bytes } => self.change(*file, *at, bytes, WORD_BYTES),
            Event::Resize { file, length } => {
                self.file(*file).push(Change::Resize(usize_of(*length)));
            }
            Event::Extend { file, length } => {
                self.file(*file).push(Change::Extend(usize_of(*length)));
            }
            Event::Sync { file } => {
                self.file(*file).sync();
                self.sync_name(*file);
            }
            Event::Create { .. } | Event::Rename { .. } | Event::Remove { .. } => self.renames.push(event),
            Event::SyncFolder => {
                for change in std::mem::take(&mut self.renames) {
                    rename(&mut self.names, change);
                }
            }
            Event::Mark => {}
        }
    }

    fn change(&mut self, file: FileId, at: u64, bytes: &'a [u8], unit: usize) {
        self.file(file).push(Change::Write { at: usize_of(at), bytes, unit });
    }

    fn file(&mut self, file: FileId) -> &mut File<'a> {
        self.files.entry(file).or_insert_with(|| File { lengths: vec![0], ..File::default() })
    }

    /// A file that was synced has its name. What happened to that name, and to the file, before is superseded.
    fn sync_name(&mut self, synced: FileId) {
        let is_its = |change: &&Event| match change {
            Event::Create { file, .. } | Event::Rename { file, .. } => *file == synced,
            _ => false,
        };
        let Some(last) = self.renames.iter().rposition(is_its) else { return };
        let (Event::Create { name, .. } | Event::Rename { to: name, .. }) = self.renames[last] else {
            return;
        };
        let mut index = 0;
        let names = &mut self.names;
        self.renames.retain(|change| {
            index += 1;
            if index > last + 1 {
                return true;
            }
            match change {
                Event::Create { file, name: other } if *file == synced || other == name => false,
                Event::Remove { name: other, .. } if other == name => false,
                Event::Rename { from, to, file } if *file == synced || to == name => {
                    if names.get(from) == Some(file) {
                        names.remove(from);
                    }
                    false
                }
                _ => true,
            }
        });
        self.names.insert(name.clone(), synced);
    }

    /// The kinds of survival that differ at this cut, apart from random ones.
    pub(crate) fn survivals(&self, last: Option<&Event>) -> Vec<Survival> {
        let mut survivals = vec![Survival::Everything];
        // What is surely there changes with these only; and with what is demanded, at a mark.
        if !matches!(last, Some(Event::Write { .. } | Event::Resize { .. } | Event::Extend { .. })) {
            survivals.push(Survival::Nothing);
        }
        if !self.renames.is_empty() {
            survivals.push(Survival::NoNames);
        }
        let dirty: Vec<FileId> = self.dirty().collect();
        if dirty.iter().any(|file| self.files[file].has_new_length()) {
            survivals.extend([Survival::OldLengths, Survival::OnlyLengths]);
        }
        if dirty.iter().any(|file| self.files[file].changes.len() > 1) {
            survivals.push(Survival::OnlyLast);
        }
        if let Some(Event::Write { bytes, .. }) = last
            && bytes.len() > SECTOR_BYTES
        {
            survivals.push(Survival::TornLast);
        }
        if dirty.len() > 1 {
            survivals
                .extend(dirty.iter().flat_map(|file| [Survival::OnlyIn(*file), Survival::NothingIn(*file)]));
        }
        survivals
    }

    /// Returns whether anything may be lost.
    pub(crate) fn is_dirty(&self) -> bool {
        !self.renames.is_empty() || self.dirty().next().is_some()
    }

    /// The files with changes since their sync.
    fn dirty(&self) -> impl Iterator<Item = FileId> {
        self.files.iter().filter(|(_, file)| !file.changes.is_empty()).map(|(id, _)| *id)
    }

    /// The files after a power cut.
    pub(crate) fn after(&self, survival: Survival) -> BTreeMap<String, Vec<u8>> {
        let mut random = Random::new(if let Survival::Random(seed) = survival { seed } else { 0 });
        let mut names = self.names.clone();
        for change in self.surviving_renames(survival, &mut random) {
            rename(&mut names, change);
        }
        let content = |(name, file): (String, FileId)| {
            let content = self
                .files
                .get(&file)
                .map_or_else(Vec::new, |file_data| file_data.after(file, survival, &mut random));
            (name, content)
        };
        names.into_iter().map(content).collect()
    }

    fn surviving_renames(&self, survival: Survival, random: &mut Random) -> Vec<&'a Event> {
        match survival {
            Survival::Nothing | Survival::NoNames => Vec::new(),
            Survival::Random(_) => match random.below(4) {
                0 => Vec::new(),
                1 => self.renames.clone(),
                2 => self.renames[..random.below(self.renames.len() + 1)].to_vec(),
                _ => self.renames.iter().copied().filter(|_| random.one_in(2)).collect(),
            },
            _ => self.renames.clone(),
        }
    }
}

impl<'a> File<'a> {
    fn push(&mut self, change: Change<'a>) {
        let length = self.lengths.last().copied().unwrap_or_default();
        self.lengths.push(match change {
            Change::Write { at, bytes, .. } => length.max(at + bytes.len()),
            Change::Resize(length) => length,
            Change::Extend(other) => length.max(other),
        });
        self.changes.push(change);
    }

    fn has_new_length(&self) -> bool {
        self.lengths.iter().any(|length| *length != self.synced.len())
    }

    fn sync(&mut self) {
        self.synced = self.content(&Kept::All, &mut Random::new(0));
        let length = self.last_length();
        self.synced.resize(length, 0);
        self.changes.clear();
        self.lengths = vec![length];
    }

    fn last_length(&self) -> usize {
        self.lengths.last().copied().unwrap_or_default()
    }

    fn after(&self, id: FileId, survival: Survival, random: &mut Random) -> Vec<u8> {
        let (kept, length) = match survival {
            Survival::Nothing => (Kept::Nothing, self.synced.len()),
            Survival::Everything | Survival::NoNames => (Kept::All, self.last_length()),
            Survival::OldLengths => (Kept::All, self.synced.len()),
            Survival::OnlyLengths => (Kept::Nothing, self.last_length()),
            Survival::OnlyLast => (Kept::Last, self.last_length()),
            Survival::TornLast => (Kept::AllButHalfOfLast, self.last_length()),
            Survival::OnlyIn(file) if file == id => (Kept::All, self.last_length()),
            Survival::NothingIn(file) if file != id => (Kept::All, self.last_length()),
            Survival::OnlyIn(_) | Survival::NothingIn(_) => (Kept::Nothing, self.synced.len()),
            Survival::Random(_) => (self.random_selection(random), self.random_length(random)),
        };
        let mut content = self.content(&kept, random);
        content.resize(length, 0);
        content
    }

    fn random_selection(&self, random: &mut Random) -> Kept {
        match random.below(6) {
            0 => Kept::Nothing,
            1 => Kept::All,
            2 => Kept::First(random.below(self.changes.len() + 1)),
            3 => Kept::Changes(1 + random.below(7)),
            _ => Kept::Units(1 + random.below(7)),
        }
    }

    fn random_length(&self, random: &mut Random) -> usize {
        match random.below(4) {
            0 => self.synced.len(),
            1 => random.pick(&self.lengths).copied().unwrap_or_default(),
            _ => self.last_length(),
        }
    }

    fn content(&self, kept: &Kept, random: &mut Random) -> Vec<u8> {
        let mut content = self.synced.clone();
        let count = self.changes.len();
        for (index, change) in self.changes.iter().enumerate() {
            let is_last = index + 1 == count;
            let is_kept = match kept {
                Kept::Nothing => false,
                Kept::All | Kept::Units(_) | Kept::AllButHalfOfLast => true,
                Kept::Last => is_last,
                Kept::First(first) => index < *first,
                Kept::Changes(chance) => random.below(8) < *chance,
            };
            if !is_kept {
                continue;
            }
            match *change {
                Change::Resize(length) => content.resize(length, 0),
                Change::Extend(length) => content.resize(length.max(content.len()), 0),
                Change::Write { at, bytes, unit } => {
                    let half = at + bytes.len() / 2;
                    for (start, piece) in units(at, bytes, unit) {
                        let is_kept = match kept {
                            Kept::Units(chance) => random.below(8) < *chance,
                            Kept::AllButHalfOfLast => !is_last || start + piece.len() <= half,
                            _ => true,
                        };
                        if is_kept {
                            put(&mut content, start, piece);
                        }
                    }
                }
            }
        }
        content
    }
}

/// The parts of a write in each unit of the disk.
fn units(at: usize, bytes: &[u8], unit: usize) -> impl Iterator<Item = (usize, &[u8])> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let start = at + done;
        let length = (unit - start % unit).min(bytes.len() - done);
        let piece = &bytes[done..done + length];
        done += length;
        (length > 0).then_some((start, piece))
    })
}

fn put(content: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    let end = at + bytes.len();
    if content.len() < end {
        content.resize(end, 0);
    }
    content[at..end].copy_from_slice(bytes);
}

fn rename(names: &mut BTreeMap<String, FileId>, change: &Event) {
    match change {
        Event::Create { name, file } => _ = names.insert(name.clone(), *file),
        Event::Remove { name, file } if names.get(name) == Some(file) => _ = names.remove(name),
        Event::Rename { from, to, file } => {
            // Another file may have taken the old name since, and was synced with it.
            if names.get(from) == Some(file) {
                names.remove(from);
            }
            names.insert(to.clone(), *file);
        }
        _ => {}
    }
}

fn usize_of(number: u64) -> usize {
    usize::try_from(number).expect("files of a test are small")
}
