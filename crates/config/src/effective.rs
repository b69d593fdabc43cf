//! Renders the effective configuration, with the origin of each value.

use std::fmt::Write as _;

use crate::model::{self, Config};
use crate::secrets;
use crate::source::{SourceText, Span};
use crate::value::{Field, Fields, Origin, Value};

/// The column where comments start.
const COMMENT_COLUMN: usize = 56;

impl Config {
    /// Renders the effective configuration of a consumer as YAML, with secrets redacted. A comment gives
    /// the origin of each value. Returns `None` for an unknown consumer.
    ///
    /// ```
    /// let text = "
    /// defaults: { retry: { max-attempts: 4 } }
    /// consumers:
    ///   orders:
    ///     source: { inbox: {} }
    ///     handler: { command: { program: [./handle] } }
    /// ";
    /// let config = lazaret_config::check("f", text.as_bytes(), &lazaret_config::NoEnv).config.unwrap();
    /// let shown = config.effective("orders").unwrap();
    /// assert!(shown.lines().any(|line| line.contains("max-attempts: 4") && line.ends_with("# defaults, line 2")));
    /// assert!(shown.lines().any(|line| line.contains("hold: 5s") && line.ends_with("# built-in")));
    /// ```
    pub fn effective(&self, consumer: &str) -> Option<String> {
        let read = self.document.consumers.iter().find(|read| read.name == consumer)?;
        let mut out = Writer::new(&self.document.source);
        let _ = writeln!(out.out, "{}:", quoted(consumer));
        if let Some(retry) = read.fields.section("retry") {
            out.replaced = model::replaced(retry);
        }
        out.fields(&read.fields, 1);
        Some(out.out)
    }

    /// Returns the origin of a consumer's value by its path, such as `retry.max-attempts`.
    ///
    /// ```
    /// use lazaret_config::Origin;
    /// let text = "
    /// defaults: { retry: { max-attempts: 4 } }
    /// consumers:
    ///   orders:
    ///     source: { inbox: {} }
    ///     handler: { command: { program: [./handle] } }
    /// ";
    /// let config = lazaret_config::check("f", text.as_bytes(), &lazaret_config::NoEnv).config.unwrap();
    /// assert_eq!(config.origin("orders", "retry.max-attempts"), Some(Origin::Defaults));
    /// assert_eq!(config.origin("orders", "retry.jitter"), Some(Origin::BuiltIn));
    /// assert_eq!(config.origin("orders", "retry.unknown"), None);
    /// ```
    pub fn origin(&self, consumer: &str, path: &str) -> Option<Origin> {
        let read = self.document.consumers.iter().find(|read| read.name == consumer)?;
        let (sections, name) = path.rsplit_once('.').unwrap_or(("", path));
        let mut sections = sections.split('.').filter(|section| !section.is_empty());
        let fields = sections.try_fold(&read.fields, |fields, section| fields.section(section))?;
        fields.get(name).map(|field| field.origin)
    }

    /// Renders the effective configuration of the top level.
    pub fn effective_top(&self) -> String {
        let mut out = Writer::new(&self.document.source);
        out.fields(&self.document.top, 0);
        out.out
    }
}

struct Writer<'a> {
    out: String,
    source: &'a SourceText,
    /// The path of the section being written.
    section: Vec<&'static str>,
    /// The keys that other keys replace, each with its replacement. They are written as comments, so
    /// that the output keeps its meaning when it is read.
    replaced: Vec<(&'static [&'static str], String)>,
}

impl<'a> Writer<'a> {
    fn new(source: &'a SourceText) -> Self {
        Self { out: String::new(), source, section: Vec::new(), replaced: Vec::new() }
    }

    fn fields(&mut self, fields: &Fields, depth: usize) {
        for (key, field) in &fields.list {
            self.section.push(key.name);
            match self.replaced.iter().find(|(path, _)| *path == self.section) {
                Some((_, by)) => {
                    let _ = writeln!(self.out, "{}# {}: {by}", "  ".repeat(depth), key.name);
                }
                None => self.field(key.name, field, depth),
            }
            self.section.pop();
        }
        for (name, meaning) in &fields.absent {
            let _ = writeln!(self.out, "{}# {name}: {meaning}", "  ".repeat(depth));
        }
    }

