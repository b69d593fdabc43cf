//! The dialogs of `top`: text to read, letters to choose from, and the confirmation of a change.

use jiff::Timestamp;
use lazaret_api::{
    Consumer, Group, Letter, LetterDetail, Operation, OperationState, Pause, Plan, QueueStatus, Sequence,
};
use lazaret_tui::{Dialog, Input, KeyHint, StyledLine, Tone};

use super::request::Change;
use super::view::fuse_cause;
use crate::blockers::Blocker;
use crate::commands::{groups, ls, op, plan, seq, show, status};
use crate::error::Error;
use crate::hints::{short_group, short_id};
use crate::output::{Fields, Line, age, count, error_summary, plural};

/// The width for which tables in dialogs are rendered.
const TABLE_WIDTH: usize = 100;
/// The longest reason that can be typed (I7).
const MAX_REASON: usize = 500;

/// A dialog that is open.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OpenDialog {
    pub(super) title: String,
    pub(super) lines: Vec<StyledLine>,
    pub(super) content: Content,
}

/// What a dialog is for.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Content {
    /// Text to read; of a letter, if it has the id of one.
    Text { scroll: usize, letter: Option<String> },
    /// Letters to choose from.
    Letters { letters: Vec<Letter>, rows: Vec<StyledLine>, selected: usize },
    /// A change that is confirmed with a reason.
    Confirm { change: Change, reason: String },
    /// A request is under way.
    Waiting { is_change: bool },
}

impl OpenDialog {
    /// Creates a dialog with text.
    pub(super) fn text(title: impl Into<String>, lines: Vec<StyledLine>) -> Self {
        Self { title: title.into(), lines, content: Content::Text { scroll: 0, letter: None } }
    }

    /// Creates the dialog of a request that is under way.
    pub(super) fn waiting(title: impl Into<String>, is_change: bool) -> Self {
        let lines = vec![StyledLine::of("waiting for the daemon", Tone::Dim)];
        Self { title: title.into(), lines, content: Content::Waiting { is_change } }
    }

    /// Creates the confirmation of a change.
    pub(super) fn confirm(title: impl Into<String>, lines: Vec<StyledLine>, change: Change) -> Self {
        Self { title: title.into(), lines, content: Content::Confirm { change, reason: String::new() } }
    }

    pub(super) fn help() -> Self {
        let keys = [
            ("↑ ↓ j k", "select; PgUp, PgDn, g and G move further, Tab goes to the next section"),
            ("Enter", "look at a consumer, a lane, a group or an operation, and at a letter of it"),
            ("r", "plan a replay of what is selected: preview, reason, operation"),
            ("p", "pause or resume a consumer, a key or an operation"),
            ("u", "refresh now"),
            ("Esc", "close a dialog"),
            ("q", "quit; Ctrl-C quits from everywhere"),
        ];
        let line =
            |(key, text): &(&str, &str)| StyledLine::of(format!("{key:<8}"), Tone::Strong).plain(*text);
        let mut lines: Vec<StyledLine> = keys.iter().map(line).collect();
        lines.push(StyledLine::new());
        let note = "Nothing is changed before you have typed a reason; it is kept in the audit log.";
        lines.push(StyledLine::of(note, Tone::Dim));
        Self::text("keys", lines)
    }

    pub(super) fn consumer(consumer: &Consumer, now: Timestamp) -> Self {
        let mut fields = Fields::new();
        let or_unknown = |value: Option<u64>| value.map_or_else(|| "unknown".to_owned(), count);
        fields.toned("state", consumer.state.as_str(), status::state_tone(consumer.state));
        fields.maybe("handler", consumer.handler.as_deref());
        fields.add("lag", or_unknown(consumer.lag));
        fields.add("in flight", or_unknown(consumer.in_flight));
        fields.add("handled", or_unknown(consumer.handled));
        fields.add("failed", or_unknown(consumer.failed));
        fields.add("fuse", consumer.fuse.as_str());
        fields.maybe("fuse blown", fuse_cause(consumer));
        fields.add("breaker", consumer.breaker.as_str());
        let letters = |queue: &QueueStatus| {
            let sequences = plural(queue.sequences, "open sequence");
            format!("{}: {sequences}, {}", queue.queue, queue.states.summary())
        };
        consumer.queues.iter().for_each(|queue| fields.add("queue", letters(queue)));
        let mut lines: Vec<StyledLine> = fields.lines().map(|line| styled(&line)).collect();
        lines.extend(status::notes(consumer, now).iter().map(styled));
        Self::text(&consumer.name, lines)
    }

