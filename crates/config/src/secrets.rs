//! Paints over what must not be shown: the text of a file is kept for messages without its secrets.

use crate::source::Span;

/// How the name of a key ends that holds a secret, without what separates words.
const ENDINGS: [&str; 14] = [
    "password",
    "passwd",
    "pwd",
    "passphrase",
    "secret",
    "token",
    "credential",
    "credentials",
    "authorization",
    "apikey",
    "accesskey",
    "privatekey",
    "secretkey",
    "keypem",
];

/// Whether a key by this name holds a secret, as far as its name tells: `sasl.password`, `API_TOKEN`.
pub(crate) fn is_secret_name(name: &str) -> bool {
    let letters: String =
        name.chars().filter(|c| c.is_alphanumeric()).map(|c| c.to_ascii_lowercase()).collect();
    ENDINGS.iter().any(|ending| letters.ends_with(ending)) || letters.contains("jaas")
}

/// The text with the given places, and whatever looks like a secret, painted over. Offsets and lines stay what they are.
pub(crate) fn painted(text: &str, places: &[Span]) -> String {
    let mut bytes = text.as_bytes().to_vec();
    let named = named_values(text);
    let passwords = url_passwords(text);
    for span in places.iter().chain(&named).chain(&passwords) {
        let Some(value) = text.get(span.start..span.end) else { continue };
        paint(&mut bytes[span.start..span.end], value);
    }
    String::from_utf8(bytes).expect("whole characters were replaced by stars")
}

/// Paints over a value. The name of a variable is no secret, and helps; its default may be one.
fn paint(bytes: &mut [u8], value: &str) {
    let mut from = 0;
    while from < value.len() {
        let start = value[from..].find("${").map_or(value.len(), |at| from + at);
        stars(&mut bytes[from..start]);
        if value[from..start].ends_with('$') {
            // `$${` is no variable.
            stars(&mut bytes[start..start + 2]);
            from = start + 2;
            continue;
        }
        let end = value[start..].find('}').map_or(value.len(), |at| start + at);
        if let Some(default) = value[start..end].find(":-") {
            stars(&mut bytes[start + default + 2..end]);
        }
        from = end + 1;
    }
}

fn stars(bytes: &mut [u8]) {
    for byte in bytes {
        if !matches!(*byte, b'\n' | b'\r' | b'"' | b'\'' | b' ') {
            *byte = b'*';
        }
    }
}

/// Values of keys whose name says that they are secret, found line by line: this works where the YAML is broken, too.
fn named_values(text: &str) -> Vec<Span> {
    let mut found = Vec::new();
    let mut line_start = 0;
    for line in text.split_inclusive('\n') {
        let content = line.trim_end_matches(['\n', '\r']);
        let mut from = 0;
        while let Some(colon) = content[from..].find(':').map(|at| from + at) {
            from = colon + 1;
            if is_secret_name(word_before(&content[..colon])) {
                let (start, end) = value_after(content, colon + 1);
                found.push(Span::new(line_start + start, line_start + end));
                from = end.max(from);
            }
        }
        line_start += line.len();
    }
    found
}

/// The word that ends here, without quotes.
fn word_before(text: &str) -> &str {
    let text = text.trim_end().trim_end_matches(['"', '\'']);
    let start = text.rfind(|c: char| !(c.is_alphanumeric() || "._-".contains(c)));
    &text[start.map_or(0, |at| at + text[at..].chars().next().map_or(1, char::len_utf8))..]
}

/// The value that begins here: up to the end of the line, or of the place inside of brackets.
fn value_after(line: &str, from: usize) -> (usize, usize) {
    let rest = &line[from..];
    let start = from + rest.len() - rest.trim_start().len();
    let value = &line[start..];
    let in_braces = line[..start].replace("${", "").contains('{');
    let end = match value.chars().next() {
        Some(quote @ ('"' | '\'')) => value[1..].find(quote).map_or(value.len(), |at| at + 2),
        _ if in_braces => end_in_braces(value),
        _ => value.find(" #").unwrap_or(value.len()),
    };
    (start, start + end)
}

/// Where a value ends inside of braces: at a comma or a brace that is not that of a variable.
fn end_in_braces(value: &str) -> usize {
    let mut from = 0;
    while let Some(at) = value[from..].find([',', '}', '$']).map(|at| from + at) {
        if !value[at..].starts_with("${") {
            if !value[at..].starts_with('$') {
                return at;
            }
            from = at + 1;
            continue;
        }
        from = value[at..].find('}').map_or(value.len(), |end| at + end + 1);
    }
    value.len()
}

/// The password in `scheme://user:password@host`.
fn url_passwords(text: &str) -> Vec<Span> {
    let mut found = Vec::new();
    for (at, separator) in text.match_indices("://") {
        let from = at + separator.len();
        let rest = &text[from..];
        let authority = &rest[..rest.find(['/', ' ', '"', '\'', '\n', '\r', '?', ',']).unwrap_or(rest.len())];
        let Some(user_info) = authority.rfind('@').map(|end| &authority[..end]) else { continue };
        let Some(colon) = user_info.find(':') else { continue };
        found.push(Span::new(from + colon + 1, from + user_info.len()));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_painted_over_and_nothing_moves() {
        let table = [
            ("secret: hunter2\nb: 1", "secret: *******\nb: 1"),
            ("{ sasl.password: hunter2, x: y }", "{ sasl.password: *******, x: y }"),
            ("API_TOKEN: \"hunter 2\"  # t", "API_TOKEN: \"****** *\"  # t"),
            ("secret: ${HOOK}", "secret: ${HOOK}"),
            ("store: postgres://u:hunter2@h/db", "store: postgres://u:*******@h/db"),
            ("store: postgres://u:${PW}@h/db", "store: postgres://u:${PW}@h/db"),
            ("Authorization: Bearer abc", "Authorization: ****** ***"),
            ("secret: \"unclosed", "secret: \"********"),
            ("token: é", "token: **"),
            ("tokens-file: /etc/t", "tokens-file: /etc/t"),
            ("secret: \"a ${B} c\"", "secret: \"* ${B} *\""),
            ("secret: ${B:-hunter2}", "secret: ${B:-*******}"),
            ("secret: ${B}hunter2 # why", "secret: ${B}******* # why"),
            ("{ secret: $x${B}y, c: ${D} }", "{ secret: **${B}*, c: ${D} }"),
            ("X-Api-Key: abc", "X-Api-Key: ***"),
            ("secret: $${B}", "secret: *****"),
            ("per-key: 100", "per-key: 100"),
            ("url: http://127.0.0.1:8080/a@b", "url: http://127.0.0.1:8080/a@b"),
        ];
        for (text, expected) in table {
            let painted = painted(text, &[]);
            assert_eq!(painted, expected);
            assert_eq!(painted.len(), text.len());
        }
        assert_eq!(painted("a: xyz", &[Span::new(3, 6)]), "a: ***");
    }
}
