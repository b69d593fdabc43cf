//! Sanitizes text from messages, so that it cannot control a terminal, a spreadsheet or what a reader sees.
//!
//! Anybody who can send a message chooses its keys, ids, types, headers and error messages. Text for a terminal passes
//! through [`sanitize`](sanitize()), CSV cells through [`csv_cell`]; JSON keeps every character and escapes the unsafe ones as `\u`
//! ([`escape_json`]).

use std::fmt::Write;

pub use lazaret_api::text::{needs_escape, sanitize};

/// Returns the bytes on one line with unsafe characters escaped, and invalid UTF-8 as `\x` and two digits.
pub fn sanitize_bytes(bytes: &[u8]) -> String {
    let mut shown = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        shown.push_str(&sanitize(chunk.valid()));
        for byte in chunk.invalid() {
            let _ = write!(shown, "\\x{byte:02x}");
        }
    }
    shown
}

/// Escapes unsafe characters in JSON without changing its meaning. They only occur inside strings, where an escape is
/// equivalent.
///
/// ```
/// use lazaret_cli::sanitize::escape_json;
/// assert_eq!(escape_json("{\"a\":\"\u{202e}x\u{e0041}\"}"), r#"{"a":"\u202ex\udb40\udc41"}"#);
/// ```
pub fn escape_json(json: &str) -> String {
    let mut written = String::with_capacity(json.len());
    for c in json.chars() {
        // Line breaks are JSON's own whitespace; inside strings they are escaped already.
        if needs_escape(c) && !matches!(c, '\n' | '\r' | '\t') {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(written, "\\u{unit:04x}");
            }
        } else {
            written.push(c);
        }
    }
    written
}

/// Formats a CSV cell: sanitized, never a formula, quoted where needed.
///
/// ```
/// use lazaret_cli::sanitize::csv_cell;
/// assert_eq!(csv_cell("a"), "a");
/// assert_eq!(csv_cell("=cmd()"), "'=cmd()");
/// assert_eq!(csv_cell(r#"say "hi", you"#), r#""say ""hi"", you""#);
/// ```
pub fn csv_cell(text: &str) -> String {
    let mut cell = sanitize(text);
    if is_formula(text) {
        cell.insert(0, '\'');
    }
    if needs_quotes(&cell) {
        cell = format!("\"{}\"", cell.replace('"', "\"\""));
    }
    cell
}

/// Returns whether a spreadsheet may evaluate the text. Spreadsheets skip leading blanks, and some accept full-width signs.
fn is_formula(text: &str) -> bool {
    let has_sign = |text: &str| text.starts_with(['=', '+', '-', '@', '\t', '\r', '＝', '＋', '－', '＠']);
    has_sign(text) || has_sign(text.trim_start())
}

