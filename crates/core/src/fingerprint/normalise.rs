//! An error message without what varies from one message to the next.

/// The number of bytes of a message that are normalised.
pub(super) const LIMIT: usize = 1024;

/// Units that belong to the number before them: `999ms` and `1.2s` are both just a number.
const UNITS: [&str; 18] = [
    "ns", "us", "µs", "ms", "s", "m", "h", "d", "min", "sec", "Z", "B", "kB", "KB", "MB", "GB", "KiB", "MiB",
];

/// The message with what varies replaced: numbers, times, addresses, hexadecimal and other opaque ids by `#`, quoted
/// text by `?`, the query of a URL cut off, white space folded. Looks at the first 1024 bytes, takes linear time, and
/// changes nothing more when applied again.
///
/// ```
/// use lazaret_core::fingerprint::normalise;
/// assert_eq!(normalise("order 17 of 'acme' not found"), "order # of ? not found");
/// assert_eq!(normalise("no answer from 10.0.0.7:8080 after 1.5s"), "no answer from # after #");
/// ```
pub fn normalise(message: &str) -> String {
    let text = beginning(message);
    let mut scanner =
        Scanner { text, at: 0, out: String::with_capacity(text.len()), in_url: false, unclosed: [false; 3] };
    while let Some(next) = text[scanner.at..].chars().next() {
        scanner.step(next);
    }
    scanner.out.truncate(scanner.out.trim_end().len());
    scanner.out
}

/// The part of a text that is normalised: its first 1024 bytes.
pub(super) fn beginning(text: &str) -> &str {
    &text[..text.floor_char_boundary(LIMIT)]
}

// Why applying it again changes nothing: the output is never longer than the input, so that the limit cuts it no
// further; it has no ASCII digit left, and every replacement but two needs one; and the two others, quotes and URL
// queries, look only at neighbours that a replacement does not change for them.
struct Scanner<'t> {
    text: &'t str,
    /// What is read next.
    at: usize,
    out: String,
    /// Between `://` and the next white space.
    in_url: bool,
    /// For each kind of quote: no closing one is left. Keeps the search for it linear.
    unclosed: [bool; 3],
}

impl Scanner<'_> {
    fn step(&mut self, next: char) {
        match next {
            c if c.is_whitespace() => {
                self.in_url = false;
                self.at += c.len_utf8();
                if !self.out.is_empty() && !self.out.ends_with(' ') {
                    self.out.push(' ');
                }
            }
            '?' if self.in_url => {
                let rest = &self.text[self.at..];
                self.replace(self.at + rest.find(char::is_whitespace).unwrap_or(rest.len()), '?');
            }
            '"' | '`' | '\'' if !self.in_url => match self.closing(next) {
                Some(end) => self.replace(end, '?'),
                None => self.copy(next),
            },
            c if c.is_alphanumeric() => self.word(),
            c => {
                self.copy(c);
                self.in_url |= self.out.ends_with("://");
            }
        }
    }

    fn copy(&mut self, c: char) {
        self.out.push(c);
        self.at += c.len_utf8();
    }

    fn replace(&mut self, end: usize, by: char) {
        self.out.push(by);
        self.at = end;
    }

    /// Behind the closing quote of the text that the quote at hand opens, if it opens one.
    fn closing(&mut self, quote: char) -> Option<usize> {
        let kind = ['"', '`', '\''].iter().position(|q| *q == quote)?;
        // The apostrophe of "can't" opens nothing, and that of "'don't'" closes nothing.
        let apostrophe = quote == '\'';
        if self.unclosed[kind] || (apostrophe && self.out.chars().next_back().is_some_and(sticks)) {
            return None;
        }
        let mut chars = self.text[self.at..].char_indices().skip(1).peekable();
        while let Some((offset, c)) = chars.next() {
            if c == '\\' {
                chars.next();
            } else if c == quote && !(apostrophe && chars.peek().is_some_and(|(_, next)| sticks(*next))) {
                return Some(self.at + offset + 1);
            }
        }
        self.unclosed[kind] = true;
        None
    }

    /// A run of letters and digits.
    fn word(&mut self) {
        let rest = &self.text[self.at..];
        let length = rest.find(|c: char| !c.is_alphanumeric()).unwrap_or(rest.len());
        let word = &rest[..length];
        if let Some(id) = uuid(rest).or_else(|| address(rest)) {
            self.replace(self.at + id, '#');
        } else if let Some(first_digit) = word.find(|c: char| c.is_ascii_digit()) {
            if opaque(word) {
                self.replace(self.at + length, '#');
            } else {
                self.out.push_str(&word[..first_digit]);
                let digits = self.at + first_digit;
                self.replace(digits + number(&self.text[digits..]), '#');
            }
        } else {
            self.out.push_str(word);
            self.at += length;
        }
    }
}

