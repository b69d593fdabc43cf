//! Reads a tree by the table of keys. Reports all unknown keys, wrong types and invalid values.

use crate::code::Code;
use crate::default_hint;
use crate::diagnostic::{FindingBuilder, Findings};
use crate::env::{Env, EnvError, Expanded, expand};
use crate::scalar::typed;
use crate::secrets::{is_secret_name, redacted};
use crate::source::Span;
use crate::suggest::{nearest, synonym};
use crate::table::{self, DefaultValue, Format, Key, Kind, Section};
use crate::text;
use crate::tree::{Data, Entry, Node, parse};
use crate::value::{Field, Fields, Origin, Value};

/// The state of reading a file.
pub(crate) struct Reader<'a> {
    pub(crate) text: &'a str,
    pub(crate) env: &'a dyn Env,
    pub(crate) findings: &'a mut Findings,
    /// Spans of the file that must not be shown.
    pub(crate) secrets: Vec<Span>,
    /// Spans whose values have a different origin than the section itself.
    pub(crate) origins: Vec<(Span, Origin)>,
}

/// The key whose value is being read.
#[derive(Clone, Copy)]
struct Subject<'a> {
    /// The name of the key in messages.
    name: &'a str,
    /// The span of the name. Missing keys are reported there.
    at: Span,
    secret: bool,
    /// The key in the table. For items and entries, the key of the list or map.
    key: &'static Key,
    /// The keyword for "none".
    none: Option<&'static str>,
}

/// How completely a section is read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Required keys must be present, and missing keys get their defaults.
    Complete,
    /// Only the present keys are read.
    Partial,
    /// Missing keys get their defaults. Required keys may be absent, because the program provides them.
    Declared,
}