    fn field(&mut self, name: &str, field: &Field, depth: usize) {
        let indent = "  ".repeat(depth);
        match &field.value {
            Value::Section(fields) if !fields.list.is_empty() || !fields.absent.is_empty() => {
                let _ = writeln!(self.out, "{indent}{name}:");
                self.fields(fields, depth + 1);
            }
            Value::Map(entries) if !entries.is_empty() => {
                let _ = writeln!(self.out, "{indent}{name}:");
                for (name, field) in entries {
                    self.field(&quoted(name), field, depth + 1);
                }
            }
            Value::List(items) if items.iter().any(|item| matches!(item.value, Value::Section(_))) => {
                let _ = writeln!(self.out, "{indent}{name}:");
                for item in items {
                    self.line(format!("{indent}  - {}", flow(item)), item);
                }
            }
            _ => self.line(format!("{indent}{name}: {}", flow(field)), field),
        }
    }

    fn line(&mut self, text: String, field: &Field) {
        let line = |span: Span| self.source.position(self.source.shown(span).start).0;
        let place = match (field.origin, field.span) {
            (Origin::BuiltIn, _) | (_, None) => field.origin.to_string(),
            (Origin::Attribute, Some(span)) => format!("attribute {}", self.source.line(line(span))),
            (origin, Some(span)) => format!("{origin}, line {}", line(span)),
        };
        let _ = writeln!(self.out, "{text:<COMMENT_COLUMN$} # {place}");
    }
}

/// Renders a value on one line.
fn flow(field: &Field) -> String {
    match &field.value {
        Value::Section(fields) => {
            // Defaults are omitted.
            let written = fields.list.iter().filter(|(_, field)| field.origin != Origin::BuiltIn);
            let parts: Vec<_> =
                written.map(|(key, field)| format!("{}: {}", key.name, flow(field))).collect();
            braced('{', &parts, '}')
        }
        Value::Map(entries) => {
            let parts: Vec<_> =
                entries.iter().map(|(name, field)| format!("{}: {}", quoted(name), flow(field))).collect();
            braced('{', &parts, '}')
        }
        Value::List(items) => {
            let mut is_value_of_secret_option = false;
            let mut parts = Vec::with_capacity(items.len());
            for item in items {
                parts.push(if is_value_of_secret_option { masked(item) } else { flow(item) });
                is_value_of_secret_option = secrets::is_secret_option(&item.text);
            }
            format!("[{}]", parts.join(", "))
        }
        Value::Json(json) => secrets::redacted(&json.to_string(), &[]),
        _ => shown(field),
    }
}

fn braced(open: char, parts: &[String], close: char) -> String {
    if parts.is_empty() { format!("{open}{close}") } else { format!("{open} {} {close}", parts.join(", ")) }
}

/// Renders a scalar as written in the file, with secrets redacted.
pub(crate) fn shown(field: &Field) -> String {
    if field.secret {
        return masked(field);
    }
    match field.value {
        Value::Text(_)
        | Value::ErrorType(_)
        | Value::Glob(_)
        | Value::Regex(_)
        | Value::Comparison(_)
        | Value::Status(_)
        | Value::Store(_)
        | Value::Sequence(_)
        | Value::Address(_) => quoted(&secrets::redacted(&field.text, &[])),
        _ if field.text.contains("${") => quoted(&secrets::redacted(&field.text, &[])),
        _ => field.text.clone(),
    }
}

/// Renders a secret scalar. Names of variables stay visible.
fn masked(field: &Field) -> String {
    if !field.text.contains("${") {
        return "'***'".to_owned();
    }
    quoted(&secrets::redacted(&field.text, &[Span::new(0, field.text.len())]))
}

