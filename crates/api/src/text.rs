//! Makes text from messages safe to display. The command line and the console treat the same characters
//! as unsafe.
//!
//! Anyone who can send a message chooses its keys, ids, types, headers and error messages.

use std::fmt::Write;

use lazaret_core::Traceback;
use lazaret_core::traceback::last_line;
use unicode_width::UnicodeWidthChar;

/// The maximum number of combining marks on one character. More would overlap other lines.
const MAX_MARKS: usize = 3;

/// Returns `true` if the character is not simply visible: it moves the cursor, changes the text
/// direction, or is invisible.
pub fn needs_escape(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' // zero width, direction marks
            | '\u{2028}'..='\u{202e}' // line and paragraph separators, embeddings and overrides
            | '\u{2060}'..='\u{206f}' // joiners, isolates, deprecated formats
            | '\u{3164}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fe00}'..='\u{fe0f}' // variation selectors
            | '\u{fff0}'..='\u{fffb}'
            | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1345f}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}') // tags and more variation selectors
}

/// Returns the text on one line with unsafe characters escaped.
///
/// ```
/// use lazaret_api::text::sanitize;
/// assert_eq!(sanitize("order-7 ü"), "order-7 ü");
/// assert_eq!(sanitize("a\u{1b}[2Jb\n\u{202e}c"), r"a\u{1b}[2Jb\n\u{202e}c");
/// ```
pub fn sanitize(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut marks = 0;
    for c in text.chars() {
        let is_mark = c.width() == Some(0);
        marks = if is_mark { marks + 1 } else { 0 };
        // A leading mark would combine with the text printed before.
        let too_many = is_mark && (marks > MAX_MARKS || shown.is_empty());
        match c {
            '\n' => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            '\t' => shown.push_str("\\t"),
            c if needs_escape(c) || too_many => {
                // Writing to a string cannot fail.
                let _ = write!(shown, "\\u{{{:x}}}", u32::from(c));
            }
            c => shown.push(c),
        }
    }
    shown
}

/// Returns the most informative line of an error. That is the exception of a Python traceback anywhere
/// in the message, or the last line of a command's standard error. Otherwise it is the whole message.
///
/// ```
/// use lazaret_api::text::headline;
/// let trace = "Traceback (most recent call last):\n  File \"h.py\", line 9\nKeyError: 'USD'\n";
/// assert_eq!(headline("exit code 1", trace), "KeyError: 'USD'");
/// ```
pub fn headline<'m>(error_type: &str, message: &'m str) -> &'m str {
    match Traceback::last(message) {
        Some(trace) => trace.headline(),
        None if is_of_command(error_type) => last_line(message),
        None => message,
    }
}

/// Returns `true` if the message is the standard error of a command handler.
fn is_of_command(error_type: &str) -> bool {
    ["exit code ", "killed by signal "].iter().any(|prefix| error_type.starts_with(prefix))
}

/// Quotes a text as one shell word that is printed unchanged.
pub fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+,=".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) && !text.starts_with('-') {
        return text.to_owned();
    }
    let word = format!("'{}'", text.replace('\'', r"'\''"));
    if sanitize(&word) == word { word } else { ansi_c_quoted(text) }
}

/// Quotes a text with escapes for every character that is not printable ASCII, in the `$'…'` syntax of
/// bash, zsh and ksh.
fn ansi_c_quoted(text: &str) -> String {
    let mut word = String::from("$'");
    for c in text.chars() {
        match c {
            '\'' | '\\' => word.extend(['\\', c]),
            ' '..='~' => word.push(c),
            c => {
                for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                    // Writing to a string cannot fail.
                    let _ = write!(word, "\\x{byte:02x}");
                }
            }
        }
    }
    word.push('\'');
    word
}