impl Reader<'_> {
    /// Reads a section. The result omits invalid values.
    pub(crate) fn section(
        &mut self,
        section: &'static Section,
        name: &str,
        at: Span,
        node: &Node,
        mode: Mode,
    ) -> Fields {
        let empty = Vec::new();
        let entries = match &node.data {
            Data::Map(entries) => entries,
            Data::Null => &empty,
            Data::Broken => return Fields::default(),
            _ => {
                self.wrong_type(&Kind::Section(section), name, None, node);
                return Fields::default();
            }
        };
        let unknown = entries.iter().filter(|entry| section.key(&entry.name).is_none());
        let meant: Vec<&str> = unknown.filter_map(|entry| self.unknown_key(section, name, entry)).collect();
        let mut fields = Fields::default();
        for key in section.keys {
            let entry = entries.iter().find(|entry| entry.name == key.name);
            // A misspelled required key was already reported as unknown.
            if entry.is_none() && key.default == DefaultValue::Required && meant.contains(&key.name) {
                fields.invalid.push(key.name);
                continue;
            }
            match self.key(key, entry, name, at, mode) {
                Ok(Some(field)) => fields.list.push((key, field)),
                Ok(None) => fields.absent.extend(key.absence().filter(|_| mode != Mode::Partial)),
                Err(Reported) => fields.invalid.push(key.name),
            }
        }
        fields
    }

    /// Reads one key of a section, or its default if it has one.
    fn key(
        &mut self,
        key: &'static Key,
        entry: Option<&Entry>,
        name: &str,
        at: Span,
        mode: Mode,
    ) -> Result<Option<Field>, Reported> {
        if matches!(key.kind, Kind::Partial(_) | Kind::Named(_)) {
            // The caller reads consumers and defaults together.
            return if mode == Mode::Declared { Ok(None) } else { self.required_key(key, entry, name, at) };
        }
        if let Some(entry) = entry {
            let subject =
                Subject { name: key.name, at: entry.name_span, secret: key.secret, key, none: None };
            return self.value(&key.kind, subject, &entry.value, mode).map(Some).ok_or(Reported);
        }
        if mode == Mode::Partial {
            return Ok(None);
        }
        match key.default {
            DefaultValue::Literal(text) => Ok(Some(built_in(key, text))),
            DefaultValue::Absent(_) => Ok(None),
            DefaultValue::Required if mode == Mode::Declared => Ok(None),
            DefaultValue::Required => self.required_key(key, entry, name, at),
        }
    }

    /// Reports a missing required key.
    fn required_key(
        &mut self,
        key: &Key,
        entry: Option<&Entry>,
        name: &str,
        at: Span,
    ) -> Result<Option<Field>, Reported> {
        if entry.is_some() || key.default != DefaultValue::Required {
            return Ok(None);
        }
        let example = if key.example.is_empty() { "…" } else { key.example };
        let who = if name.is_empty() { "the file".to_owned() } else { format!("`{name}`") };
        let finding =
            FindingBuilder::new(Code::MissingKey, at, format!("{who} requires the key `{}`", key.name));
        let hint = match &key.kind {
            Kind::OneOf(section) => {
                let names: Vec<_> = section.names().map(|name| format!("`{name}`")).collect();
                format!("add `{}:` with {}", key.name, table::either(&names))
            }
            Kind::List { .. } => format!("add `{}: [{example}]`", key.name),
            _ => format!("add `{}: {example}`", key.name),
        };
        self.findings.add(finding.hint(hint));
        Err(Reported)
    }

    /// Reports an unknown key. Returns the key that was probably meant.
    fn unknown_key(&mut self, section: &'static Section, name: &str, entry: &Entry) -> Option<&'static str> {
        // The value of an unknown key may also be a secret.
        if is_secret_name(&entry.name) {
            self.secrets.push(entry.value.span);
        }
        let message = match name {
            "" => format!("unknown key `{}` at the top of the file", entry.name),
            name => format!("unknown key `{}` in `{name}`", entry.name),
        };
        if self.findings.is_full() {
            let finding = FindingBuilder::new(Code::UnknownKey, entry.name_span, message);
            self.findings.add(finding.hint("all keys: `lazaret schema`"));
            return None;
        }
        let meant = nearest(&entry.name, section.names()).or_else(|| synonym(&entry.name, section.names()));
        let hint = match meant {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => {
                let elsewhere = table::elsewhere(section, &entry.name);
                elsewhere.unwrap_or_else(|| default_hint::for_unknown_key(section, &entry.name))
            }
        };
        self.findings.add(FindingBuilder::new(Code::UnknownKey, entry.name_span, message).hint(hint));
        meant
    }

    /// Reads a value of the given kind. Returns `None` for an invalid value, after reporting it.
    fn value(&mut self, kind: &'static Kind, subject: Subject<'_>, node: &Node, mode: Mode) -> Option<Field> {
        match (kind, &node.data) {
            (_, Data::Broken) => None,
            (Kind::Section(section), _) => {
                let is_section = matches!(node.data, Data::Map(_) | Data::Null);
                let fields = self.section(section, subject.name, subject.at, node, mode);
                is_section.then(|| self.field(Value::Section(fields), node, subject))
            }
            (Kind::OneOf(section), _) => self.one_of(section, subject, node, mode),
            (Kind::Or(word, inner), data) => {
                let is_keyword = self.is_keyword(word, data);
                if is_keyword {
                    return Some(self.field(Value::Nothing, node, subject));
                }
                if inner.section().is_some() && matches!(data, Data::Scalar { .. }) {
                    self.wrong_type(kind, subject.name, Some(subject.key), node);
                    return None;
                }
                self.value(inner, Subject { none: Some(word), ..subject }, node, mode)
            }
            (_, Data::Null) => {
                let finding = FindingBuilder::new(
                    Code::EmptyValue,
                    subject.at,
                    format!("`{}` has no value", subject.name),
                );
                self.findings.add(
                    finding.hint(format!("write {}, or remove the key to use the default", kind.expected())),
                );
                None
            }
            (Kind::Any, _) => Some(self.field(Value::Json(node.json()), node, subject)),
            (Kind::List { of, min }, Data::List { items, .. }) => {
                self.list(of, *min, subject, node, items, mode)
            }
            (Kind::Map { names, of }, Data::Map(entries)) => self.map(*names, of, subject, node, entries),
            (Kind::List { .. } | Kind::Map { .. }, _) | (_, Data::List { .. } | Data::Map(_)) => {
                self.wrong_type(kind, subject.name, Some(subject.key), node);
                None
            }
            (_, Data::Scalar { text, plain }) => self.scalar(kind, subject, node, text, *plain),
        }
    }

    /// Returns `true` if a value is the keyword, possibly from a variable.
    fn is_keyword(&self, word: &str, data: &Data) -> bool {
        let fits = |text: &str| text == word || (word == "off" && text == "false");
        match data {
            Data::Scalar { text, .. } if text.contains("${") => {
                expand(text, self.env).is_ok_and(|expanded| fits(&expanded.text))
            }
            // This includes quoted values: a directory with that name is written `./off`.
            Data::Scalar { text, .. } => fits(text),
            _ => false,
        }
    }

    fn one_of(
        &mut self,
        section: &'static Section,
        subject: Subject<'_>,
        node: &Node,
        mode: Mode,
    ) -> Option<Field> {
        if matches!(node.data, Data::Scalar { .. } | Data::List { .. }) {
            self.wrong_type(&Kind::OneOf(section), subject.name, None, node);
            return None;
        }
        let fields = self.section(section, subject.name, subject.at, node, mode);
        let given: Vec<&Entry> = match &node.data {
            Data::Map(entries) => entries.iter().filter(|entry| section.key(&entry.name).is_some()).collect(),
            Data::Null => Vec::new(),
            _ => return None,
        };
        let names: Vec<_> = section.names().map(|name| format!("`{name}`")).collect();
        match given.as_slice() {
            [_] => Some(self.field(Value::Section(fields), node, subject)),
            [] if mode != Mode::Complete => Some(self.field(Value::Section(fields), node, subject)),
            [] => {
                // The finding about the unknown key already lists the possible keys.
                if matches!(&node.data, Data::Map(entries) if !entries.is_empty()) {
                    return None;
                }
                let message = format!("`{}` is empty", subject.name);
                let hint = format!("choose one of {}", names.join(", "));
                self.findings.add(FindingBuilder::new(Code::NotExactlyOne, subject.at, message).hint(hint));
                None
            }
            [first, .., last] => {
                let message = format!("`{}` has both `{}` and `{}`", subject.name, first.name, last.name);
                let finding = FindingBuilder::new(Code::NotExactlyOne, last.name_span, message)
                    .related(first.name_span, "first choice");
                let hint = if subject.name == "source" {
                    "keep one; configure a second consumer for the second source"
                } else {
                    "keep one"
                };
                self.findings.add(finding.hint(hint));
                None
            }
        }
    }

    fn list(
        &mut self,
        of: &'static Kind,
        min: usize,
        subject: Subject<'_>,
        node: &Node,
        items: &[Node],
        mode: Mode,
    ) -> Option<Field> {
        if items.len() < min {
            let finding = FindingBuilder::new(
                Code::OutOfRange,
                node.span,
                format!("`{}` must not be empty", subject.name),
            );
            self.findings.add(finding.hint(default_hint::for_empty_list(subject.key, of)));
            return None;
        }
        let mut fields = Vec::new();
        for (item, number) in items.iter().zip(1..) {
            let name = if of.section().is_some() {
                format!("{}[{number}]", subject.name)
            } else {
                subject.name.to_owned()
            };
            // An item has no name. Its missing keys are reported at its first line.
            let first_line = self
                .text
                .get(item.span.start..item.span.end)
                .and_then(|text| text.lines().next())
                .map_or(0, str::len);
            let at = Span::new(item.span.start, item.span.start + first_line);
            // A rule or a token must be complete, even in `defaults`.
            let mode = if of.section().is_some() { Mode::Complete } else { mode };
            fields.extend(self.value(of, Subject { name: &name, at, ..subject }, item, mode));
        }
        Some(self.field(Value::List(fields), node, subject))
    }

    fn map(
        &mut self,
        names: Format,
        of: &'static Kind,
        subject: Subject<'_>,
        node: &Node,
        entries: &[Entry],
    ) -> Option<Field> {
        let mut fields = Vec::new();
        for entry in entries {
            let named = match text::parse(names, &entry.name) {
                Ok(_) => true,
                Err(bad) => {
                    let message = format!("`{}` in `{}` {}", entry.name, subject.name, bad.why);
                    let hint =
                        bad.hint.unwrap_or_else(|| format!("write {}", default_hint::for_format(names)));
                    self.findings.add(FindingBuilder::new(bad.code, entry.name_span, message).hint(hint));
                    false
                }
            };
            // Most properties are not secret and stay visible.
            let secret = subject.secret && (names != Format::Property || is_secret_name(&entry.name));
            let inner = Subject { name: &entry.name, at: entry.name_span, secret, ..subject };
            let value = self.value(of, inner, &entry.value, Mode::Complete);
            fields.extend(value.filter(|_| named).map(|value| (entry.name.clone(), value)));
        }
        Some(self.field(Value::Map(fields), node, subject))
    }

    fn scalar(
        &mut self,
        kind: &'static Kind,
        subject: Subject<'_>,
        node: &Node,
        text: &str,
        plain: bool,
    ) -> Option<Field> {
        if subject.secret {
            self.secrets.push(node.span);
        }
        let expanded = self.expanded(subject, node, text)?;
        let is_number = matches!(kind, Kind::Flag | Kind::Count { .. } | Kind::Number { .. } | Kind::Jitter);
        if is_number && !plain && !text.contains("${") {
            let fits = typed(kind, text, subject.name).is_ok();
            let finding = FindingBuilder::new(
                Code::WrongType,
                node.span,
                format!("`{}` must be {}, not a string", subject.name, kind.expected()),
            );
            let hint = if fits {
                "remove the quotes".to_owned()
            } else {
                default_hint::for_scalar(subject.key, kind)
            };
            self.findings.add(finding.hint(hint));
            return None;
        }
        match typed(kind, &expanded.text, subject.name) {
            Ok(value) => {
                let mut field = self.field(value, node, subject);
                text.clone_into(&mut field.text);
                field.secret = subject.secret;
                Some(field)
            }
            Err(bad) => {
                let what = match subject.none {
                    Some("unlimited") => "write `unlimited` for no limit".to_owned(),
                    Some(word) => format!("write `{word}` to disable it"),
                    None => default_hint::for_scalar(subject.key, kind),
                };
                let hint = bad.hint.unwrap_or(what);
                let value = match (subject.secret, expanded.from_env) {
                    (true, _) => "the value".to_owned(),
                    (false, true) => format!("the value of `{}`", redacted(text, &[])),
                    // A URL may contain a password.
                    (false, false) => format!("`{}`", redacted(text, &[])),
                };
                self.findings
                    .add(FindingBuilder::new(bad.code, node.span, bad.why.replace("{}", &value)).hint(hint));
                None
            }
        }
    }

    /// Expands the variables of a text.
    fn expanded(&mut self, subject: Subject<'_>, node: &Node, text: &str) -> Option<Expanded> {
        let errors = match expand(text, self.env) {
            Ok(expanded) => return Some(expanded),
            Err(errors) => errors,
        };
        for error in errors {
            let (EnvError::Missing { at, length, .. }
            | EnvError::Unreadable { at, length, .. }
            | EnvError::Malformed { at, length, .. }) = error;
            let span = self.inside(node.span, text.get(at..at + length).unwrap_or_default());
            let finding = match error {
                EnvError::Missing { name, .. } => FindingBuilder::new(
                    Code::EnvMissing,
                    span,
                    format!("`{}` requires the environment variable {name}, which is not set", subject.name),
                )
                .hint(format!("set {name}, or write `${{{name}:-default}}`")),
                EnvError::Unreadable { path, why, .. } => FindingBuilder::new(
                    Code::FileUnreadable,
                    span,
                    format!("`{}` requires the file {path}, which cannot be used: {why}", subject.name),
                )
                .hint("write the value into the file, on one line, and permit this user to read it"),
                EnvError::Malformed { why, .. } => FindingBuilder::new(Code::EnvSyntax, span, why).hint(
                    "write `${NAME}`, `${NAME:-default}` or `${file:PATH}`; escape a literal `${` as `$${`",
                ),
            };
            self.findings.add(finding);
        }
        None
    }

    /// Returns the span of a part of a value. Returns the whole value's span if the file spells the part
    /// differently.
    fn inside(&self, span: Span, part: &str) -> Span {
        let found = self.text.get(span.start..span.end).and_then(|text| text.find(part));
        found.map_or(span, |at| Span::new(span.start + at, span.start + at + part.len()))
    }

    fn wrong_type(&mut self, kind: &Kind, name: &str, key: Option<&Key>, node: &Node) {
        let subject = if name.is_empty() { "the file".to_owned() } else { format!("`{name}`") };
        let finding = FindingBuilder::new(
            Code::WrongType,
            node.span,
            format!("{subject} must be {}, not {}", kind.expected(), node.kind()),
        );
        self.findings.add(finding.hint(default_hint::for_shape(kind, name, key, node)));
    }

    fn field(&self, value: Value, node: &Node, subject: Subject<'_>) -> Field {
        let within = |outer: Span| outer.start <= node.span.start && node.span.end <= outer.end;
        let origin =
            self.origins.iter().find(|(span, _)| within(*span)).map_or(Origin::Own, |(_, origin)| *origin);
        // An empty section has no span of its own.
        let span = if node.span.is_empty() { subject.at } else { node.span };
        let span = Some(span).filter(|_| origin != Origin::BuiltIn);
        let text = match &node.data {
            Data::Scalar { text, .. } => text.clone(),
            _ => String::new(),
        };
        Field { value, origin, span, text, secret: false }
    }
}

