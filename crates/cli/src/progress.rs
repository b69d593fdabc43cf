//! What is shown while one waits for an operation: a bar that fits the terminal, lines elsewhere.

use std::cell::{Cell, RefCell};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use lazaret_api::{Operation, OperationState};
use unicode_width::UnicodeWidthStr;

use crate::neutral::neutral;
use crate::output::{Screen, count, cut};
use crate::watch::numbers;

/// How wide a bar is at most, and at least: below that it says nothing.
const WIDEST: usize = 24;
const NARROWEST: usize = 6;
/// What stands around the bar: a blank, brackets and a blank.
const AROUND: usize = 4;

/// What is shown while one waits.
pub(crate) struct Progress {
    screen: Screen,
    bar: Option<ProgressBar>,
    /// How wide the bar was drawn last.
    drawn: Cell<Option<usize>>,
    /// What was said last, where there is no bar.
    last: RefCell<Option<(OperationState, u64)>>,
}

impl Progress {
    pub(crate) fn new(screen: &Screen, operation: &Operation) -> Self {
        let bar = screen.talks_to_terminal().then(|| {
            let target = ProgressDrawTarget::stderr_with_hz(10);
            let line = fit(operation, screen.talk_width());
            // All at once, so that nothing else is drawn first.
            let bar = ProgressBar::with_draw_target(Some(operation.letters), target);
            bar.with_style(style(line.bar)).with_prefix(line.before).with_message(line.behind)
        });
        Self { screen: screen.clone(), bar, drawn: Cell::new(None), last: RefCell::new(None) }
    }

    pub(crate) fn show(&self, operation: &Operation) {
        let Some(bar) = &self.bar else { return self.log(operation) };
        // Asked each time: people change the size of their terminals.
        let line = fit(operation, self.screen.talk_width());
        if self.drawn.get() != Some(line.bar) {
            self.drawn.set(Some(line.bar));
            bar.set_style(style(line.bar));
        }
        bar.set_length(operation.letters);
        bar.set_prefix(line.before);
        bar.set_message(line.behind);
        bar.set_position(operation.sent + operation.skipped);
    }

    fn log(&self, operation: &Operation) {
        let now = Some((operation.state, operation.stage));
        if *self.last.borrow() != now {
            *self.last.borrow_mut() = now;
            self.screen.say(&format!("{} {}: {}", operation.id, operation.state, numbers(operation)));
        }
    }

    /// Says something besides, and what can be done about it.
    pub(crate) fn tell(&self, text: &str, next: Option<&str>) {
        let say = || {
            self.screen.warn(text);
            next.iter().for_each(|next| self.screen.next(next));
        };
        match &self.bar {
            Some(bar) => bar.suspend(say),
            None => say(),
        }
    }

    pub(crate) fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// A bar of this width between words, or words alone.
fn style(width: usize) -> ProgressStyle {
    let template = match width {
        0 => "{prefix}".to_owned(),
        width => format!("{{prefix}} [{{bar:{width}}}] {{msg}}"),
    };
    let style = ProgressStyle::with_template(&template);
    style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> ")
}

/// What stands on the line of a bar.
#[derive(Debug, PartialEq, Eq)]
struct Fitted {
    before: String,
    /// How wide the bar is; 0 for none.
    bar: usize,
    behind: String,
}

/// As much as fits a terminal of this width: the bar becomes narrow first, then words go, and last the bar.
fn fit(operation: &Operation, width: usize) -> Fitted {
    // A line that fills the last column may break.
    let room = width.saturating_sub(1);
    let before = neutral(&format!("{} {}", operation.id, operation.state));
    let place = format!("{}/{}", operation.sent + operation.skipped, operation.letters);
    let failed = format!("{} failed again", count(operation.failed_again));
    let behind = [
        format!("{place} {}", numbers(operation)),
        format!("{place} {} ok, {failed}", count(operation.ok)),
        format!("{place} {failed}"),
        place.clone(),
    ];
    for behind in behind {
        let left = room.saturating_sub(before.width() + AROUND + behind.width());
        if left >= NARROWEST {
            return Fitted { before, bar: left.min(WIDEST), behind };
        }
    }
    Fitted { before: cut(&format!("{before} {place}"), room), bar: 0, behind: String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::snapshots::operation;

    #[test]
    fn a_bar_fits_every_terminal_and_says_as_much_as_fits() {
        let operation = operation(OperationState::Running, 7);
        let at = |width| fit(&operation, width);
        for width in 1..200 {
            let Fitted { before, bar, behind } = at(width);
            let used = before.width() + if bar == 0 { 0 } else { AROUND + bar + behind.width() };
            assert!(used < width.max(1) || used == 0, "{used} at {width}");
        }
        assert_eq!((at(140).bar, at(140).behind.contains("stage 3 of 5")), (WIDEST, true));
        assert_eq!((at(80).bar, &*at(80).behind), (WIDEST, "1243/1284 1,233 ok, 7 failed again"));
        assert_eq!((at(60).bar, &*at(60).behind), (8, "1243/1284 1,233 ok, 7 failed again"));
        assert_eq!((at(50).bar, &*at(50).behind), (8, "1243/1284 7 failed again"));
        assert_eq!(
            at(24),
            Fitted { before: "op_31 running 1243/1284".into(), bar: 0, behind: String::new() }
        );
    }
}