fn needs_quotes(cell: &str) -> bool {
    cell.contains([',', ';', '"']) || cell.starts_with(' ') || cell.ends_with(' ')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What attackers send, and what it must not do.
    const HOSTILE: [&str; 9] = [
        "\u{1b}]52;c;cm0gLXJmIH4=\u{7}",
        "\u{1b}[2J\u{1b}[H",
        "\u{9b}31m",
        "user\u{202e}gpj.exe",
        "a\u{2066}b\u{2069}",
        "zero\u{200b}width\u{feff}",
        "line\r\nnew line\u{2028}another",
        "\u{8}\u{8}\u{8}ok",
        "tag\u{e0041}\u{e0042}",
    ];

    fn hostile() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            any::<String>(),
            prop::sample::select(HOSTILE.to_vec()).prop_map(str::to_owned),
            prop::sample::select(vec![
                "=1+1", "+", "-2", "@SUM(A1)", "\t=x", "\r", "\"", ",", ";", " ", "\n", "\\"
            ])
            .prop_map(str::to_owned),
        ];
        prop::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat())
    }

    fn harmless(text: &str) -> bool {
        !text.chars().any(needs_escape)
    }

    /// Reads one line of CSV as RFC 4180 has it.
    fn read_csv(line: &str) -> Vec<String> {
        let (mut cells, mut cell, mut quoted) = (Vec::new(), String::new(), false);
        let mut chars = line.chars().peekable();
        while let Some(c) = chars.next() {
            match (c, quoted) {
                ('"', true) if chars.peek() == Some(&'"') => cell.extend(chars.next()),
                ('"', _) => quoted = !quoted,
                (',', false) => cells.push(std::mem::take(&mut cell)),
                (c, _) => cell.push(c),
            }
        }
        cells.push(cell);
        cells
    }

    proptest! {
        #[test]
        fn nothing_dangerous_reaches_a_terminal(text in hostile()) {
            let shown = sanitize(&text);
            prop_assert!(harmless(&shown), "{shown:?}");
            prop_assert_eq!(sanitize(&shown), shown.clone());
        }

        #[test]
        fn bytes_that_are_no_text_are_shown_too(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(harmless(&sanitize_bytes(&bytes)));
        }

        #[test]
        fn what_people_write_stays_as_it_is(text in "[ -~äöüßéñ漢字かなабвЯ]{0,60}") {
            prop_assert_eq!(sanitize(&text), text);
        }

        #[test]
        fn json_keeps_every_character(text in hostile()) {
            let value = serde_json::json!({ text.clone(): [text.clone(), 1, null] });
            for json in [serde_json::to_string(&value).unwrap(), serde_json::to_string_pretty(&value).unwrap()] {
                let written = escape_json(&json);
                prop_assert!(!written.chars().any(|c| needs_escape(c) && c != '\n'), "{written:?}");
                prop_assert_eq!(&serde_json::from_str::<serde_json::Value>(&written).unwrap(), &value);
            }
        }

        #[test]
        fn a_cell_of_csv_is_one_cell_and_no_formula(text in hostile()) {
            let line = format!("{},{}", csv_cell(&text), csv_cell("end"));
            prop_assert!(harmless(&line), "{line:?}");
            let cells = read_csv(&line);
            prop_assert_eq!(cells.len(), 2, "{:?}", line);
            prop_assert!(!is_formula(&cells[0]), "{:?}", cells);
            prop_assert_eq!(cells[0].strip_prefix('\'').filter(|_| is_formula(&text)).unwrap_or(&cells[0]), sanitize(&text));
        }
    }

    #[test]
    fn known_attacks_are_shown_and_do_nothing() {
        // kubectl's CVE-2021-25743 was a missing function like this one.
        assert_eq!(sanitize(HOSTILE[0]), r"\u{1b}]52;c;cm0gLXJmIH4=\u{7}");
        assert_eq!(sanitize(HOSTILE[2]), r"\u{9b}31m");
        assert_eq!(sanitize(HOSTILE[3]), r"user\u{202e}gpj.exe");
        assert_eq!(sanitize(HOSTILE[6]), r"line\r\nnew line\u{2028}another");
        assert_eq!(sanitize_bytes(b"a\xff\x1bb"), r"a\xff\u{1b}b");
        for attack in HOSTILE {
            assert!(harmless(&sanitize(attack)) && harmless(&csv_cell(attack)), "{attack:?}");
        }
    }

    #[test]
    fn marks_do_not_pile_up() {
        let tower = format!("e{}", "\u{301}".repeat(50));
        let shown = sanitize(&tower);
        assert_eq!(shown.chars().filter(|c| *c == '\u{301}').count(), 3);
        assert_eq!(sanitize("\u{301}x"), r"\u{301}x");
        assert_eq!(sanitize("e\u{301}"), "e\u{301}");
    }

    #[test]
    fn every_way_to_begin_a_formula_is_guarded() {
        for formula in ["=1", "+1", "-1", "@x", "\t=1", "\r=1", "  =1", "＝1", "\n=1"] {
            let cell = csv_cell(formula);
            assert!(cell.trim_start_matches('"').starts_with('\''), "{formula:?} became {cell:?}");
        }
        assert_eq!(csv_cell("1-1"), "1-1");
    }
}