/// Renders a string as YAML, with quotes if needed.
pub(crate) fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    let looks_like_text = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/' || c == '.')
        && !matches!(
            text.to_ascii_lowercase().as_str(),
            "true" | "false" | "null" | "yes" | "no" | "on" | "off" | "unlimited"
        )
        && text.parse::<f64>().is_err();
    // A colon without a space, as in `sqlite:lazaret.db`, does not end a key.
    let inner = text.chars().all(|c| plain(c) || c == ':') && !text.ends_with(':') && !text.contains("::");
    if looks_like_text && inner {
        return text.to_owned();
    }
    if text
        .chars()
        .any(|c| c.is_control() || c == '\u{feff}' || c == '\u{2028}' || c == '\u{2029}' || c == '\u{85}')
    {
        // YAML does not accept all characters that JSON leaves unescaped.
        let escaped: String = text.chars().map(escape).collect();
        return format!("\"{escaped}\"");
    }
    format!("'{}'", text.replace('\'', "''"))
}

fn escape(c: char) -> String {
    match c {
        '"' => "\\\"".to_owned(),
        '\\' => "\\\\".to_owned(),
        c if c.is_control() || matches!(c, '\u{feff}' | '\u{2028}' | '\u{2029}') => {
            format!("\\U{:08x}", u32::from(c))
        }
        c => c.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert_eq, proptest};

    use super::*;
    use crate::diagnostic::Findings;
    use crate::tree::{Data, parse};

    #[test]
    fn strings_are_quoted_where_needed() {
        let table = [
            ("orders", "orders"),
            ("sqlite:lazaret.db", "sqlite:lazaret.db"),
            ("127.0.0.1:7117", "'127.0.0.1:7117'"),
            ("true", "'true'"),
            ("5", "'5'"),
            ("", "''"),
            ("it's", "'it''s'"),
            ("a: b", "'a: b'"),
            ("*x", "'*x'"),
            ("a\nb", "\"a\\U0000000ab\""),
        ];
        for (text, expected) in table {
            assert_eq!(quoted(text), expected);
        }
    }

    #[test]
    fn hashes_of_tokens_are_not_shown() {
        const CONSUMER: &str =
            "consumers: { orders: { source: { inbox: {} }, handler: { command: { program: [cat] } } } }\n";
        // A token that somebody chose can be guessed, and compared with its hash.
        let hash = "5f".repeat(32);
        let text = format!(
            "auth: {{ tokens: [{{ name: ci, hash: 'sha256:{hash}', scopes: [read] }}] }}\n{CONSUMER}"
        );
        let config = crate::check("f", text.as_bytes(), &crate::NoEnv).config.unwrap();
        let shown = config.effective_top();
        assert!(!shown.contains(&hash) && shown.contains("name: ci, hash: '***'"), "{shown}");
    }

    #[test]
    fn secrets_in_arguments_headers_and_properties_are_not_shown() {
        let text = r#"
consumers:
  orders:
    source: { inbox: {} }
    handler:
      command:
        program: [./run, --token, hunter2, "--password=hunter2", "-H", "cookie: hunter2", "${API_KEY:-hunter2}", --level, "3"]
        env: { PLAIN: hunter2 }
  mails:
    source: { inbox: {} }
    handler: { http: { url: "https://h/?token=hunter2", headers: { x-api-key: hunter2 } } }
"#;
        let config = crate::check("f", text.as_bytes(), &crate::NoEnv).config.unwrap();
        let shown = ["orders", "mails"].map(|name| config.effective(name).unwrap()).concat();
        assert!(!shown.contains("hunter2"), "{shown}");
        assert!(shown.contains("--token, '***',") || shown.contains("'--token', '***',"), "{shown}");
        assert!(shown.contains("API_KEY:-***") && shown.contains("PLAIN"), "{shown}");
    }

    proptest! {
        #[test]
        fn a_quoted_string_is_parsed_back(text in "\\PC{0,12}|[\\x00-\\x7f]{0,6}") {
            let yaml = format!("k: {}", quoted(&text));
            let mut findings = Findings::default();
            let node = parse(&yaml, &mut findings).unwrap();
            let Data::Map(entries) = node.data else { panic!("{yaml}") };
            let read = match &entries[0].value.data {
                Data::Scalar { text, .. } => text.clone(),
                other => panic!("{yaml}: {other:?}"),
            };
            prop_assert_eq!(read, text);
        }
    }
}
