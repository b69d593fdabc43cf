//! The running recording: which open files belong to it, and the events so far.
//!
//! There is one at a time. A call that changes a file holds the lock from before it until it is noted, so the order of the events is the
//! order of the calls.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::fd::RawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::disk::{FileId, SECTOR_BYTES};
use crate::interpose;
use crate::log::{Event, Log};

/// Device and inode.
pub(crate) type Identity = (u64, u64);

/// How long a sync takes: so that a caller who is answered before it, by mistake, notes its answer before it.
const SYNC_TIME: Duration = Duration::from_millis(1);

static SESSION: Mutex<Option<Session>> = Mutex::new(None);
static RUNNING: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Calls of the recording itself are not recorded.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// A recording and what it knows of its folder.
pub(crate) struct Session {
    folder: PathBuf,
    folder_identity: Identity,
    /// Names of files that are written through memory, too.
    mapped: Vec<String>,
    /// The files that have a name.
    files: HashMap<Identity, FileId>,
    names: BTreeMap<String, FileId>,
    /// The content of mapped files as noted.
    contents: HashMap<FileId, Vec<u8>>,
    next: FileId,
    initial: BTreeMap<String, Vec<u8>>,
    events: Vec<Event>,
}

/// Returns whether a file is no part of the disk's state.
pub(crate) fn is_ignored(name: &str) -> bool {
    name.ends_with("-shm")
}

/// The files of a folder that are part of its state.
pub(crate) fn read_folder(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).expect("the folder can be read");
    let files = entries.filter_map(|entry| {
        let entry = entry.expect("the folder can be read");
        let name = entry.file_name().into_string().expect("names are UTF-8");
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        (is_file && !is_ignored(&name)).then(|| {
            let content = fs::read(entry.path()).expect("the file can be read");
            (name, content)
        })
    });
    files.collect()
}

impl Session {
    pub(crate) fn new(folder: &Path, mapped: Vec<String>) -> Self {
        let folder = fs::canonicalize(folder).expect("the folder exists");
        let metadata = fs::metadata(&folder).expect("the folder exists");
        let mut session = Self {
            folder_identity: (metadata.dev(), metadata.ino()),
            mapped,
            files: HashMap::new(),
            names: BTreeMap::new(),
            contents: HashMap::new(),
            next: FileId(0),
            initial: read_folder(&folder),
            events: Vec::new(),
            folder,
        };
        let initial: Vec<(String, Vec<u8>)> =
            session.initial.iter().map(|(name, content)| (name.clone(), content.clone())).collect();
        for (name, content) in initial {
            let metadata = fs::metadata(session.folder.join(&name)).expect("the file exists");
            let file = session.add(name, (metadata.dev(), metadata.ino()));
            session.contents.insert(file, content);
        }
        session
    }

    fn add(&mut self, name: String, identity: Identity) -> FileId {
        let file = self.next;
        self.next = FileId(file.0 + 1);
        self.files.insert(identity, file);
        self.names.insert(name, file);
        file
    }

    pub(crate) fn mark(&mut self) -> usize {
        self.observe_all();
        self.events.push(Event::Mark);
        self.events.len()
    }

    /// Notes what was written to mapped files through memory.
    fn observe_all(&mut self) {
        for name in self.mapped.clone() {
            if let Some(file) = self.names.get(&name).copied() {
                self.observe(file, &name);
            }
        }
    }

    fn observe(&mut self, file: FileId, name: &str) {
        let Ok(now) = fs::read(self.folder.join(name)) else { return };
        let before = self.contents.entry(file).or_default();
        let sectors = now.chunks(SECTOR_BYTES).zip(before.chunks(SECTOR_BYTES)).enumerate();
        let changed = sectors.filter(|(_, (now, before))| now != before).map(|(index, (now, _))| {
            let at = (index * SECTOR_BYTES) as u64;
            Event::Store { file, at, bytes: now.to_vec() }
        });
        self.events.extend(changed);
        *before = now;
    }

    fn is_mapped(&self, file: FileId) -> Option<String> {
        let is_it = |name: &&String| self.names.get(*name) == Some(&file);
        self.mapped.iter().find(is_it).cloned()
    }

    /// The name of a path in the folder.
    fn name(&self, path: &Path) -> Option<String> {
        let name = path.file_name()?.to_str()?;
        let parent = path.parent()?;
        let is_here =
            parent == self.folder || fs::canonicalize(parent).is_ok_and(|parent| parent == self.folder);
        (is_here && !is_ignored(name)).then(|| name.to_owned())
    }

    /// Ends the recording. Fails if a file is not as the events say: then a write went another way.
    pub(crate) fn finish(mut self) -> Log {
        self.observe_all();
        let actual = read_folder(&self.folder);
        let log = Log::new(self.initial, self.events);
        let rebuilt = log.end();
        let names = |files: &BTreeMap<String, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&actual), names(&rebuilt), "a file was created or removed without being recorded");
        for (name, content) in actual {
            assert!(rebuilt[&name] == content, "{name} was written without being recorded");
        }
        log
    }
}

