//! The forms of secrets in texts: numbers of payment cards and bank accounts, e-mail addresses, credentials.
//!
//! Each finder takes linear time, and adds the ranges of what it found.

use std::ops::Range;
use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use regex::{Captures, Regex};

use super::REDACTED;

/// The matches of one pattern that are looked for in one text. Beyond them, the rest of the text is redacted: the time for a text is
/// linear because of this limit.
pub(super) const MATCHES: usize = 256;

/// Finds the matches of a pattern, or what its groups match.
pub(super) fn matches(pattern: &Regex, text: &str, found: &mut Vec<Range<usize>>) {
    for (number, captures) in pattern.captures_iter(text).enumerate() {
        let before = found.len();
        let groups = (1..captures.len()).filter_map(|group| captures.get(group));
        found.extend(groups.map(|group| group.range()).filter(|range| !range.is_empty()));
        if let Some(whole) = captures.get(0)
            && found.len() == before
        {
            found.push(whole.range());
        }
        if number + 1 == MATCHES {
            found.push(captures.get(0).map_or(0, |whole| whole.end())..text.len());
            break;
        }
    }
    found.retain(|range| !range.is_empty());
}

/// The most bytes of the local part of an address that are looked at, and of a domain. Both may be encoded.
const LOCAL_BYTES: usize = 256;
const DOMAIN_BYTES: usize = 1024;

/// How the `@` of an address is written: as it is, full-width, in a URL once and twice, in JSON, in HTML.
const AT_SIGNS: [&str; 7] = ["@", "\u{ff20}", "%40", "%2540", "\\u0040", "&#64;", "&#x40;"];

/// Finds e-mail addresses: a local part, and a domain with a dot. Characters outside of ASCII belong to either, and so do escapes.
pub(super) fn emails(text: &str, found: &mut Vec<Range<usize>>) {
    for sign in AT_SIGNS {
        for (at, _) in text.match_indices(sign) {
            let start = at - local_bytes(&text[..at]);
            let from = at + sign.len();
            let domain = domain(&text[from..]);
            let local = &text[start..at];
            if !local.is_empty() && is_domain(domain) && local != REPOSITORY_USER && !is_object(local, domain)
            {
                found.push(start..from + domain.len());
            }
        }
    }
}

/// The user in addresses of repositories, as in `git@github.com`.
const REPOSITORY_USER: &str = "git";

/// Returns `true` for an object as Java writes it: a class and a hash, as in `Foo@7a81197d.bar`.
fn is_object(local: &str, domain: &str) -> bool {
    let class = local.rsplit('.').next().unwrap_or(local);
    let hash = domain.split('.').next().unwrap_or(domain);
    class.starts_with(|c: char| c.is_ascii_uppercase())
        && (6..=8).contains(&hash.len())
        && hash.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
        && hash.bytes().any(|byte| byte.is_ascii_digit())
}

/// The length of the local part of an address at the end of a text.
fn local_bytes(text: &str) -> usize {
    let text = &text[text.ceil_char_boundary(text.len().saturating_sub(LOCAL_BYTES))..];
    let in_local = |byte: u8| byte.is_ascii_alphanumeric() || !byte.is_ascii() || b"._%+'-".contains(&byte);
    let mut start = text.len();
    loop {
        start -= text.as_bytes()[..start].iter().rev().take_while(|byte| in_local(**byte)).count();
        // An escape of JSON is a part of it.
        match start.checked_sub(1) {
            Some(backslash) if is_escape(&text.as_bytes()[backslash..]) => start = backslash,
            _ => return text.len() - start,
        }
    }
}

/// The domain of an address at the beginning of a text.
fn domain(text: &str) -> &str {
    let text = &text[..text.floor_char_boundary(DOMAIN_BYTES)];
    let bytes = text.as_bytes();
    let mut end = 0;
    while let Some(byte) = bytes.get(end) {
        end += match byte {
            byte if byte.is_ascii_alphanumeric() || !byte.is_ascii() || b".-".contains(byte) => 1,
            b'\\' if is_escape(&bytes[end..]) => ESCAPE_BYTES,
            b'%' if is_percent_encoded(&bytes[end..]) => 3,
            _ => break,
        };
    }
    text[..end].trim_end_matches(['.', '-'])
}

/// The length of an escape of JSON, as in `\u0040`.
const ESCAPE_BYTES: usize = 6;

