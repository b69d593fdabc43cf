//! Finds the cause in a long message: the exception of its last stack trace, or its last line.
//!
//! The message of a command is all that it wrote to its standard error. The cause is at the end of that, behind log lines
//! and the frames of a stack trace, and not at its beginning.

use std::borrow::Cow;

/// The line that Python writes before a stack trace.
const HEADER: &str = "Traceback (most recent call last):";

/// The last stack trace of Python in a message.
///
/// ```
/// use lazaret_core::Traceback;
/// let message = "INFO handling e-7\nTraceback (most recent call last):\n  File \"h.py\", line 9, in pay\nKeyError: 'USD'\n";
/// let trace = Traceback::last(message).unwrap();
/// assert_eq!(trace.exception, "KeyError: 'USD'");
/// assert!(trace.frames.contains("in pay"));
/// assert!(Traceback::last("no such order").is_none());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traceback<'m> {
    /// From the header, if it is there, to the exception: the calls, the innermost last.
    pub frames: &'m str,
    /// The exception: its type and message, and what was said after it.
    pub exception: &'m str,
}

impl<'m> Traceback<'m> {
    /// The last one. It is the cause that counts: Python writes those first that it was handling meanwhile. `None` also when
    /// the text ends before the exception.
    pub fn last(message: &'m str) -> Option<Self> {
        let mut at = 0;
        let mut found = None;
        let mut start = None;
        for line in message.split_inclusive('\n') {
            if line.trim() == HEADER {
                start = Some((at, indent(line)));
            } else if start.is_none() && is_frame(line) {
                // The header was cut off, or is missing as with errors of syntax.
                start = Some((at, 0));
            } else if let Some((header, margin)) = start
                && !line.trim().is_empty()
                && indent(line) <= margin
            {
                let exception = message[at..].trim();
                found = Some(Self { frames: message[header..at].trim_end(), exception });
                start = None;
            }
            at += line.len();
        }
        found
    }

    /// The first line of the exception.
    pub fn headline(&self) -> &'m str {
        self.exception.lines().next().unwrap_or_default().trim_end()
    }
}