/// Marks an error that was already reported.
struct Reported;

/// Reads the default of a key. An invalid default is a bug; a test reads all defaults.
fn built_in(key: &'static Key, text: &str) -> Field {
    let mut findings = Findings::default();
    let quoted = format!("'{text}'");
    let node = match key.kind.inner() {
        // Unquoted, a star or a colon would have a meaning in YAML.
        Kind::Text(_) => parse(&quoted, &mut findings),
        _ => parse(text, &mut findings),
    };
    let node = node.unwrap_or(Node { span: Span::default(), data: Data::Null });
    // A keyword is not quoted.
    let node = match (&key.kind, node.data) {
        (Kind::Or(word, _), Data::Scalar { text, .. }) if text == *word => {
            Node { span: node.span, data: Data::Scalar { text, plain: true } }
        }
        (_, data) => Node { span: node.span, data },
    };
    let env = crate::env::NoEnv;
    let mut reader =
        Reader { text, env: &env, findings: &mut findings, secrets: Vec::new(), origins: Vec::new() };
    let subject = Subject { name: key.name, at: Span::default(), secret: false, key, none: None };
    let field = reader.value(&key.kind, subject, &node, Mode::Complete);
    let mut field = field.unwrap_or(Field {
        value: Value::Nothing,
        origin: Origin::BuiltIn,
        span: None,
        text: String::new(),
        secret: false,
    });
    debug_assert!(!findings.has_errors(), "the default of {} is invalid", key.name);
    field.mark_built_in();
    field
}