fn is_escape(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\\u")
        && bytes.get(2..ESCAPE_BYTES).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
}

/// Returns `true` for an encoded byte outside of ASCII, as in an internationalized domain.
fn is_percent_encoded(bytes: &[u8]) -> bool {
    matches!(bytes, [b'%', b'8' | b'9' | b'a'..=b'f' | b'A'..=b'F', low, ..] if low.is_ascii_hexdigit())
}

/// Returns `true` for a domain of several labels, the last of which is not a number: `2` in `lodash@4.17.2` is a version.
fn is_domain(domain: &str) -> bool {
    let dot = |c: char| matches!(c, '.' | '\u{3002}' | '\u{ff0e}');
    let last = domain.rsplit_once(dot).map(|(_, last)| last);
    last.is_some_and(|last| last.len() > 1 && !last.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The lengths of card numbers, in digits.
const CARD_DIGITS: std::ops::RangeInclusive<usize> = 13..=19;

/// A group of digits.
struct Group {
    range: Range<usize>,
    digits: usize,
    /// What joins it to the group before.
    joint: Option<char>,
}

/// The value of a digit of a card number.
pub(super) fn digit(c: char) -> Option<u32> {
    match c {
        '0'..='9' => Some(u32::from(c) - u32::from('0')),
        // Full-width.
        '\u{ff10}'..='\u{ff19}' => Some(u32::from(c) - 0xff10),
        _ => None,
    }
}

/// Returns `true` for what may stand between two groups of a number: a space, a hyphen or dash, a dot.
pub(super) fn joins_groups(c: char) -> bool {
    matches!(
        c,
        ' ' | '-' | '.' | '\u{a0}' | '\u{2007}' | '\u{2009}' | '\u{2010}'
            ..='\u{2014}' | '\u{202f}' | '\u{2212}' | '\u{3000}' | '\u{ff0d}'
    )
}

/// Returns `true` for a character without a shape, which may stand between any two digits.
fn is_zero_width(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200d}' | '\u{2060}' | '\u{feff}')
}

/// What joins two groups of a card number, and its length in bytes: what [`joins_groups`], or up to two spaces, tabs, encoded spaces and
/// characters without a shape.
fn joint(text: &str) -> Option<(char, usize)> {
    let space = |text: &str| {
        let c = if text.starts_with("%20") { ' ' } else { text.chars().next()? };
        let length = if c == ' ' && text.starts_with('%') { 3 } else { c.len_utf8() };
        (c.is_whitespace() && c != '\n' || is_zero_width(c)).then_some((c, length))
    };
    match space(text) {
        Some((c, length)) => Some((c, length + space(&text[length..]).map_or(0, |(_, length)| length))),
        None => text.chars().next().filter(|c| joins_groups(*c)).map(|c| (c, c.len_utf8())),
    }
}

/// Finds numbers of payment cards: whole groups of digits with at most one hyphen, dot or two spaces between two of them, which together
/// have the length, the first digits of a card network, and a valid check digit.
pub(super) fn card_numbers(text: &str, found: &mut Vec<Range<usize>>) {
    let mut at = 0;
    while let Some(next) = text[at..].find(|c: char| digit(c).is_some()) {
        let groups = digit_groups(text, at + next);
        at = groups.last().map_or(text.len(), |last| last.range.end);
        let mut first = 0;
        while first < groups.len() {
            // The longest one.
            let mut ends = (first..groups.len()).take(*CARD_DIGITS.end()).rev();
            let last = ends.find(|last| is_card(text, &groups[first..=*last]));
            if let Some(last) = last {
                found.push(groups[first].range.start..groups[last].range.end);
            }
            first = last.unwrap_or(first) + 1;
        }
    }
}

/// The groups of digits from here on, as long as something joins two of them.
fn digit_groups(text: &str, mut at: usize) -> Vec<Group> {
    let (mut groups, mut joined_by) = (Vec::new(), None);
    loop {
        let (mut end, mut digits) = (at, 0);
        for c in text[at..].chars().take_while(|c| digit(*c).is_some()) {
            end += c.len_utf8();
            digits += 1;
        }
        groups.push(Group { range: at..end, digits, joint: joined_by });
        let Some((c, length)) = joint(&text[end..]) else { return groups };
        at = end + length;
        if text[at..].chars().next().and_then(digit).is_none() {
            return groups;
        }
        joined_by = Some(c);
    }
}

fn is_card(text: &str, groups: &[Group]) -> bool {
    let length: usize = groups.iter().map(|group| group.digits).sum();
    if !CARD_DIGITS.contains(&length) || !is_grouped(groups) {
        return false;
    }
    // Without what joins the groups: an encoded space has digits, too.
    let groups_text = groups.iter().flat_map(|group| text[group.range.clone()].chars());
    let digits: Vec<u32> = groups_text.filter_map(digit).collect();
    // The check digit of Luhn.
    let weighed = digits.iter().rev().enumerate().map(|(place, digit)| match (place % 2, digit * 2) {
        (0, _) => *digit,
        (_, double) if double > 9 => double - 9,
        (_, double) => double,
    });
    is_issued(&digits)
        && weighed.sum::<u32>() % 10 == 0
        && !groups.iter().any(|group| is_identifier(text, &group.range))
}

/// Returns `true` for the groups of a card number. With a dot between them, they may be a fraction, an address or a version.
fn is_grouped(groups: &[Group]) -> bool {
    let joints = || groups.iter().skip(1).map(|group| group.joint);
    if groups.len() == 1 {
        return groups[0].joint != Some('.');
    }
    if !joints().any(|joint| joint == Some('.')) {
        return true;
    }
    let (ends, inner) = (groups.len() - 1, 3..=6);
    joints().all(|joint| joint == Some('.'))
        && groups.len() > 2
        && groups[0].digits == 4
        && groups[1..ends].iter().all(|group| inner.contains(&group.digits))
        && groups[ends].digits <= *inner.end()
}

/// Returns `true` for the first digits of the card networks. Times begin with 1, or with the year.
fn is_issued(digits: &[u32]) -> bool {
    let prefix = digits.iter().take(4).fold(0_u32, |prefix, digit| prefix * 10 + *digit);
    match prefix / 100 {
        22..=27 => digits.len() >= 16 && matches!(prefix, 2200..=2204 | 2221..=2720),
        30 | 34..=69 => true,
        _ => false,
    }
}

/// The length of a UUID.
const UUID_BYTES: usize = 36;
/// The lengths of ids of spans and traces, and of hashes, in hexadecimal digits.
const HEX_BYTES: [usize; 4] = [16, 32, 40, 64];

/// Returns `true` if the digits are a part of a UUID, of an id of a trace, or of a hash.
fn is_identifier(text: &str, range: &Range<usize>) -> bool {
    let bytes = text.as_bytes();
    // One byte more than the longest.
    let most = HEX_BYTES[HEX_BYTES.len() - 1] + 1;
    let word = |in_word: fn(&u8) -> bool| {
        let before = bytes[..range.start].iter().rev().take(most).take_while(|byte| in_word(byte)).count();
        let after = bytes[range.end..].iter().take(most).take_while(|byte| in_word(byte)).count();
        &bytes[range.start - before..range.end + after]
    };
    let is_uuid = |word: &[u8]| {
        word.len() == UUID_BYTES
            && word.iter().enumerate().all(|(place, byte)| match place {
                8 | 13 | 18 | 23 => *byte == b'-',
                _ => byte.is_ascii_hexdigit(),
            })
    };
    let is_hex = |word: &[u8]| {
        HEX_BYTES.contains(&word.len())
            && word.iter().all(u8::is_ascii_hexdigit)
            && word.iter().any(u8::is_ascii_alphabetic)
    };
    is_uuid(word(|byte| byte.is_ascii_alphanumeric() || *byte == b'-'))
        || is_hex(word(u8::is_ascii_alphanumeric))
}

/// The countries with IBANs, by the lengths of these.
const IBAN_COUNTRIES: [(usize, &str); 18] = [
    (15, "NO"),
    (16, "BE"),
    (18, "DK FI FK FO GL NL SD"),
    (19, "MK SI"),
    (20, "AT BA EE KZ LT LU MN XK"),
    (21, "CH HR LI LV"),
    (22, "BG BH CR DE GB GE IE ME RS VA"),
    (23, "AE GI IL IQ OM SO TL"),
    (24, "AD CZ ES MD PK RO SA SE SK TN VG"),
    (25, "LY PT ST"),
    (26, "IS TR"),
    (27, "BI DJ FR GR IT MC MR SM"),
    (28, "AL AZ BY CY DO GT HN HU LB NI PL SV"),
    (29, "BR EG PS QA UA"),
    (30, "JO KW MU YE"),
    (31, "MT SC"),
    (32, "LC"),
    (33, "RU"),
];

/// Finds international bank account numbers: two letters of a country, and letters and digits up to its length, with at most one space,
/// hyphen or dot between two of them, and with valid check digits.
pub(super) fn ibans(text: &str, found: &mut Vec<Range<usize>>) {
    let mut before = None;
    let mut from = 0;
    for (at, c) in text.char_indices() {
        let starts = at >= from && c.is_ascii_alphabetic() && !before.is_some_and(char::is_alphanumeric);
        before = Some(c);
        if starts && let Some(length) = iban_length(&text[at..]) {
            found.push(at..at + length);
            from = at + length;
        }
    }
}

/// The length in bytes of the IBAN at the beginning of a text.
fn iban_length(text: &str) -> Option<usize> {
    let country = text.get(..2)?.to_ascii_uppercase();
    let by_length = |(_, countries): &&(usize, &str)| countries.split(' ').any(|known| known == country);
    let (count, _) = IBAN_COUNTRIES.iter().find(by_length)?;
    let (mut characters, mut end) = (Vec::with_capacity(*count), 0);
    let mut rest = text.chars().peekable();
    while characters.len() < *count {
        let c = rest.next()?;
        end += c.len_utf8();
        match c.to_digit(36) {
            Some(value) => characters.push(value),
            None if joins_groups(c) && rest.peek().is_some_and(char::is_ascii_alphanumeric) => {}
            None => return None,
        }
    }
    let is_whole = !rest.peek().is_some_and(|next| next.is_alphanumeric());
    let has_check_digits = characters[2..4].iter().all(|value| *value < 10);
    // The first four characters come last; a letter counts as two digits.
    let rotated = characters[4..].iter().chain(&characters[..4]);
    let remainder = rotated.fold(0_u32, |remainder, value| match *value {
        digit @ 0..=9 => (remainder * 10 + digit) % 97,
        letter => (remainder * 100 + letter) % 97,
    });
    (is_whole && has_check_digits && remainder == 1).then_some(end)
}

/// Credentials with a known form, with what a text with one contains, in lower case: most texts have none of them, and are not searched.
struct Credentials {
    hints: &'static [&'static str],
    form: LazyLock<Regex>,
}