/// A line like `  File "handler.py", line 9, in charge`.
fn is_frame(line: &str) -> bool {
    line.strip_prefix("  File \"").is_some_and(|rest| rest.contains("\", line "))
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// The last informative line of a message: frames, which are indented, and hints on how to see more of them are
/// passed over as long as there is something else.
pub fn last_line(message: &str) -> &str {
    let says_something = |line: &&str| line.contains(char::is_alphanumeric);
    let is_plain = |line: &&str| indent(line) == 0 && !line.starts_with("note: ");
    let mut lines = message.lines().rev().filter(says_something);
    let last = lines.clone().find(is_plain).or_else(|| lines.next());
    last.unwrap_or(message).trim_matches(|c: char| c.is_whitespace() || c == '|')
}

/// A message cut to at most `limit` bytes such that the most informative part is kept: the last stack trace, or at least its exception;
/// otherwise the beginning and the end.
pub fn excerpt(message: &str, limit: usize) -> Cow<'_, str> {
    if message.len() <= limit {
        return Cow::Borrowed(message);
    }
    if let Some(Traceback { frames, exception }) = Traceback::last(message) {
        if frames.len() + 1 + exception.len() <= limit {
            return Cow::Owned(format!("{frames}\n{exception}"));
        }
        let room = limit.saturating_sub(HEADER.len() + 1);
        if room > 0 {
            let kept = &exception[..exception.floor_char_boundary(room)];
            return Cow::Owned(format!("{HEADER}\n{kept}"));
        }
    }
    let last = last_line(message);
    let head = message.floor_char_boundary(limit.saturating_sub(last.len() + 1));
    if head == 0 || head < limit / 2 {
        // The line is as long as the message, or nearly so.
        return Cow::Borrowed(&message[..message.floor_char_boundary(limit)]);
    }
    Cow::Owned(format!("{}\n{last}", &message[..head]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_last_of_several_stack_traces_tells_the_cause() {
        let text = "Traceback (most recent call last):\n  File \"a.py\", line 1, in a\nKeyError: 'x'\n\n\
            During handling of the above exception, another exception occurred:\n\n\
            Traceback (most recent call last):\n  File \"a.py\", line 3, in b\n    raise Refused(\n    ^^^^^\n\
            shop.Refused: no\nbecause of this\nINFO bye\n";
        let trace = Traceback::last(text).unwrap();
        assert_eq!(trace.headline(), "shop.Refused: no");
        assert_eq!(trace.exception, "shop.Refused: no\nbecause of this\nINFO bye");
        assert!(trace.frames.starts_with(HEADER) && trace.frames.ends_with("^^^^^"), "{}", trace.frames);
        assert!(!trace.frames.contains("KeyError"));
    }

    #[test]
    fn a_stack_trace_without_an_end_is_none() {
        assert_eq!(
            Traceback::last("Traceback (most recent call last):\n  File \"a.py\", line 1, in a\n"),
            None
        );
        assert_eq!(Traceback::last("see Traceback (most recent call last): for more"), None);
        // One that is cut off does not hide the one before it.
        let text = "Traceback (most recent call last):\n  File \"a.py\"\nKeyError: 1\nTraceback (most recent call last):\n  F";
        assert!(Traceback::last(text).unwrap().exception.starts_with("KeyError: 1"));
    }

    #[test]
    fn a_stack_trace_that_has_lost_its_beginning_is_one() {
        let frames =
            "  File \"a.py\", line 1, in a\n    b()\n  File \"a.py\", line 2, in b\n    c()\n    ^^^";
        let text = format!("rn a(n - 1)\n{frames}\nRecursionError: too deep");
        assert_eq!(Traceback::last(&text), Some(Traceback { frames, exception: "RecursionError: too deep" }));
    }

    #[test]
    fn the_last_line_is_the_last_that_says_something() {
        let table = [
            ("loading\nfatal: no route\n\n", "fatal: no route"),
            ("thread 'main' panicked at x.rs:1:1:\nboom\nnote: run with `RUST_BACKTRACE=1`\n", "boom"),
            (
                "Exception in thread \"main\" E: boom\n\tat A.main(A.java:3)\n",
                "Exception in thread \"main\" E: boom",
            ),
            ("  | Group: two\n    | ValueError: 7\n    +-------\n", "ValueError: 7"),
            ("note: nothing else\n", "note: nothing else"),
            ("---\n", "---"),
            ("", ""),
        ];
        for (message, expected) in table {
            assert_eq!(last_line(message), expected, "{message}");
        }
    }

    #[test]
    fn an_excerpt_keeps_what_tells_most() {
        let frames = "  File \"a.py\", line 1, in a\n".repeat(200);
        let text = format!("INFO begun\n{HEADER}\n{frames}KeyError: 'USD'\n");
        assert_eq!(excerpt(&text, 100), format!("{HEADER}\nKeyError: 'USD'"));
        let text = format!("{}{HEADER}\n  File \"a.py\"\nKeyError: 1\n", "INFO again\n".repeat(100));
        assert_eq!(excerpt(&text, 100), format!("{HEADER}\n  File \"a.py\"\nKeyError: 1"));
        let text = format!("{}fatal: no route\n", "INFO again\n".repeat(100));
        assert!(
            excerpt(&text, 100).starts_with("INFO again\n")
                && excerpt(&text, 100).ends_with("\nfatal: no route")
        );
        assert_eq!(excerpt(&"x".repeat(200), 100), "x".repeat(100));
        assert_eq!(excerpt("short", 5), "short");
    }

    proptest! {
        #[test]
        fn any_text_is_taken_apart_within_its_limits(
            parts in prop::collection::vec(
                prop_oneof![Just(HEADER.to_owned()), "[ é|a-c\n]{0,9}", Just("\n".to_owned())], 0..12),
            limit in 0_usize..80,
        ) {
            let text = parts.concat();
            prop_assert!(excerpt(&text, limit).len() <= limit);
            prop_assert!(text.contains(last_line(&text)));
            if let Some(trace) = Traceback::last(&text) {
                prop_assert!(!trace.headline().is_empty() && trace.frames.trim_start().starts_with(HEADER));
            }
        }
    }
}
