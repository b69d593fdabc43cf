//! Redacts secrets in the text of a file, before the text is kept for messages.

use std::ops::Range;

use lazaret_core::redaction::known_tokens;

use crate::source::Span;

/// Endings of key names that mark a secret, compared without separators.
const ENDINGS: [&str; 17] = [
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
    "keystorekey",
    "cookie",
    "signature",
];

/// Last words of key names that mark a secret. As endings they would match other words.
const LAST_WORDS: [&str; 4] = ["pass", "pw", "jwt", "sas"];

/// Parts of names of properties that hold several values, including secrets.
const PARTS: [&str; 2] = ["jaas", "oauthbearerconfig"];

/// Returns `true` if the name of a key marks its value as a secret, such as `sasl.password` or `API_TOKEN`.
pub(crate) fn is_secret_name(name: &str) -> bool {
    let letters: String =
        name.chars().filter(|c| c.is_alphanumeric()).map(|c| c.to_ascii_lowercase()).collect();
    let last_word = name.rsplit(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
    ENDINGS.iter().any(|ending| letters.ends_with(ending))
        || PARTS.iter().any(|part| letters.contains(part))
        || LAST_WORDS.iter().any(|word| last_word.eq_ignore_ascii_case(word))
}

/// Returns `true` if an argument of a program is an option whose value, the next argument, is a secret,
/// such as `--token`.
pub(crate) fn is_secret_option(argument: &str) -> bool {
    argument.starts_with('-')
        && !argument.contains('=')
        && (is_secret_name(argument) || is_auth_option(argument))
}

/// Returns `true` for the option `--auth`. A key with that name is not a secret: it is a section of the
/// configuration.
fn is_auth_option(name: &str) -> bool {
    name.starts_with('-') && name.trim_start_matches('-').eq_ignore_ascii_case("auth")
}

/// The replacement for a secret. Its length does not depend on the secret.
pub(crate) const MASK: &str = "***";

/// A text with its secrets replaced.
#[derive(Debug, Default)]
pub(crate) struct Redacted {
    pub(crate) text: String,
    /// The ranges of the original text that were replaced by [`MASK`], in order.
    pub(crate) masked: Vec<Span>,
}

/// Returns the text with the given spans and everything that looks like a secret redacted. The number of
/// lines does not change.
pub(crate) fn redacted(text: &str, spans: &[Span]) -> String {
    redact(text, spans).text
}

/// Redacts like [`redacted`], and also returns the replaced ranges.
pub(crate) fn redact(text: &str, spans: &[Span]) -> Redacted {
    let mut ranges = Vec::new();
    let found = [
        secret_values(text),
        url_secrets(text),
        assigned_secrets(text),
        option_values(text),
        secret_defaults(text),
        known_tokens(text).into_iter().map(|Range { start, end }| Span::new(start, end)).collect(),
    ];
    for span in spans.iter().copied().chain(found.into_iter().flatten()) {
        if let Some(value) = text.get(span.start..span.end) {
            mask(&mut ranges, value, span.start);
        }
    }
    ranges.sort_unstable();
    let mut masked: Vec<Span> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match masked.last_mut() {
            Some(before) if range.start <= before.end => before.end = before.end.max(range.end),
            _ => masked.push(range),
        }
    }
    let (mut out, mut from) = (String::with_capacity(text.len()), 0);
    for Span { start, end } in &masked {
        out.push_str(&text[from..*start]);
        out.push_str(MASK);
        from = *end;
    }
    out.push_str(&text[from..]);
    Redacted { text: out, masked }
}

/// Adds the ranges to mask in a value. Defaults are masked. The name of a variable or a file is not
/// secret and stays visible.
fn mask(ranges: &mut Vec<Span>, value: &str, at: usize) {
    let mut from = 0;
    while from < value.len() {
        let Some(start) = value[from..].find("${").map(|found| from + found) else {
            mask_lines(ranges, &value[from..], at + from);
            break;
        };
        mask_lines(ranges, &value[from..start], at + from);
        if value[from..start].ends_with('$') {
            // `$${` is an escape, not a variable.
            mask_lines(ranges, &value[start..start + 2], at + start);
            from = start + 2;
            continue;
        }
        let end = value[start..].find('}').map_or(value.len(), |found| start + found);
        if let Some(default) = value[start..end].find(":-") {
            mask_lines(ranges, &value[start + default + 2..end], at + start + default + 2);
        }
        from = (end + 1).min(value.len());
    }
}

