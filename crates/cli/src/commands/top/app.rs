//! The state of `top`, and what keys, snapshots and responses change.

use std::collections::{HashMap, VecDeque};

use jiff::Timestamp;
use lazaret_api::{Command, Consumer, OperationState, Pause, PauseScope};
use lazaret_tui::{Key, LogEntry, Screen, StyledLine, Tone};

use super::open_dialog::{Content, OpenDialog};
use super::request::{Change, Item, Request, Response, Target};
use super::snapshot::Snapshot;
use super::view;
use crate::error::{Error, Result};
use crate::output::count;

/// The most log entries that are kept.
const MAX_LOG: usize = 64;
/// The most dialogs over each other: a group, a letter, a plan, an outcome.
const MAX_DIALOGS: usize = 8;
/// The rows of a page.
const PAGE: isize = 10;
/// The shortest time over which a rate is measured, in seconds.
const MIN_RATE_SECONDS: f64 = 0.5;

/// The messages that a consumer had handled at a time, and its rate up to then.
#[derive(Clone, Copy, Debug)]
struct Handled {
    messages: u64,
    at: Timestamp,
    rate: Option<f64>,
}

/// What happened outside of the terminal.
#[derive(Debug)]
pub(super) enum Update {
    /// A snapshot was read, or could not be read.
    Snapshot(Result<Box<Snapshot>>),
    /// The daemon responded to a request.
    Response {
        /// The number of the request.
        number: u64,
        response: Result<Response>,
    },
}

/// The state of `top`.
#[derive(Debug)]
pub(super) struct App {
    url: String,
    snapshot: Option<Box<Snapshot>>,
    handled: HashMap<String, Handled>,
    /// Why the last snapshot could not be read, and since when none could.
    lost: Option<(String, Timestamp)>,
    selected: Option<Item>,
    /// The place of the selected item: if it vanishes, the one in its place is selected.
    place: usize,
    dialogs: Vec<OpenDialog>,
    /// The number of the latest request. A response to an earlier one is not waited for anymore.
    requests: u64,
    log: VecDeque<LogEntry>,
    /// A remark on the last key.
    notice: Option<String>,
    size: (u16, u16),
}

