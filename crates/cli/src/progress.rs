//! Shows the progress of an operation: a bar that fits the terminal, or lines when standard error is not a terminal.

use std::cell::{Cell, RefCell};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use lazaret_api::{Operation, OperationState};
use unicode_width::UnicodeWidthStr;

use crate::operation_summary::progress_counts;
use crate::output::{Screen, count, truncate};
use crate::sanitize::sanitize;

/// The largest and the smallest width of a bar.
const MAX_BAR: usize = 24;
const MIN_BAR: usize = 6;
/// The width of the brackets and blanks around the bar.
const BAR_FRAME: usize = 4;

/// The progress display of one operation.
pub(crate) struct Progress {
    screen: Screen,
    bar: Option<ProgressBar>,
    /// The width at which the bar was last drawn.
    drawn_width: Cell<Option<usize>>,
    /// The state and stage that were last logged, where there is no bar.
    last_logged: RefCell<Option<(OperationState, u64)>>,
}

impl Progress {
    pub(crate) fn new(screen: &Screen, operation: &Operation) -> Self {
        let bar = screen.stderr_is_terminal().then(|| {
            let target = ProgressDrawTarget::stderr_with_hz(10);
            let layout = fit(operation, screen.stderr_width());
            // Configured in one step, so that no default bar is drawn first.
            let bar = ProgressBar::with_draw_target(Some(operation.letters), target);
            bar.with_style(style(layout.bar_width)).with_prefix(layout.prefix).with_message(layout.message)
        });
        Self { screen: screen.clone(), bar, drawn_width: Cell::new(None), last_logged: RefCell::new(None) }
    }

    pub(crate) fn show(&self, operation: &Operation) {
        let Some(bar) = &self.bar else { return self.log(operation) };
        // Measured each time: terminals are resized.
        let layout = fit(operation, self.screen.stderr_width());
        if self.drawn_width.get() != Some(layout.bar_width) {
            self.drawn_width.set(Some(layout.bar_width));
            bar.set_style(style(layout.bar_width));
        }
        bar.set_length(operation.letters);
        bar.set_prefix(layout.prefix);
        bar.set_message(layout.message);
        bar.set_position(operation.sent + operation.skipped);
    }

    fn log(&self, operation: &Operation) {
        let now = Some((operation.state, operation.stage));
        if *self.last_logged.borrow() != now {
            *self.last_logged.borrow_mut() = now;
            self.screen.info(&format!(
                "{} {}: {}",
                operation.id,
                operation.state,
                progress_counts(operation)
            ));
        }
    }

    /// Prints a warning above the bar, and a command that helps.
    pub(crate) fn warn(&self, text: &str, next: Option<&str>) {
        let print = || {
            self.screen.warn(text);
            next.iter().for_each(|next| self.screen.next_command(next));
        };
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    pub(crate) fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Returns the style for a bar of this width; 0 for text only.
fn style(width: usize) -> ProgressStyle {
    let template = match width {
        0 => "{prefix}".to_owned(),
        width => format!("{{prefix}} [{{bar:{width}}}] {{msg}}"),
    };
    let style = ProgressStyle::with_template(&template);
    style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> ")
}

/// The parts of the progress line.
#[derive(Debug, PartialEq, Eq)]
struct BarLayout {
    prefix: String,
    /// The width of the bar; 0 for none.
    bar_width: usize,
    message: String,
}

/// Fits the line into this width: first the bar shrinks, then text is dropped, and last the bar.
fn fit(operation: &Operation, width: usize) -> BarLayout {
    // A line that fills the last column may wrap.
    let room = width.saturating_sub(1);
    let prefix = sanitize(&format!("{} {}", operation.id, operation.state));
    let place = format!("{}/{}", operation.sent + operation.skipped, operation.letters);
    let failed = format!("{} failed again", count(operation.failed_again));
    let messages = [
        format!("{place} {}", progress_counts(operation)),
        format!("{place} {} ok, {failed}", count(operation.ok)),
        format!("{place} {failed}"),
        place.clone(),
    ];
    for message in messages {
        let left = room.saturating_sub(prefix.width() + BAR_FRAME + message.width());
        if left >= MIN_BAR {
            return BarLayout { prefix, bar_width: left.min(MAX_BAR), message };
        }
    }
    BarLayout { prefix: truncate(&format!("{prefix} {place}"), room), bar_width: 0, message: String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::operation;

    #[test]
    fn the_progress_line_fits_every_terminal_and_shows_as_much_as_fits() {
        let operation = operation(OperationState::Running, 7);
        let at = |width| fit(&operation, width);
        for width in 1..200 {
            let BarLayout { prefix, bar_width, message } = at(width);
            let used =
                prefix.width() + if bar_width == 0 { 0 } else { BAR_FRAME + bar_width + message.width() };
            assert!(used < width.max(1) || used == 0, "{used} at {width}");
        }
        assert_eq!((at(140).bar_width, at(140).message.contains("stage 3 of 5")), (MAX_BAR, true));
        assert_eq!((at(80).bar_width, &*at(80).message), (MAX_BAR, "1243/1284 1,233 ok, 7 failed again"));
        assert_eq!((at(60).bar_width, &*at(60).message), (8, "1243/1284 1,233 ok, 7 failed again"));
        assert_eq!((at(50).bar_width, &*at(50).message), (8, "1243/1284 7 failed again"));
        assert_eq!(
            at(24),
            BarLayout { prefix: "op_31 running 1243/1284".into(), bar_width: 0, message: String::new() }
        );
    }
}