/// The lock on the recording.
struct Inside(MutexGuard<'static, Option<Session>>);

impl Inside {
    fn lock() -> Option<Self> {
        // A thread that ends may have no variables of its own any more.
        let entered = INSIDE.try_with(|inside| !inside.replace(true)).unwrap_or(false);
        if !entered {
            return None;
        }
        // A poisoned recording belongs to a test that has failed already.
        Some(Self(SESSION.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        _ = INSIDE.try_with(|inside| inside.set(false));
    }
}

/// Starts a recording. The caller makes sure that none is running.
pub(crate) fn start(folder: &Path, mapped: Vec<String>) {
    let mut inside = Inside::lock().expect("a recording does not start another one");
    *inside.0 = Some(Session::new(folder, mapped));
    RUNNING.store(true, Ordering::SeqCst);
}

/// Ends the recording.
pub(crate) fn stop() -> Option<Log> {
    let mut inside = Inside::lock()?;
    RUNNING.store(false, Ordering::SeqCst);
    inside.0.take().map(Session::finish)
}

/// Ends the recording without a result.
pub(crate) fn abandon() {
    if let Some(mut inside) = Inside::lock() {
        RUNNING.store(false, Ordering::SeqCst);
        *inside.0 = None;
    }
}

/// Adds a mark, and returns the number of events so far.
pub(crate) fn mark() -> usize {
    let mut inside = Inside::lock().expect("a test is not inside of the recording");
    inside.0.as_mut().expect("the recording runs").mark()
}

pub(crate) fn is_running() -> bool {
    RUNNING.load(Ordering::Relaxed) && !INSIDE.try_with(Cell::get).unwrap_or(true)
}

#[derive(Clone, Copy)]
enum Target {
    File(FileId),
    Folder,
}

/// A call on a file of the recording, or on its folder.
pub(crate) struct Entered {
    inside: Inside,
    target: Target,
}

/// Locks the recording for a call on this file, if it belongs to it.
pub(crate) fn enter(fd: RawFd) -> Option<Entered> {
    // Standard output and error are none of its files.
    if fd <= 2 || !is_running() {
        return None;
    }
    let (identity, is_regular) = interpose::identity(fd)?;
    let mut inside = Inside::lock()?;
    let session = inside.0.as_mut()?;
    if !is_regular {
        return (identity == session.folder_identity).then_some(Entered { inside, target: Target::Folder });
    }
    let file = *session.files.get(&identity)?;
    if let Some(name) = session.is_mapped(file) {
        session.observe(file, &name);
    }
    Some(Entered { inside, target: Target::File(file) })
}

/// Waits before a sync of the recorded folder.
pub(crate) fn before_sync(fd: RawFd) {
    if enter(fd).is_some() {
        std::thread::sleep(SYNC_TIME);
    }
}

impl Entered {
    fn session(&mut self) -> (&mut Session, Target) {
        let session = self.inside.0.as_mut().expect("checked when it was entered");
        (session, self.target)
    }

    /// Notes an event of a file, and what its content is now.
    fn note(&mut self, event: impl FnOnce(FileId) -> Event) {
        let (session, Target::File(file)) = self.session() else { return };
        session.events.push(event(file));
        if let Some(name) = session.is_mapped(file) {
            let content = fs::read(session.folder.join(name)).unwrap_or_default();
            session.contents.insert(file, content);
        }
    }

    pub(crate) fn wrote(&mut self, at: u64, bytes: Vec<u8>) {
        if !bytes.is_empty() {
            self.note(|file| Event::Write { file, at, bytes });
        }
    }

    pub(crate) fn resized(&mut self, length: u64) {
        self.note(|file| Event::Resize { file, length });
    }

    /// Notes that the file is at least this long.
    pub(crate) fn allocated(&mut self, length: u64) {
        self.note(|file| Event::Extend { file, length });
    }

    pub(crate) fn synced(&mut self) {
        let (session, target) = self.session();
        session.events.push(match target {
            Target::File(file) => Event::Sync { file },
            Target::Folder => Event::SyncFolder,
        });
    }
}

/// A call that opens, renames or removes a file.
pub(crate) struct Names(Inside);

/// Locks the recording for a change of names.
pub(crate) fn names() -> Option<Names> {
    if !is_running() {
        return None;
    }
    let inside = Inside::lock()?;
    inside.0.is_some().then_some(Names(inside))
}

impl Names {
    fn session(&mut self) -> &mut Session {
        self.0.0.as_mut().expect("checked when it was locked")
    }

    /// Notes an opened file, if it is new or was emptied.
    pub(crate) fn opened(&mut self, fd: RawFd, is_emptied: bool) {
        let session = self.session();
        let Ok(path) = fs::read_link(format!("/proc/self/fd/{fd}")) else { return };
        let Some(name) = session.name(&path) else { return };
        let Some((identity, true)) = interpose::identity(fd) else { return };
        match session.names.get(&name).copied() {
            Some(file) if session.files.get(&identity) == Some(&file) => {
                if is_emptied {
                    session.events.push(Event::Resize { file, length: 0 });
                }
            }
            _ => {
                let file = session.add(name.clone(), identity);
                session.events.push(Event::Create { name, file });
            }
        }
    }

    pub(crate) fn removed(&mut self, path: &Path) {
        let session = self.session();
        let Some(name) = session.name(path) else { return };
        if let Some(file) = session.names.remove(&name) {
            // The number of the inode may be used again.
            session.files.retain(|_, other| *other != file);
            session.events.push(Event::Remove { name, file });
        }
    }

    pub(crate) fn renamed(&mut self, from: &Path, to: &Path) {
        let session = self.session();
        let (Some(from), Some(to)) = (session.name(from), session.name(to)) else { return };
        let Some(file) = session.names.remove(&from) else { return };
        if let Some(replaced) = session.names.insert(to.clone(), file) {
            session.files.retain(|_, other| *other != replaced);
        }
        session.events.push(Event::Rename { from, to, file });
    }
}
