//! Redacts secrets in the text of a file before it is kept for messages.

use crate::source::Span;

/// Endings of key names that hold a secret, without separators.
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

/// Returns whether a key holds a secret, judged by its name: `sasl.password`, `API_TOKEN`.
pub(crate) fn is_secret_name(name: &str) -> bool {
    let letters: String =
        name.chars().filter(|c| c.is_alphanumeric()).map(|c| c.to_ascii_lowercase()).collect();
    ENDINGS.iter().any(|ending| letters.ends_with(ending)) || letters.contains("jaas")
}

/// Returns the text with the given spans, and everything that looks like a secret, redacted. Offsets and lines do not change.
pub(crate) fn redacted(text: &str, spans: &[Span]) -> String {
    let mut bytes = text.as_bytes().to_vec();
    let named = secret_values(text);
    let passwords = url_passwords(text);
    for span in spans.iter().chain(&named).chain(&passwords) {
        let Some(value) = text.get(span.start..span.end) else { continue };
        mask(&mut bytes[span.start..span.end], value);
    }
    String::from_utf8(bytes).expect("whole characters were replaced by stars")
}

/// Masks a value. The name of a variable is not secret and stays visible; its default is masked.
fn mask(bytes: &mut [u8], value: &str) {
    let mut from = 0;
    while from < value.len() {
        let Some(start) = value[from..].find("${").map(|at| from + at) else {
            stars(&mut bytes[from..]);
            break;
        };
        stars(&mut bytes[from..start]);
        if value[from..start].ends_with('$') {
            // `$${` is an escape, not a variable.
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

/// Finds the values of keys with a secret name, line by line: this also works for broken YAML.
fn secret_values(text: &str) -> Vec<Span> {
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

/// Returns the last word of the text, without quotes.
fn word_before(text: &str) -> &str {
    let text = text.trim_end().trim_end_matches(['"', '\'']);
    let start = text.rfind(|c: char| !(c.is_alphanumeric() || "._-".contains(c)));
    &text[start.map_or(0, |at| at + text[at..].chars().next().map_or(1, char::len_utf8))..]
}

/// Returns the range of the value that starts here: up to the end of the line, or of the enclosing braces.
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

/// Returns the end of a value inside of braces: a comma, or a brace that does not close a variable.
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

/// Finds the passwords in `scheme://user:password@host`.
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
    fn secrets_are_redacted_and_offsets_stay() {
        let table = [
            ("secret: hunter2\nb: 1", "secret: *******\nb: 1"),
            ("{ sasl.password: hunter2, x: y }", "{ sasl.password: *******, x: y }"),
            ("API_TOKEN: \"hunter 2\"  # t", "API_TOKEN: \"****** *\"  # t"),
            ("secret: ${HOOK}", "secret: ${HOOK}"),
            ("secret: hunter2$", "secret: ********"),
            ("secret: a$${b}", "secret: ******"),
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
            let redacted = redacted(text, &[]);
            assert_eq!(redacted, expected);
            assert_eq!(redacted.len(), text.len());
        }
        assert_eq!(redacted("a: xyz", &[Span::new(3, 6)]), "a: ***");
    }
}