impl App {
    pub(super) fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            snapshot: None,
            handled: HashMap::new(),
            lost: None,
            selected: None,
            place: 0,
            dialogs: Vec::new(),
            requests: 0,
            log: VecDeque::new(),
            notice: None,
            size: (80, 24),
        }
    }

    /// Sets the size of the terminal.
    pub(super) fn resize(&mut self, size: (u16, u16)) {
        self.size = size;
    }

    /// Returns the number of the latest request.
    pub(super) fn request_number(&self) -> u64 {
        self.requests
    }

    /// Returns whether a change was sent, and no response received.
    pub(super) fn is_changing(&self) -> bool {
        self.dialogs.iter().any(|dialog| dialog.content == Content::Waiting { is_change: true })
    }

    /// Returns the screen.
    pub(super) fn screen(&self, now: Timestamp) -> Screen {
        let mut screen = match &self.snapshot {
            Some(snapshot) => {
                let rate = |consumer: &str| self.handled.get(consumer).and_then(|handled| handled.rate);
                view::dashboard(snapshot, &self.url, self.selected.as_ref(), rate, now)
            }
            None => view::empty(&self.url),
        };
        if let Some((why, since)) = &self.lost {
            screen.summary = vec![view::lost(why, *since, self.snapshot.is_some(), now)];
        }
        screen.log.rows = self.log.iter().cloned().collect();
        let notice = self.notice.as_ref().map(|notice| StyledLine::of(notice, Tone::Warning));
        screen.footer = vec![notice.unwrap_or_default()];
        screen.keys = view::keys();
        screen.dialog = self.dialogs.last().map(OpenDialog::dialog);
        screen
    }

    /// Handles a key. Returns what it asks of the daemon.
    pub(super) fn press(&mut self, key: Key, now: Timestamp) -> Option<Request> {
        self.notice = None;
        if key == Key::Interrupt {
            return Some(Request::Quit);
        }
        match self.dialogs.last() {
            Some(dialog) => match dialog.content {
                Content::Confirm { .. } => self.press_confirm(key),
                // The response to a change is waited for: it tells whether it was applied.
                Content::Waiting { is_change: true } => None,
                _ => self.press_dialog(key),
            },
            None => self.press_dashboard(key, now),
        }
    }

    fn press_dashboard(&mut self, key: Key, now: Timestamp) -> Option<Request> {
        match key {
            Key::Char('q') => return Some(Request::Quit),
            Key::Char('u') => return Some(Request::Refresh),
            Key::Char('?') => self.open(OpenDialog::help()),
            Key::Char('p') => self.pause_or_resume(now),
            Key::Char('r') => {
                let target = self.selected.clone().map(Target::Item);
                return self.replay(target);
            }
            Key::Enter => return self.look(now),
            Key::Tab => self.select_section(1),
            Key::BackTab => self.select_section(-1),
            key => self.select(moved(key)?),
        }
        None
    }

    fn press_dialog(&mut self, key: Key) -> Option<Request> {
        let dialog = self.dialogs.last_mut()?;
        match key {
            Key::Escape | Key::Char('q') => {
                self.dialogs.pop();
            }
            Key::Enter => match (&dialog.content, dialog.chosen_letter()) {
                (Content::Letters { .. }, Some(id)) => {
                    let id = id.to_owned();
                    return Some(self.ask("letter", Request::Letter(id)));
                }
                (Content::Text { .. }, _) => {
                    self.dialogs.pop();
                }
                _ => {}
            },
            Key::Char('r') => {
                let target = dialog.chosen_letter().map(|id| Target::Letter(id.to_owned()));
                return self.replay(target);
            }
            key => {
                let size = self.size;
                dialog.move_by(moved(key)?, size);
            }
        }
        None
    }

    fn press_confirm(&mut self, key: Key) -> Option<Request> {
        let dialog = self.dialogs.last_mut()?;
        let Content::Confirm { change, reason } = &mut dialog.content else { return None };
        match key {
            Key::Char(c) => dialog.type_char(c),
            Key::Backspace => {
                reason.pop();
            }
            Key::EraseLine => reason.clear(),
            Key::Escape => {
                self.dialogs.pop();
                self.notice = Some("cancelled: nothing was changed".to_owned());
            }
            Key::Enter if reason.trim().is_empty() => {
                self.notice = Some("a reason is required".to_owned());
            }
            Key::Enter => {
                let request = Request::Change { change: change.clone(), reason: reason.trim().to_owned() };
                let title = dialog.title.clone();
                self.dialogs.pop();
                return Some(self.ask(&title, request));
            }
            _ => {}
        }
        None
    }

    /// Opens what is selected.
    fn look(&mut self, now: Timestamp) -> Option<Request> {
        let item = self.selected.clone()?;
        let (title, request) = match item {
            Item::Consumer(name) => {
                let consumer = self.consumer(&name)?;
                let dialog = OpenDialog::consumer(consumer, now);
                self.open(dialog);
                return None;
            }
            Item::Key { queue, sequence } => (sequence.clone(), Request::Lane { queue, sequence }),
            Item::Group(id) => (id.clone(), Request::Group(id)),
            Item::Operation(id) => (id.clone(), Request::Operation(id)),
        };
        Some(self.ask(&title, request))
    }

    fn replay(&mut self, target: Option<Target>) -> Option<Request> {
        let target = target.filter(|target| target.selection().is_some());
        let Some(target) = target else {
            self.notice = Some("select a consumer, a key, a group or a letter to replay".to_owned());
            return None;
        };
        Some(self.ask("replay", Request::Plan(target)))
    }

    /// Asks for confirmation to pause or resume what is selected.
    fn pause_or_resume(&mut self, now: Timestamp) {
        let opened = match self.selected.clone() {
            Some(Item::Consumer(name)) => self.consumer(&name).map(|consumer| match &consumer.paused {
                Some(pause) => OpenDialog::resume(&name, pause, now),
                None => OpenDialog::pause(&name, None),
            }),
            Some(Item::Key { queue, sequence }) => {
                let name = queue.split('/').next().unwrap_or_default();
                let pause = self.consumer(name).and_then(|consumer| sequence_pause(consumer, &sequence));
                Some(match pause {
                    Some(pause) => OpenDialog::resume(name, pause, now),
                    None => OpenDialog::pause(name, Some(&sequence)),
                })
            }
            Some(Item::Operation(id)) => self.operation_command(&id),
            Some(Item::Group(_)) | None => None,
        };
        match opened {
            Some(dialog) => self.open(dialog),
            None => {
                self.notice = Some("select a consumer, a key or an operation to pause or resume".to_owned());
            }
        }
    }

    fn operation_command(&self, id: &str) -> Option<OpenDialog> {
        let status = &self.snapshot.as_ref()?.status;
        let operation = status.operations.iter().find(|operation| operation.id == id)?;
        let command = match operation.state {
            OperationState::Running | OperationState::Scheduled => Command::Pause,
            OperationState::Paused => Command::Resume,
            _ => return None,
        };
        let change = Change::Command { id: id.to_owned(), command };
        let counts = crate::operation_summary::progress_counts(operation);
        Some(OpenDialog::confirm(format!("{command} {id}"), vec![StyledLine::new().plain(counts)], change))
    }

    fn consumer(&self, name: &str) -> Option<&Consumer> {
        self.snapshot.as_ref()?.status.consumers.iter().find(|consumer| consumer.name == name)
    }

    /// Opens a dialog that waits for the response.
    fn ask(&mut self, title: &str, request: Request) -> Request {
        self.requests += 1;
        self.open(OpenDialog::waiting(title, matches!(request, Request::Change { .. })));
        request
    }

    fn open(&mut self, dialog: OpenDialog) {
        if self.dialogs.len() == MAX_DIALOGS {
            self.dialogs.remove(0);
        }
        self.dialogs.push(dialog);
    }

    fn items(&self) -> Vec<Item> {
        self.snapshot.as_ref().map_or_else(Vec::new, |snapshot| view::items(snapshot))
    }

    fn select(&mut self, rows: isize) {
        let items = self.items();
        self.place = self.place.saturating_add_signed(rows).min(items.len().saturating_sub(1));
        self.selected = items.get(self.place).cloned();
    }

    /// Selects the first item of the next or the previous section that has any.
    fn select_section(&mut self, direction: isize) {
        let items = self.items();
        let section = |item: &Item| std::mem::discriminant(item);
        let starts: Vec<usize> = (0..items.len())
            .filter(|index| *index == 0 || section(&items[*index]) != section(&items[*index - 1]))
            .collect();
        let Some(current) = starts.iter().rposition(|start| *start <= self.place) else { return };
        let sections = starts.len() as isize;
        let next = (current as isize + direction).rem_euclid(sections);
        self.place = starts[next.unsigned_abs()];
        self.selected = items.get(self.place).cloned();
    }

    /// Applies what happened outside of the terminal. Returns whether the screen should be refreshed soon.
    pub(super) fn apply(&mut self, update: Update, now: Timestamp) -> bool {
        match update {
            Update::Snapshot(Ok(snapshot)) => self.apply_snapshot(snapshot, now),
            Update::Snapshot(Err(error)) => self.lose(&error, now),
            Update::Response { number, response } => return self.apply_response(number, response, now),
        }
        false
    }

    fn apply_snapshot(&mut self, snapshot: Box<Snapshot>, now: Timestamp) {
        if self.lost.take().is_some() {
            self.note("the daemon responds again", Tone::Good, now);
        }
        for consumer in &snapshot.status.consumers {
            self.measure(consumer, snapshot.at);
        }
        self.snapshot = Some(snapshot);
        let items = self.items();
        match items.iter().position(|item| Some(item) == self.selected.as_ref()) {
            Some(place) => self.place = place,
            None => self.select(0),
        }
    }

    /// Updates the rate of a consumer.
    fn measure(&mut self, consumer: &Consumer, at: Timestamp) {
        let Some(messages) = consumer.handled else {
            self.handled.remove(&consumer.name);
            return;
        };
        let first = Handled { messages, at, rate: None };
        let before = self.handled.entry(consumer.name.clone()).or_insert(first);
        let seconds = at.duration_since(before.at).as_secs_f64();
        if seconds >= MIN_RATE_SECONDS {
            // A consumer that was restarted counts from 0.
            let rate = messages.checked_sub(before.messages).map(|handled| handled as f64 / seconds);
            *before = Handled { messages, at, rate };
        }
    }

    fn lose(&mut self, error: &Error, now: Timestamp) {
        let since = match &self.lost {
            Some((_, since)) => *since,
            None => {
                self.note(error.headline(), Tone::Bad, now);
                now
            }
        };
        self.lost = Some((error.headline(), since));
    }

    fn apply_response(&mut self, number: u64, response: Result<Response>, now: Timestamp) -> bool {
        let is_waited_for = number == self.requests
            && self.dialogs.last().is_some_and(|dialog| matches!(dialog.content, Content::Waiting { .. }));
        // A dialog that was closed meanwhile stays closed.
        if !is_waited_for {
            return false;
        }
        self.dialogs.pop();
        let response = match response {
            Ok(response) => response,
            Err(error) => {
                self.note(error.headline(), Tone::Bad, now);
                self.open(OpenDialog::error(&error));
                return true;
            }
        };
        match response {
            Response::Nothing => {}
            Response::Lane(lane) => self.open(OpenDialog::lane(lane, now)),
            Response::Group { group, letters } => self.open(OpenDialog::group(&group, letters, now)),
            Response::Letter(letter) => self.open(OpenDialog::letter(&letter, now)),
            Response::Operation { operation, blockers } => {
                self.open(OpenDialog::operation(&operation, &blockers, now));
            }
            Response::Plan { plan, holders } => self.open(OpenDialog::plan(&plan, &holders, now)),
            Response::Begun { operation, blockers } => {
                let text =
                    format!("{} {}: {} letters", operation.id, operation.state, count(operation.letters));
                self.note(text, Tone::Good, now);
                self.open(OpenDialog::begun(&operation, &blockers));
                return true;
            }
            Response::Paused { consumer, pause } => {
                let what =
                    pause.sequence.as_ref().map_or_else(|| consumer.clone(), |of| format!("{consumer} {of}"));
                self.note(format!("{what} paused: {}", pause.why), Tone::Warning, now);
                return true;
            }
            Response::Resumed { consumer, sequence, was_paused } => {
                let what = sequence.map_or_else(|| consumer.clone(), |of| format!("{consumer} {of}"));
                let text =
                    if was_paused { format!("{what} resumed") } else { format!("{what} was not paused") };
                self.note(text, Tone::Good, now);
                return true;
            }
        }
        false
    }

    fn note(&mut self, text: impl Into<String>, tone: Tone, now: Timestamp) {
        if self.log.len() == MAX_LOG {
            self.log.pop_front();
        }
        self.log.push_back(LogEntry { at: now.strftime("%H:%M:%SZ").to_string(), text: text.into(), tone });
    }
}

/// Returns the pause of a sequence.
pub(super) fn sequence_pause<'a>(consumer: &'a Consumer, sequence: &str) -> Option<&'a Pause> {
    consumer
        .pauses
        .iter()
        .find(|pause| pause.scope == PauseScope::Sequence && pause.sequence.as_deref() == Some(sequence))
}

/// Returns by how many rows a key moves; `None` if it does not.
fn moved(key: Key) -> Option<isize> {
    match key {
        Key::Up | Key::Char('k') => Some(-1),
        Key::Down | Key::Char('j') => Some(1),
        Key::PageUp => Some(-PAGE),
        Key::PageDown => Some(PAGE),
        Key::Home | Key::Char('g') => Some(isize::MIN),
        Key::End | Key::Char('G') => Some(isize::MAX),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