/// Adds the content of each line, without the surrounding quotes and spaces.
fn mask_lines(ranges: &mut Vec<Span>, text: &str, at: usize) {
    let is_around = |c: char| c.is_whitespace() || c == '"' || c == '\'';
    let mut line_start = at;
    for line in text.split_inclusive('\n') {
        let content = line.trim_matches(is_around);
        if !content.is_empty() {
            let start = line_start + line.len() - line.trim_start_matches(is_around).len();
            ranges.push(Span::new(start, start + content.len()));
        }
        line_start += line.len();
    }
}

/// Finds the values of keys with a secret name. It searches line by line, so that it also works for
/// broken YAML.
fn secret_values(text: &str) -> Vec<Span> {
    let mut found = Vec::new();
    let mut line_start = 0;
    for line in text.split_inclusive('\n') {
        let content = line.trim_end_matches(['\n', '\r']);
        let mut from = 0;
        while let Some(colon) = content[from..].find(':').map(|at| from + at) {
            from = colon + 1;
            let word = word_before(&content[..colon]);
            // A default in `${NAME:-default}` has its own rules.
            let is_variable =
                content[..colon].strip_suffix(word).is_some_and(|before| before.ends_with("${"));
            if is_secret_name(word) && !is_variable {
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

/// Returns the range of the value that starts here. It extends to the end of the line, or of the
/// enclosing braces.
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

/// Returns the end of a value inside braces: a comma, or a brace that does not close a variable.
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

/// Finds the values of `name=value` with a secret name, in arguments of programs and in database strings
/// such as `host=… password=…`.
fn assigned_secrets(text: &str) -> Vec<Span> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices('=') {
        let from = at + 1;
        // `==` is a comparison.
        let name = word_before(&text[..at]);
        if !text[from..].starts_with('=') && (is_secret_name(name) || is_auth_option(name)) {
            let start = from + text[from..].len() - text[from..].trim_start_matches(' ').len();
            found.push(Span::new(start, start + assigned_length(&text[start..])));
        }
    }
    found
}

/// Returns the length of the value at the beginning of a text. The value is quoted, or ends at a space,
/// a `&`, or a character that ends it in YAML.
fn assigned_length(text: &str) -> usize {
    let quote = text.chars().next().filter(|c| matches!(c, '"' | '\''));
    let (mut in_variable, mut is_escaped) = (false, false);
    for (at, c) in text.char_indices().skip(usize::from(quote.is_some())) {
        let next = text[at + c.len_utf8()..].chars().next();
        let is_end = match (c, quote) {
            ('\n' | '\r', _) => true,
            _ if is_escaped => false,
            (_, Some(quote)) => c == quote,
            ('}', None) if in_variable => false,
            ('&', None) => true,
            (c, None) if c.is_whitespace() => true,
            (c, None) => {
                ",;}])\"'".contains(c)
                    && next.is_none_or(|next| next.is_whitespace() || ",}])\"'".contains(next))
            }
        };
        if is_end {
            return at;
        }
        is_escaped = c == '\\' && !is_escaped;
        in_variable = (in_variable && c != '}') || (c == '$' && next == Some('{'));
    }
    text.len()
}

/// Finds the values after options with a secret name, such as `--token VALUE`, in a list of arguments or
/// in one text.
fn option_values(text: &str) -> Vec<Span> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("--") {
        if text[..at].ends_with('-') {
            continue;
        }
        let length = text[at..].find(|c: char| !(c.is_alphanumeric() || "-_.".contains(c)));
        let Some(end) = length.map(|length| at + length) else { continue };
        if !is_secret_option(&text[at..end]) {
            continue;
        }
        // Skips the characters between two items of a list.
        let mut rest = text[end..].trim_start_matches([' ', '\t', '\r', '\n', '"', '\'', ',']);
        rest = rest.strip_prefix("- ").unwrap_or(rest).trim_start_matches([' ', '"', '\'']);
        if rest.len() < text.len() - end && !rest.starts_with(['-', '[', ']', '{', '}', '#']) {
            let start = text.len() - rest.len();
            found.push(Span::new(start, start + assigned_length(rest)));
        }
    }
    found
}

/// Finds the defaults of variables with a secret name, such as `${API_TOKEN:-value}`.
fn secret_defaults(text: &str) -> Vec<Span> {
    let mut found = Vec::new();
    for (at, opening) in text.match_indices("${") {
        let from = at + opening.len();
        let end = text[from..].find(['}', '\n']).map_or(text.len(), |length| from + length);
        if let Some((name, default)) = text[from..end].split_once(":-")
            && is_secret_name(name)
        {
            found.push(Span::new(end - default.len(), end));
        }
    }
    found
}

/// Schemes of databases and brokers. In these URLs, `@` only ends the credentials. Everything before the
/// last `@` is treated as credentials, because a password may contain characters that should have been
/// percent-encoded.
const DATABASES: [&str; 9] =
    ["postgres", "postgresql", "mongodb", "mongodb+srv", "amqp", "amqps", "redis", "rediss", "nats"];

/// Names of URL parameters that hold a secret, in addition to the names that mark secret keys.
const PARAMETERS: [&str; 6] = ["key", "sig", "auth", "code", "assertion", "authMechanismProperties"];

/// Finds the passwords in `scheme://user:password@host`, and the secrets in `?name=value&name=value`.
fn url_secrets(text: &str) -> Vec<Span> {
    let mut found = Vec::new();
    for (at, separator) in text.match_indices("://") {
        let from = at + separator.len();
        let not_in_scheme = |c: char| !(c.is_ascii_alphanumeric() || "+-.".contains(c));
        let scheme = text[..at].rsplit(not_in_scheme).next().unwrap_or_default();
        let is_database = DATABASES.iter().any(|known| known.eq_ignore_ascii_case(scheme));
        let url = &text[from..from + url_length(&text[from..], is_database)];
        let credentials = if is_database { url.rfind('@') } else { credentials_in_authority(url) };
        if let Some(end) = credentials
            && let Some(colon) = url[..end].find(':')
        {
            found.push(Span::new(from + colon + 1, from + end));
        } else if let Some(end) = credentials.filter(|end| is_database && url[..*end].contains('@')) {
            // In `user@rest@host`, the password cannot be told apart.
            found.push(Span::new(from, from + end));
        }
        found.extend(
            secret_parameters(url, credentials.unwrap_or(0), is_database)
                .map(|Span { start, end }| Span::new(from + start, from + end)),
        );
    }
    found
}

/// Returns the end of the credentials of a URL whose path may contain an `@`.
fn credentials_in_authority(url: &str) -> Option<usize> {
    let authority = &url[..url.find(['/', '?', '#', ',']).unwrap_or(url.len())];
    if let Some(end) = authority.rfind('@') {
        return Some(end);
    }
    // A slash in the password ends the authority early. The text after the colon is then not a port.
    let (_, port) = authority.split_once(':')?;
    let is_port = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let is_address = authority.starts_with('[') || is_port;
    url.rfind('@').filter(|_| !is_address)
}

/// Returns the length of the URL at the beginning of a text. A database URL may contain spaces by mistake.
fn url_length(text: &str, is_database: bool) -> usize {
    let mut previous_quote = None;
    for (at, c) in text.char_indices() {
        if let Some(quote_at) = previous_quote.take()
            && (c.is_whitespace() || ",}])#:".contains(c))
        {
            return quote_at;
        }
        match c {
            '\n' | '\r' => return at,
            c if c.is_whitespace() && !is_database => return at,
            '"' | '\'' | '`' => previous_quote = Some(at),
            _ => {}
        }
    }
    previous_quote.unwrap_or(text.len())
}

/// Finds the values of secret parameters in the query and the fragment of a URL, after this offset. A
/// database URL has no fragment, so a `#` belongs to a value that is not percent-encoded.
fn secret_parameters(url: &str, after: usize, is_database: bool) -> impl Iterator<Item = Span> {
    let start = url[after..].find(['?', '#']).map_or(url.len(), |at| after + at + 1);
    let end = url[start..].find([' ', '"', '\'']).map_or(url.len(), |at| start + at);
    let mut from = start;
    let separates = move |c: char| c == '&' || (c == '#' && !is_database);
    url[start..end].split(separates).filter_map(move |parameter| {
        let at = from;
        from += parameter.len() + 1;
        let (name, value) = parameter.split_once('=')?;
        let is_secret =
            is_secret_name(name) || PARAMETERS.iter().any(|known| known.eq_ignore_ascii_case(name));
        is_secret.then(|| Span::new(at + name.len() + 1, at + name.len() + 1 + value.len()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_replaced_by_a_mask_of_one_length() {
        let table = [
            ("secret: hunter2\nb: 1", "secret: ***\nb: 1"),
            ("secret: a-much-longer-secret\nb: 1", "secret: ***\nb: 1"),
            ("{ sasl.password: hunter2, x: y }", "{ sasl.password: ***, x: y }"),
            ("API_TOKEN: \"hunter 2\"  # t", "API_TOKEN: \"***\"  # t"),
            ("secret: ${HOOK}", "secret: ${HOOK}"),
            ("secret: ${file:/run/hook}", "secret: ${file:/run/hook}"),
            ("secret: hunter2$", "secret: ***"),
            ("secret: a$${b}", "secret: ***"),
            ("store: postgres://u:hunter2@h/db", "store: postgres://u:***@h/db"),
            ("store: postgres://u:${PW}@h/db", "store: postgres://u:${PW}@h/db"),
            ("Authorization: Bearer abc", "Authorization: ***"),
            ("secret: \"unclosed", "secret: \"***"),
            ("token: é", "token: ***"),
            ("tokens-file: /etc/t", "tokens-file: /etc/t"),
            ("secret: \"a ${B} c\"", "secret: \"*** ${B} ***\""),
            ("secret: ${B:-hunter2}", "secret: ${B:-***}"),
            ("secret: ${B}hunter2 # why", "secret: ${B}*** # why"),
            ("{ secret: $x${B}y, c: ${D} }", "{ secret: ***${B}***, c: ${D} }"),
            ("X-Api-Key: abc", "X-Api-Key: ***"),
            ("secret: $${B}", "secret: ***"),
            ("per-key: 100", "per-key: 100"),
            ("url: http://127.0.0.1:8080/a@b", "url: http://127.0.0.1:8080/a@b"),
            ("url: http://[::1]:8080/a@b", "url: http://[::1]:8080/a@b"),
        ];
        for (text, expected) in table {
            assert_eq!(redacted(text, &[]), expected);
        }
        assert_eq!(redacted("a: xyz", &[Span::new(3, 6)]), "a: ***");
        let found = redact("secret: hunter2\nb: 1", &[]);
        assert_eq!(found.masked, [Span::new(8, 15)]);
    }

    #[test]
    fn no_part_of_a_password_with_special_characters_is_shown() {
        for special in ["@", "/", "?", "#", ":", ",", "%", " ", "'", "@:", "[", "]", "&", "é"] {
            let password = format!("hun{special}ter2");
            for text in [
                format!("store: postgres://u:{password}@127.0.0.1:5432/db"),
                format!("store: \"mongodb://u:{password}@a:1,b:2/db?replicaSet=rs0\""),
                format!(
                    "source: {{ postgres-outbox: {{ dsn: \"postgresql://u:{password}@h/db\", table: outbox }} }}"
                ),
                format!("cannot read postgres://u:{password}@h/db"),
            ] {
                let shown = redacted(&text, &[]);
                assert!(!shown.contains("hun") && !shown.contains("ter2"), "{text}: {shown}");
                assert!(shown.contains("u:***@"), "{text}: {shown}");
            }
        }
        for password in ["hun/ter2", "hun@ter2", "hun?ter2", "hun#ter2"] {
            let shown = redacted(&format!("url: https://u:{password}@h/a"), &[]);
            assert_eq!(shown, "url: https://u:***@h/a");
        }
    }

    #[test]
    fn secrets_in_the_query_of_a_url_are_masked() {
        for (text, expected) in [
            ("url: https://h/a?token=hunter2&b=1", "url: https://h/a?token=***&b=1"),
            ("url: \"https://h/?a=1&api_key=hunter2\"", "url: \"https://h/?a=1&api_key=***\""),
            ("url: https://h/?sig=hunter2#x", "url: https://h/?sig=***#x"),
            ("url: https://h/?key=${KEY}&code=x", "url: https://h/?key=${KEY}&code=***"),
            (
                "store: postgres://h/db?password=hunter2&schema=a",
                "store: postgres://h/db?password=***&schema=a",
            ),
            (
                "store: postgres://u:p@h/db?sslpassword=hunter2",
                "store: postgres://u:***@h/db?sslpassword=***",
            ),
            ("url: https://h/?page=2&monkey=3", "url: https://h/?page=2&monkey=3"),
            ("url: https://h/a?x=1#access_token=hunter2", "url: https://h/a?x=1#access_token=***"),
            ("url: https://h/a?X-Amz-Signature=hunter2&b=1", "url: https://h/a?X-Amz-Signature=***&b=1"),
            (
                "uri: mongodb://h/?w=1&authMechanismProperties=AWS_SESSION_TOKEN:hunter2",
                "uri: mongodb://h/?w=1&authMechanismProperties=***",
            ),
            (
                "store: postgres://h/db?password=hun#ter2&schema=a",
                "store: postgres://h/db?password=***&schema=a",
            ),
        ] {
            assert_eq!(redacted(text, &[]), expected);
        }
    }

    #[test]
    fn secrets_in_arguments_defaults_and_assignments_are_masked() {
        for (text, expected) in [
            ("dsn: host=h password=hunter2 user=u", "dsn: host=h password=*** user=u"),
            (r"dsn: host=h password='hun \'ter2' user=u", "dsn: host=h password='***' user=u"),
            ("dsn: host=h password = hun,ter2 user=u", "dsn: host=h password = *** user=u"),
            ("program: [./run, --password=hunter2]", "program: [./run, --password=***]"),
            ("program: [./run, \"--password=hunter2\", b]", "program: [./run, \"--password=***\", b]"),
            ("program: [./run, --token, hunter2, b]", "program: [./run, --token, ***, b]"),
            ("program: [\"./run\", \"--token\", \"hunter2\"]", "program: [\"./run\", \"--token\", \"***\"]"),
            ("  - --api-key\n  - hunter2\n  - b", "  - --api-key\n  - ***\n  - b"),
            ("program: [sh, -c, './run --secret hunter2 b']", "program: [sh, -c, './run --secret *** b']"),
            ("program: [./run, --token, \"${T}\"]", "program: [./run, --token, \"${T}\"]"),
            ("program: [./run, --token]", "program: [./run, --token]"),
            ("program: [./run, --auth=hunter2, b]", "program: [./run, --auth=***, b]"),
            ("program: [./run, --auth, hunter2, b]", "program: [./run, --auth, ***, b]"),
            ("program: [./run, --authors=a, --no-auth, b]", "program: [./run, --authors=a, --no-auth, b]"),
            ("program: [./run, ghp_0123456789abcdefghijABCDEFGHIJ012345, b]", "program: [./run, ***, b]"),
            (
                "program: [./run, --token-file, /etc/t, --token, --b]",
                "program: [./run, --token-file, /etc/t, --token, --b]",
            ),
            ("env: { DB_PASS: hunter2, PATH: /bin }", "env: { DB_PASS: ***, PATH: /bin }"),
            ("headers: { cookie: a=hunter2 }", "headers: { cookie: *** }"),
            ("url: https://h/${API_TOKEN:-hunter2}/a", "url: https://h/${API_TOKEN:-***}/a"),
            ("host: ${HOST:-localhost}", "host: ${HOST:-localhost}"),
            ("sasl.oauthbearer.config: principal=a", "sasl.oauthbearer.config: ***"),
            ("when: token == 1", "when: token == 1"),
            ("compass: north", "compass: north"),
        ] {
            assert_eq!(redacted(text, &[]), expected);
        }
        for name in
            ["sasl.password", "ssl.key.password", "sasl.jaas.config", "ssl.key.pem", "Set-Cookie", "smtp-pw"]
        {
            assert!(is_secret_name(name), "{name}");
        }
        for name in ["bypass", "group.id", "ssl.ca.pem", "ssl.certificate.pem", "tokens-file", "per-key"] {
            assert!(!is_secret_name(name), "{name}");
        }
    }
}