/// Names of values that are secret, at the end of longer ones as well.
const SECRET_NAMES: &str =
    "password|passwd|passphrase|pwd|secret|api[_-]?key|private[_-]?key|secret[_-]?(?:access[_-]?)?key";

/// Parts of [`SECRET_NAMES`].
const SECRET_HINTS: &[&str] = &[
    "password",
    "passwd",
    "passphrase",
    "pwd",
    "secret",
    "apikey",
    "api_key",
    "api-key",
    "private",
    "token",
];

/// A value in quotes, in quotes that are escaped, or up to the next separator.
const VALUE: &str = r#"(?:\\+"(.+?)(?:\\+"|(?m:$))|"((?:[^"\\\n]|\\.)+)|'([^'\n]+)|([^\s"',;&\\()\[\]{}<=][^\s"',;&\\)\]}]*))"#;

/// A value that is not a word of a sentence: in quotes, or with a digit or a special character.
const UNLIKE_A_WORD: &str = r#"(?:"((?:[^"\\\n]|\\.)+)|'([^'\n]+)|([^\s"',;&\\()\[\]{}<=0-9!@#$%^*+/~]*[0-9!@#$%^*+/~][^\s"',;&\\)\]}]*))"#;

fn form(expression: &str) -> Regex {
    Regex::new(expression).expect("the forms are regular expressions")
}