    pub(super) fn lane(lane: Sequence, now: Timestamp) -> Self {
        let lines = seq::heading(&lane, true, now, TABLE_WIDTH).iter().map(styled).collect();
        let place = |index| if index == 0 { "HEAD".to_owned() } else { format!("+{index}") };
        let rows = lane.letters.iter().enumerate();
        let rows = rows.map(|(index, letter)| letter_row(&place(index), letter, now)).collect();
        let content = Content::Letters { letters: lane.letters, rows, selected: 0 };
        Self { title: lane.sequence, lines, content }
    }

    pub(super) fn group(group: &Group, letters: Vec<Letter>, now: Timestamp) -> Self {
        let mut lines: Vec<StyledLine> =
            groups::describe(group, now).lines().map(|line| styled(&line)).collect();
        lines.push(StyledLine::new());
        let rows = letters.iter().map(|letter| letter_row(&letter.sequence, letter, now)).collect();
        let content = Content::Letters { letters, rows, selected: 0 };
        Self { title: short_group(&group.id).to_owned(), lines, content }
    }

    pub(super) fn letter(detail: &LetterDetail, now: Timestamp) -> Self {
        let lines = show::screen_lines(detail, now, TABLE_WIDTH).iter().map(styled).collect();
        let content = Content::Text { scroll: 0, letter: Some(detail.letter.id.clone()) };
        Self { title: format!("letter {}", short_id(&detail.letter.id)), lines, content }
    }

    pub(super) fn operation(operation: &Operation, blockers: &[Blocker], now: Timestamp) -> Self {
        let fields = op::describe(operation, blockers, now);
        let mut lines: Vec<StyledLine> = fields.lines().map(|line| styled(&line)).collect();
        lines.extend(next(&op::next(operation, blockers)));
        Self::text(&operation.id, lines)
    }

    /// Creates the preview of a plan: its operation begins when a reason is given. A plan without letters is only shown.
    pub(super) fn plan(plan: &Plan, holders: &[String], now: Timestamp) -> Self {
        let mut lines: Vec<StyledLine> =
            plan::describe(plan, holders, now).lines().map(|line| styled(&line)).collect();
        lines.push(StyledLine::new());
        if plan.letters == 0 {
            lines.push(StyledLine::of("nothing to replay", Tone::Warning));
            return Self::text("replay", lines);
        }
        let stages = "One letter runs first, then more; the operation pauses when letters fail again.";
        lines.push(StyledLine::of(stages, Tone::Dim));
        Self::confirm(
            format!("replay {}", plural(plan.letters, "letter")),
            lines,
            Change::Begin { plan: plan.id.clone() },
        )
    }

    /// Creates the outcome of a change to an operation. One that waits for approval tells what a second person runs.
    pub(super) fn begun(operation: &Operation, blockers: &[Blocker]) -> Self {
        let mut lines = vec![styled(&op::outcome_line(operation))];
        if operation.state == OperationState::AwaitingApproval {
            let text = "a second person must approve it before it starts";
            lines.push(StyledLine::of(text, Tone::Warning));
        }
        lines.extend(blockers.iter().map(|blocker| styled(&op::blocker_line(operation, blocker))));
        lines.extend(next(&op::next(operation, blockers)));
        Self::text(&operation.id, lines)
    }

    pub(super) fn pause(consumer: &str, sequence: Option<&str>) -> Self {
        let (what, effect) = match sequence {
            Some(sequence) => {
                (sequence, "Its messages wait in the store, in order; other keys are not affected.")
            }
            None => {
                (consumer, "It reads no new messages, and retries and replays wait, until it is resumed.")
            }
        };
        let change = Change::Pause { consumer: consumer.to_owned(), sequence: sequence.map(str::to_owned) };
        Self::confirm(format!("pause {what}"), vec![StyledLine::new().plain(effect)], change)
    }