/// Returns whether an apostrophe next to this character is part of a word. `#` counts, since it replaces letters or digits.
fn sticks(c: char) -> bool {
    c.is_alphanumeric() || c == '#'
}

fn starts_with_letter_or_digit(text: &str) -> bool {
    text.chars().next().is_some_and(char::is_alphanumeric)
}

/// The length of the UUID at the start of the text. It must have a digit.
fn uuid(text: &str) -> Option<usize> {
    let uuid = text.get(..36)?;
    let formed = uuid.bytes().enumerate().all(|(i, b)| match i {
        8 | 13 | 18 | 23 => b == b'-',
        _ => b.is_ascii_hexdigit(),
    });
    let whole = uuid.bytes().any(|b| b.is_ascii_digit()) && !starts_with_letter_or_digit(&text[36..]);
    (formed && whole).then_some(36)
}

/// The length of the IPv6 or hardware address at the start of the text. It must have a digit.
fn address(text: &str) -> Option<usize> {
    // The longest there is: eight groups of four, and seven colons.
    let bound = text.len().min(40);
    let length = text.bytes().take(bound).take_while(|b| b.is_ascii_hexdigit() || *b == b':').count();
    let run = text[..length].trim_end_matches(':');
    let colons = run.matches(':').count();
    let first = run.split(':').next().unwrap_or_default();
    // "add::bed1" is a path of names, "fe80::1" is not.
    let likely = colons >= 5 || (colons >= 2 && first.bytes().any(|b| b.is_ascii_digit()));
    let formed =
        run.split(':').all(|group| group.len() <= 4) && !starts_with_letter_or_digit(&text[run.len()..]);
    (likely && formed && run.bytes().any(|b| b.is_ascii_digit())).then_some(run.len())
}

/// Returns whether a word with a digit looks like an id: hexadecimal, or letters and digits in turns.
fn opaque(word: &str) -> bool {
    let digits_only = word.bytes().all(|b| b.is_ascii_digit());
    let hex = |text: &str| text.bytes().all(|b| b.is_ascii_hexdigit());
    let prefixed = word.strip_prefix("0x").is_some_and(|rest| !rest.is_empty() && hex(rest));
    let groups = word.split(|c: char| !c.is_ascii_digit()).filter(|group| !group.is_empty()).count();
    prefixed || (!digits_only && ((word.len() >= 6 && hex(word)) || (word.len() >= 8 && groups >= 2)))
}

/// The length of the number at the start of the text: digits, then more of them behind separators or units. Dates,
/// times, versions, IP addresses and durations are numbers too.
fn number(text: &str) -> usize {
    let digits =
        |from: usize| from + text.as_bytes()[from..].iter().take_while(|b| b.is_ascii_digit()).count();
    let mut end = digits(0);
    loop {
        let rest = &text[end..];
        let unit = UNITS.iter().filter_map(|unit| Some((unit.len(), rest.strip_prefix(unit)?)));
        if let Some((length, after)) = unit.max_by_key(|(length, _)| *length) {
            if after.starts_with(|c: char| c.is_ascii_digit()) {
                end = digits(end + length);
                continue;
            }
            if !starts_with_letter_or_digit(after) {
                return end + length;
            }
        }
        if !rest.starts_with(['.', ',', ':', '-', '+', '/', '_', 'T']) {
            return end;
        }
        let further = digits(end + 1);
        if further == end + 1 || !ends_number(&text[further..]) {
            return end;
        }
        end = further;
    }
}