/// The place of the tokens with a form of their own.
const KNOWN: usize = 0;

static CREDENTIALS: [Credentials; 5] = [
    Credentials {
        hints: &[
            "eyj",
            "bearer",
            "akia",
            "asia",
            "aroa",
            "aida",
            "aws_s",
            "secretaccesskey",
            "ghp_",
            "gho_",
            "ghu_",
            "ghs_",
            "ghr_",
            "github_pat_",
            "glpat-",
            "xox",
            "xapp-",
            "k_live_",
            "k_test_",
            "whsec_",
            "aiza",
            "npm_",
            "sg.",
            "lz_",
        ],
        form: LazyLock::new(|| {
            let forms = [
                // A JSON web token, signed or encrypted, or its beginning.
                r"\beyJ[A-Za-z0-9_-]{5,}(?:\.[A-Za-z0-9_-]*){0,4}",
                r"(?i:\bbearer)[ :=]+([A-Za-z0-9._~+/=-]{8,})",
                r"\b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16}",
                r#"(?i:aws_secret_access_key|aws_session_token|secretaccesskey)["']?\s*[:=]\s*["']?([A-Za-z0-9/+=]{16,})"#,
                r"\bgh[pousr]_[A-Za-z0-9]{20,}",
                r"\bgithub_pat_[A-Za-z0-9_]{20,}",
                r"\bglpat-[A-Za-z0-9_-]{20,}",
                r"\bxox[a-z]-[A-Za-z0-9-]{10,}",
                r"\bxapp-[A-Za-z0-9-]{10,}",
                r"\b[sr]k_(?:live|test)_[A-Za-z0-9]{10,}",
                r"\bwhsec_[A-Za-z0-9+/=]{16,}",
                r"\bAIza[A-Za-z0-9_-]{35}",
                r"\bnpm_[A-Za-z0-9]{36}",
                r"\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}",
                r"\blz_[A-Za-z0-9_-]{16,}",
            ];
            form(&forms.join("|"))
        }),
    },
    Credentials {
        hints: &["private key"],
        form: LazyLock::new(|| {
            let label = "[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----";
            form(&format!(r"(?s)-----BEGIN {label}.*?(?:-----END {label}|\z)"))
        }),
    },
    Credentials {
        hints: &["://"],
        // A password, or a token in place of the user.
        form: LazyLock::new(|| {
            form(r#"://[^\s/?#@:"']*:([^\s/?#@"']+)@|(?i:https?)://([^\s/?#@:"']{16,})@"#)
        }),
    },
    Credentials {
        hints: &[
            "authorization",
            "cookie",
            "accountkey",
            "account_key",
            "account-key",
            "sharedaccess",
            "-signature=",
            "sig=",
            "pass=",
        ],
        form: LazyLock::new(|| {
            let names =
                r"account[_-]?key|sharedaccess(?:key|signature)|x-(?:amz|goog)-signature|\bpass|_pass";
            let pairs = format!("(?:{names})={VALUE}");
            let forms = [
                r#"authorization["']?\s*[:=]\s*["']?(?:(?:basic|bearer|digest|key|negotiate|token) +)?([^\s"',;]+)"#,
                r#"\b(?:set-)?cookie["']?\s*:\s*["']?([^\s=;,"']+=[^\r\n"']*)"#,
                r#"[?&;]sig=([^\s"'&;,]+)"#,
                pairs.as_str(),
            ];
            form(&format!("(?i:{})", forms.join("|")))
        }),
    },
    Credentials {
        hints: SECRET_HINTS,
        form: LazyLock::new(|| {
            let forms = [
                format!(r#"(?:{SECRET_NAMES}|token)(?:\\*["'])?(?:\s+=>?\s*|=>?){VALUE}"#),
                // In `token= end`, it has no value.
                format!(r#"(?:{SECRET_NAMES}|token)(?:\\*["'])?=>?\s+{UNLIKE_A_WORD}"#),
                format!(r"(?:auth|access|refresh|session)[_-]?token\s*:\s*{VALUE}"),
                format!(r"--(?:[a-z0-9]+-)*(?:{SECRET_NAMES}|token)\s+{UNLIKE_A_WORD}"),
                format!(r"<[\w:.-]*(?:{SECRET_NAMES}|token)(?:\s[^<>]*)?>([^<]+)<"),
                format!(r#"(?:{SECRET_NAMES}|token)\\*["']\s*:\s*{VALUE}"#),
                format!(r"(?:{SECRET_NAMES})\s*:\s*{UNLIKE_A_WORD}"),
            ];
            form(&format!("(?i:{})", forms.join("|")))
        }),
    },
];

/// Finds tokens of programs and services that are recognizable without what is around them, such as `ghp_…`.
///
/// ```
/// use lazaret_core::redaction::known_tokens;
/// let text = format!("--with ghp_{}", "a1".repeat(18));
/// assert_eq!(known_tokens(&text), [7..text.len()]);
/// assert!(known_tokens("bearer authentication").is_empty());
/// ```
pub fn known_tokens(text: &str) -> Vec<Range<usize>> {
    let Credentials { hints, form } = &CREDENTIALS[KNOWN];
    let lowered = text.to_ascii_lowercase();
    if !hints.iter().any(|hint| lowered.contains(hint)) {
        return Vec::new();
    }
    // Where a group matches, the name before it tells what it is.
    let is_whole = |found: &Captures<'_>| found.iter().skip(1).all(|group| group.is_none());
    let found = form.captures_iter(text).filter(is_whole);
    found.filter_map(|found| found.get(0)).map(|whole| whole.range()).collect()
}

/// User and password of a request, in base64.
static BASIC: LazyLock<Regex> = LazyLock::new(|| form(r"(?i:\bbasic)[ :=]+([A-Za-z0-9+/]{4,}={0,2})"));

/// Finds credentials with a known form.
pub(super) fn tokens(text: &str, found: &mut Vec<Range<usize>>) {
    let before = found.len();
    let lowered = text.to_ascii_lowercase();
    for Credentials { hints, form } in &CREDENTIALS {
        if hints.iter().any(|hint| lowered.contains(hint)) {
            matches(form, text, found);
        }
    }
    if lowered.contains("basic") {
        found.extend(basic_credentials(text));
    }
    // A text that was redacted before stays as it is.
    let new = found.split_off(before);
    found.extend(new.into_iter().filter(|range| &text[range.clone()] != REDACTED));
}

/// Finds what stands behind `Basic`, if it is a user and a password: in a sentence it is an adjective.
fn basic_credentials(text: &str) -> impl Iterator<Item = Range<usize>> {
    let is_pair = |encoded: &str| {
        let decoded = STANDARD_NO_PAD.decode(encoded.trim_end_matches('='));
        decoded.is_ok_and(|decoded| decoded.contains(&b':'))
    };
    let groups = BASIC.captures_iter(text).filter_map(|captures| captures.get(1));
    groups.filter(move |group| is_pair(group.as_str())).map(|group| group.range())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redaction::{TextRules, TextSet};

    fn shown(set: TextSet, text: &str) -> String {
        TextRules::new([set], []).redact(text).into_owned()
    }

    #[test]
    fn card_numbers_are_recognized_by_their_check_digit() {
        for (text, expected) in [
            ("bad card 4111111111111111", "bad card [redacted]"),
            ("card=4111 1111 1111 1111.", "card=[redacted]."),
            ("4111-1111-1111-1111", "[redacted]"),
            ("card 4111.1111.1111.1111.", "card [redacted]."),
            ("4111\u{a0}1111\u{a0}1111\u{a0}1111", "[redacted]"),
            ("4111\u{2013}1111\u{2013}1111\u{2013}1111 ", "[redacted] "),
            ("４１１１１１１１１１１１１１１１", "[redacted]"),
            ("４１１１\u{3000}１１１１\u{3000}１１１１\u{3000}１１１１", "[redacted]"),
            ("order 17 4111 1111 1111 1111 of 3", "order 17 [redacted] of 3"),
            ("3782 822463 10005 or 5555555555554444", "[redacted] or [redacted]"),
            ("3782.822463.10005", "[redacted]"),
            ("4222222222222", "[redacted]"),
            ("2223003122003222", "[redacted]"),
            ("x4111111111111111x", "x[redacted]x"),
            ("card 4111  1111  1111  1111 of", "card [redacted] of"),
            ("4111\t1111\t1111\t1111", "[redacted]"),
            ("4111%201111%201111%201111", "[redacted]"),
            ("4111\u{200b}1111\u{200b}1111\u{200b}1111", "[redacted]"),
        ] {
            assert_eq!(shown(TextSet::CardNumbers, text), expected);
        }
        for text in [
            "4111111111111112",
            "order 1700000000000 at 10:00",
            "offset 2020202020202020 of 2024-01-15T10:00:00.123456789Z",
            "41111111111111114111111111111111",
            "4111   1111   1111   1111",
            "4111\n1111\n1111\n1111",
            "0.5555555555554444",
            "41.11111111111111",
            "550e8400-e29b-41d4-a716-446655440000",
            "id 41111111-1111-1111-8abc-abcdefabcdef",
            "trace 4111111111111111abcdefabcdefabcd",
            "00-abcdefabcdefabcd4111111111111111-00f067aa0ba902b7-01",
            "2001.0db8.4111.1111 and 192.168.100.100",
            "",
        ] {
            assert_eq!(shown(TextSet::CardNumbers, text), text);
        }
    }

    #[test]
    fn addresses_are_recognized_however_the_at_sign_is_written() {
        for (text, expected) in [
            ("unknown user ada.l+x@mail.example.org.", "unknown user [redacted]."),
            ("<jürgen@exämple.org>, b@c.de", "<[redacted]>, [redacted]"),
            ("GET /users?mail=ada%2Bx%40example.org&page=1", "GET /users?mail=[redacted]&page=1"),
            ("ada%40ex%C3%A4mple.org/a", "[redacted]/a"),
            (r#"{"mail":"ada\u0040example.org"}"#, r#"{"mail":"[redacted]"}"#),
            (r#"{"mail":"ada\u002bx\u0040ex\u00e4mple.org"}"#, r#"{"mail":"[redacted]"}"#),
            ("ada&#64;example.org", "[redacted]"),
            ("ada&#x40;example.org", "[redacted]"),
            ("mail=ada%2540example.org&page=1", "mail=[redacted]&page=1"),
            ("ada@xn--exmple-cua.org", "[redacted]"),
            ("アダ＠例え。テスト", "[redacted]"),
        ] {
            assert_eq!(shown(TextSet::Emails, text), expected);
        }
        for text in [
            "a@b and @c.de and d@",
            "lodash@4.17.21 and /%40scope/pkg",
            "ada@10.0.0.1",
            "100%40.5 java.lang.Object@1b6d3586",
            "clone git@github.com:acme/shop.git",
            "no method Foo@7a81197d.bar in acme.Foo@7a81197d.bar",
        ] {
            assert_eq!(shown(TextSet::Emails, text), text);
        }
        let long = "%40".repeat(10_000);
        assert_eq!(shown(TextSet::Emails, &long), long);
        let cut = format!("{}@example.org", "é".repeat(LOCAL_BYTES));
        assert!(shown(TextSet::Emails, &cut).ends_with(REDACTED));
    }

    #[test]
    fn tokens_are_recognized_by_their_form() {
        let jwt = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZGEifQ.sig_-nature";
        let key = format!("AKIA{}", "Q7".repeat(8));
        let google = format!("AIza{}", "x".repeat(35));
        for (text, expected) in [
            (format!("token {jwt} expired"), "token [redacted] expired".to_owned()),
            (
                "Authorization: Bearer abcDEF123456, next".into(),
                "Authorization: Bearer [redacted], next".into(),
            ),
            (
                // ada:hunter2
                "authorization: Basic YWRhOmh1bnRlcjI= failed".into(),
                "authorization: Basic [redacted] failed".into(),
            ),
            (format!("key {key}: denied"), "key [redacted]: denied".into()),
            (
                format!("aws_secret_access_key = {}", "a/B+".repeat(10)),
                "aws_secret_access_key = [redacted]".into(),
            ),
            (format!("at {google}"), "at [redacted]".into()),
            (format!("ghp_{}", "a1".repeat(18)), "[redacted]".into()),
            (format!("glpat-{}", "a1".repeat(10)), "[redacted]".into()),
            (format!("xapp-{}", "1-".repeat(10)), "[redacted]".into()),
            (format!("whsec_{}", "a1".repeat(16)), "[redacted]".into()),
            (format!("npm_{}", "a1".repeat(18)), "[redacted]".into()),
            (format!("SG.{}.{}", "a1".repeat(11), "b2".repeat(20)), "[redacted]".into()),
        ] {
            assert_eq!(shown(TextSet::Tokens, &text), expected);
        }
        for text in ["the bearer is unknown in Asia", "basic authentication failed", "a basic type"] {
            assert_eq!(shown(TextSet::Tokens, text), text);
        }
    }

    #[test]
    fn passwords_are_recognized_by_their_names() {
        for (text, expected) in [
            ("host=h password=hunter2 user=u", "host=h password=[redacted] user=u"),
            ("jdbc:x://h/d?user=u&password=hunter2&a=b", "jdbc:x://h/d?user=u&password=[redacted]&a=b"),
            ("Server=h;Pwd=hunter2;Db=d", "Server=h;Pwd=[redacted];Db=d"),
            ("db_password = 'hunter 2'", "db_password = '[redacted]'"),
            (r#"{"password":"hun\"ter2","a":1}"#, r#"{"password":"[redacted]","a":1}"#),
            (r#"{"access_token": "hunter"}"#, r#"{"access_token": "[redacted]"}"#),
            (r#"{\"password\":\"hunter2\",\"a\":1}"#, r#"{\"password\":\"[redacted]\",\"a\":1}"#),
            ("client-secret: hunter2", "client-secret: [redacted]"),
            ("x-api-key: hunter2, b: 1", "x-api-key: [redacted], b: 1"),
            ("token=hunter", "token=[redacted]"),
            ("password= hunter2", "password= [redacted]"),
            ("Authorization: abc", "Authorization: [redacted]"),
            (r#"{"authorization":"abc","a":1}"#, r#"{"authorization":"[redacted]","a":1}"#),
            ("authToken: x", "authToken: [redacted]"),
            ("AccountKey=aB+/c==;EndpointSuffix=core", "AccountKey=[redacted];EndpointSuffix=core"),
            (
                "SharedAccessKeyName=root;SharedAccessKey=aB=",
                "SharedAccessKeyName=root;SharedAccessKey=[redacted]",
            ),
            ("GET /b?se=1&sig=a%2Bb&sv=2", "GET /b?se=1&sig=[redacted]&sv=2"),
            ("GET /b?X-Amz-Signature=4f1c&a=b", "GET /b?X-Amz-Signature=[redacted]&a=b"),
            ("Cookie: session=4f1c; theme=dark\nb", "Cookie: [redacted]\nb"),
            ("Set-Cookie: session=4f1c; Path=/", "Set-Cookie: [redacted]"),
            ("mysql --password hunter2 -h db", "mysql --password [redacted] -h db"),
            ("<db:password>hunter</db:password>", "<db:password>[redacted]</db:password>"),
            ("clone https://x0123456789abcdef@h/r.git", "clone https://[redacted]@h/r.git"),
            ("pass=hunter user=u db_pass=hunter", "pass=[redacted] user=u db_pass=[redacted]"),
            ("cannot reach postgres://u:hunter2@h/d", "cannot reach postgres://u:[redacted]@h/d"),
            (
                "a\n-----BEGIN RSA PRIVATE KEY-----\nMII\nE\n-----END RSA PRIVATE KEY-----\nb",
                "a\n[redacted]\nb",
            ),
            (r"a -----BEGIN PRIVATE KEY-----\nMIIE", "a [redacted]"),
        ] {
            assert_eq!(shown(TextSet::Tokens, text), expected);
            assert_eq!(shown(TextSet::Tokens, expected), expected, "once");
        }
        for text in [
            "invalid password: too short",
            "Unexpected token: } at 3",
            "the secret of this queue is missing",
            "resume token={_data: 1}",
            "token= end",
            "the option --password is required",
            "Cookie: missing",
            "killed with sig=11",
            "https://ada@host/a",
            "GET http://h:8080/a",
        ] {
            assert_eq!(shown(TextSet::Tokens, text), text);
        }
    }

    #[test]
    fn account_numbers_are_recognized_by_their_check_digits() {
        for (text, expected) in [
            ("iban DE89370400440532013000 is unknown", "iban [redacted] is unknown"),
            ("DE89 3704 0044 0532 0130 00, next", "[redacted], next"),
            ("gb82 west 1234 5698 7654 32", "[redacted]"),
            ("NO93-8601-1117-947.", "[redacted]."),
            ("(DE89\u{a0}3704\u{a0}0044\u{a0}0532\u{a0}0130\u{a0}00)", "([redacted])"),
        ] {
            assert_eq!(shown(TextSet::Ibans, text), expected);
        }
        for text in [
            "DE88370400440532013000",
            "DE8937040044053201300",
            "xDE89370400440532013000",
            "DE893704004405320130001",
            "XX89370400440532013000",
            "de305d54-75b4-431b-adb2-eb6b9e546014",
            "be71096123456769abcdefabcdefabcd",
        ] {
            assert_eq!(shown(TextSet::Ibans, text), text);
        }
    }
}