    pub(super) fn resume(consumer: &str, pause: &Pause, now: Timestamp) -> Self {
        let lines = vec![styled(&status::pause_line(consumer, pause, now))];
        let change = Change::Resume { consumer: consumer.to_owned(), sequence: pause.sequence.clone() };
        let what = pause.sequence.as_deref().unwrap_or(consumer);
        Self::confirm(format!("resume {what}"), lines, change)
    }

    pub(super) fn error(error: &Error) -> Self {
        let mut lines = vec![StyledLine::of(error.headline(), Tone::Bad)];
        lines.extend(error.hint().map(|hint| StyledLine::of("hint: ", Tone::Hint).plain(hint)));
        Self::text("error", lines)
    }

    /// Returns the chosen letter, or the letter that is read.
    pub(super) fn chosen_letter(&self) -> Option<&str> {
        match &self.content {
            Content::Text { letter, .. } => letter.as_deref(),
            Content::Letters { letters, selected, .. } => {
                letters.get(*selected).map(|letter| letter.id.as_str())
            }
            Content::Confirm { .. } | Content::Waiting { .. } => None,
        }
    }

    /// Moves the selection or the text by this many rows.
    pub(super) fn move_by(&mut self, rows: isize, size: (u16, u16)) {
        let most = self.dialog().max_scroll(size);
        match &mut self.content {
            Content::Text { scroll, .. } => *scroll = scroll.saturating_add_signed(rows).min(most),
            Content::Letters { letters, selected, .. } => {
                *selected = selected.saturating_add_signed(rows).min(letters.len().saturating_sub(1));
            }
            Content::Confirm { .. } | Content::Waiting { .. } => {}
        }
    }

    /// Adds a typed character to the reason.
    pub(super) fn type_char(&mut self, c: char) {
        if let Content::Confirm { reason, .. } = &mut self.content
            && reason.chars().count() < MAX_REASON
        {
            reason.push(c);
        }
    }

    /// Returns the dialog as it is drawn.
    pub(super) fn dialog(&self) -> Dialog {
        let mut dialog = Dialog { title: self.title.clone(), lines: self.lines.clone(), ..Dialog::default() };
        let back = KeyHint::new("Esc", "back");
        match &self.content {
            Content::Text { scroll, letter } => {
                dialog.scroll = *scroll;
                dialog.keys = vec![KeyHint::new("↑↓", "scroll"), back];
                dialog.keys.extend(letter.is_some().then(|| KeyHint::new("r", "replay")));
            }
            Content::Letters { rows, selected, .. } => {
                (dialog.choices, dialog.selected) = (rows.clone(), *selected);
                dialog.keys =
                    vec![KeyHint::new("Enter", "look"), KeyHint::new("r", "replay the letter"), back];
            }
            Content::Confirm { reason, .. } => {
                dialog.input = Some(Input { label: "reason".to_owned(), text: reason.clone() });
                let is_given = !reason.trim().is_empty();
                dialog.keys =
                    vec![KeyHint::new("Enter", "confirm").active(is_given), KeyHint::new("Esc", "cancel")];
            }
            Content::Waiting { is_change } => dialog.keys.extend((!is_change).then_some(back)),
        }
        dialog
    }
}

/// Formats a letter of a lane or a group on one line.
fn letter_row(place: &str, letter: &Letter, now: Timestamp) -> StyledLine {
    let error = letter.error.as_ref().map(|error| error_summary(&error.error_type, &error.message));
    let line = StyledLine::of(format!("{place:<6} "), Tone::Dim)
        .add(short_id(&letter.id), Tone::Strong)
        .add(format!(" {:<11} ", letter.state.as_str()), ls::state_tone(letter.state))
        .plain(&letter.message.id)
        .add(format!("  {}", age(letter.enqueued_at, now)), Tone::Dim);
    match error {
        Some(error) => line.plain(format!("  {error}")),
        None => line,
    }
}

/// Formats the next commands.
fn next(commands: &[String]) -> Vec<StyledLine> {
    let line = |command: &String| StyledLine::of("$ ", Tone::Dim).add(command, Tone::Hint);
    commands.iter().map(line).collect()
}

/// Converts a line of the output.
pub(super) fn styled(line: &Line) -> StyledLine {
    line.spans().fold(StyledLine::new(), |styled, (text, of)| styled.add(text, of))
}