/// Returns whether a run of digits that is followed by this is part of a number, not the start of an id.
fn ends_number(rest: &str) -> bool {
    let time = rest.strip_prefix('T').is_some_and(|after| after.starts_with(|c: char| c.is_ascii_digit()));
    let unit =
        |unit: &&str| rest.strip_prefix(*unit).is_some_and(|after| !starts_with_letter_or_digit(after));
    time || !starts_with_letter_or_digit(rest) || UNITS.iter().any(unit)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_varies_is_replaced() {
        let table = [
            ("order 17 not found", "order # not found"),
            ("order17 not found", "order# not found"),
            ("order-17/item_3", "order-#/item_#"),
            ("took 1.000023s", "took #"),
            ("took 999ms of 1m30s, 5 KiB", "took # of #, # KiB"),
            ("at 2024-01-31T12:00:00.123Z", "at #"),
            ("at 2024-01-31T12:00:00+02:00", "at #"),
            ("at 2024-01-31 12:00:00", "at # #"),
            ("10.0.0.7:8080 refused", "# refused"),
            ("[2001:db8::1]:443 refused", "[#]:# refused"),
            ("fe80::1ff:fe23:4567:890a down", "# down"),
            ("aa:bb:cc:dd:ee:f0 down", "# down"),
            ("user 3fa85f64-5717-4562-b3fc-2c963f66afa6 gone", "user # gone"),
            ("user abcdefab-cdef-4abc-abcd-abcdefabcdef gone", "user # gone"),
            ("null at 0x7ffe12", "null at #"),
            ("commit 9fceb02d0ae598e95dc970b74767f19372d61af8", "commit #"),
            ("id 01ARZ3NDEKTSV4RRFFQ69G5FAV", "id #"),
            ("1,234.56 of 1_000", "# of #"),
            ("17-3fa85f64", "#-#"),
            ("no column \"user_id\" in 'orders'", "no column ? in ?"),
            ("key `a\\`b` is missing", "key ? is missing"),
            ("can't find the customer's 'can't' list", "can't find the customer's ? list"),
            ("expected \" at line 3", "expected \" at line #"),
            ("GET http://shop/users/17?token=abc&x=y failed", "GET http://shop/users/#? failed"),
            ("why? because", "why? because"),
            ("  two\n\tlines \n", "two lines"),
            ("shop::v2::charge", "shop::v#::charge"),
            ("bed::add::c1", "bed::add::c#"),
            ("utf8 and sha256", "utf# and sha#"),
            ("Ünïcode naïve ٣", "Ünïcode naïve ٣"),
            ("", ""),
        ];
        for (message, expected) in table {
            assert_eq!(normalise(message), expected, "{message}");
        }
    }

    #[test]
    fn only_the_beginning_of_a_long_message_counts() {
        let long = "é ".repeat(10_000);
        assert!(normalise(&long).len() <= LIMIT);
        assert_eq!(
            normalise(&format!("{}a", "x".repeat(LIMIT))),
            normalise(&format!("{}b", "x".repeat(LIMIT)))
        );
    }

    proptest! {
        #[test]
        fn any_text_is_normalised_once(text in any::<String>()) {
            let once = normalise(&text);
            prop_assert_eq!(normalise(&once), once);
        }

        #[test]
        fn hostile_text_is_normalised_once(text in r#"[0-3a-fTsmZxé'"`\\?#:/.\- \n]{0,60}"#) {
            let once = normalise(&text);
            prop_assert!(!once.bytes().any(|b| b.is_ascii_digit()));
            prop_assert!(once.len() <= text.len());
            prop_assert_eq!(normalise(&once), once);
        }

        #[test]
        fn a_url_is_normalised_once(text in r#"("|'|\\|1|a| |://|\?|#){0,24}"#) {
            let once = normalise(&text);
            prop_assert_eq!(normalise(&once), once);
        }
    }
}
