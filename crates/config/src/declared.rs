//! Reads the configuration of consumers that a program declares with attributes.
//!
//! An attribute sets a value for a key of the table and is treated like any other value. It is merged
//! over the values of the consumer in the file, which are merged over `defaults`. The result is read and
//! checked as a whole. In messages, attributes follow the last line of the file.

use std::borrow::Cow;
use std::sync::Arc;

use crate::code::Code;
use crate::diagnostic::{Diagnostics, FindingBuilder, Findings};
use crate::document::{ConsumerFields, Document};
use crate::env::Env;
use crate::load::{Loaded, decoded, read_defaults};
use crate::merge::merged;
use crate::model::Config;
use crate::read::{Mode, Reader};
use crate::rules;
use crate::secrets;
use crate::source::{SourceText, Span};
use crate::suggest::nearest;
use crate::table::{CONSUMER, Format, TOP};
use crate::text;
use crate::tree::{Data, Entry, Node, parse};
use crate::value::{Fields, Origin};

/// A value that an attribute sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The attribute as shown in messages, on one line: `#[retry_policy(max_attempts = 5)]`.
    pub attribute: Cow<'static, str>,
    /// The path of the key below the consumer: `retry.max-attempts`.
    pub key: &'static str,
    /// The value as written in the file: `5`, `"30s"`, `[orders]`.
    pub value: Cow<'static, str>,
}

impl Setting {
    /// Creates a setting.
    pub fn new(
        attribute: impl Into<Cow<'static, str>>,
        key: &'static str,
        value: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { attribute: attribute.into(), key, value: value.into() }
    }
}

/// A consumer that a program declares.
#[derive(Clone, Debug)]
pub struct Declared<'a> {
    /// The name.
    pub name: &'a str,
    /// The values that attributes set.
    pub settings: &'a [Setting],
    /// The values that replace built-in defaults. All other values override them.
    pub defaults: &'a [Setting],
}

/// Reads the configuration of declared consumers, and their values from a file, if there is one.
///
/// An attribute overrides the consumer of the same name in the file, which overrides `defaults`. The
/// program provides the source and the handler. The file may complete the source, for example with `uri`
/// or `brokers`, but must not set `handler`. Consumers with a handler that the program does not declare
/// belong to the daemon and are ignored.
///
/// ```
/// use lazaret_config::{Declared, NoEnv, Origin, Setting, declared};
///
/// let settings = [Setting::new("#[retry_policy(max_attempts = 5)]", "retry.max-attempts", "5")];
/// let orders = Declared { name: "orders", settings: &settings, defaults: &[] };
/// let text = b"defaults: { retry: { max-attempts: 4, max-delay: 1m } }";
///
/// let config = declared(Some(("lazaret.yaml", text)), &NoEnv, &[orders]).unwrap().config;
/// assert_eq!(config.consumers[0].retry.policy.max_attempts, 5);
/// assert_eq!(config.origin("orders", "retry.max-attempts"), Some(Origin::Attribute));
/// assert_eq!(config.origin("orders", "retry.max-delay"), Some(Origin::Defaults));
/// assert_eq!(config.origin("orders", "retry.jitter"), Some(Origin::BuiltIn));
/// ```
pub fn declared(
    file: Option<(&str, &[u8])>,
    env: &dyn Env,
    consumers: &[Declared<'_>],
) -> Result<Loaded, Diagnostics> {
    let mut findings = Findings::default();
    let (name, bytes) = file.unwrap_or(("attributes", b""));
    let written = match decoded(bytes, &mut findings) {
        Ok(text) => text,
        Err(lossy) => {
            return Err(findings.finish(&Arc::new(SourceText::new(name, secrets::redact(&lossy, &[])))));
        }
    };
    let root = if file.is_some() { parse(written, &mut findings) } else { Some(section(Vec::new())) };
    let attributes = Attributes::after(written, consumers, &mut findings);
    let mut reader = Reader {
        text: &attributes.text,
        env,
        findings: &mut findings,
        secrets: Vec::new(),
        origins: attributes.origins.clone(),
    };
    let parts = root.as_ref().map(|root| read(&mut reader, root, consumers, &attributes));
    let shown = secrets::redact(&attributes.text, &reader.secrets);
    let source = Arc::new(SourceText::new(name, shown));
    let Some((top, consumers)) = parts else { return Err(findings.finish(&source)) };
    let document = Document { source: Arc::clone(&source), top, consumers };
    rules::check(&document, &mut findings);
    if findings.has_errors() {
        return Err(findings.finish(&source));
    }
    Ok(Loaded { config: Config::from_document(document), warnings: findings.finish(&source) })
}

/// The text of the file followed by one line per attribute, and the values of the attributes with their
/// locations in this text.
struct Attributes {
    text: String,
    origins: Vec<(Span, Origin)>,
    /// For each consumer, the location of its first line, the values of its attributes, and the values
    /// of its defaults.
    values: Vec<(Span, Node, Node)>,
}

impl Attributes {
    fn after(written: &str, consumers: &[Declared<'_>], findings: &mut Findings) -> Self {
        let mut this = Self {
            text: written.to_owned(),
            origins: Vec::new(),
            values: Vec::with_capacity(consumers.len()),
        };
        if !written.is_empty() && !written.ends_with('\n') {
            this.text.push('\n');
        }
        for consumer in consumers {
            let first = this.line(&format!("# declared: {}", consumer.name));
            let defaults = this.tree(consumer.defaults, Origin::BuiltIn, findings);
            let settings = this.tree(consumer.settings, Origin::Attribute, findings);
            this.values.push((first, settings, defaults));
        }
        this
    }

    /// Appends a line and returns its location.
    fn line(&mut self, text: &str) -> Span {
        let start = self.text.len();
        self.text.extend(text.chars().map(|c| if c.is_control() { ' ' } else { c }));
        let span = Span::new(start, self.text.len());
        self.text.push('\n');
        span
    }

    fn tree(&mut self, settings: &[Setting], origin: Origin, findings: &mut Findings) -> Node {
        let mut root = Vec::new();
        for setting in settings {
            let span = self.line(&setting.attribute);
            self.origins.push((span, origin));
            let node = parse(&setting.value, findings).unwrap_or(Node { span, data: Data::Broken });
            insert(&mut root, setting.key, placed(node, span), span);
        }
        section(root)
    }
}

/// Returns a section without a location of its own. Its origin is that of its values.
fn section(entries: Vec<Entry>) -> Node {
    Node { span: Span::default(), data: Data::Map(entries) }
}

/// Moves a value and all nested values to a location.
fn placed(node: Node, span: Span) -> Node {
    let data = match node.data {
        Data::List { items, brackets } => {
            Data::List { items: items.into_iter().map(|item| placed(item, span)).collect(), brackets }
        }
        Data::Map(entries) => Data::Map(
            entries
                .into_iter()
                .map(|entry| Entry { name_span: span, value: placed(entry.value, span), ..entry })
                .collect(),
        ),
        data => data,
    };
    Node { span, data }
}

/// Inserts a value at a path. A later value replaces an earlier one.
fn insert(entries: &mut Vec<Entry>, path: &str, value: Node, span: Span) {
    let (name, rest) = path.split_once('.').unwrap_or((path, ""));
    let at = entries.iter().position(|entry| entry.name == name).unwrap_or_else(|| {
        entries.push(Entry { name: name.to_owned(), name_span: span, value: section(Vec::new()) });
        entries.len() - 1
    });
    let entry = &mut entries[at];
    match &mut entry.value.data {
        Data::Map(inner) if !rest.is_empty() => insert(inner, rest, value, span),
        _ => entry.value = value,
    }
}

fn read(
    reader: &mut Reader<'_>,
    root: &Node,
    consumers: &[Declared<'_>],
    attributes: &Attributes,
) -> (Fields, Vec<ConsumerFields>) {
    let first_line = Span::new(root.span.start, root.span.start);
    let top = reader.section(&TOP, "", first_line, root, Mode::Declared);
    let entry = |name: &str| match &root.data {
        Data::Map(entries) => entries.iter().find(|entry| entry.name == name),
        _ => None,
    };
    let defaults = entry("defaults");
    if let Some(defaults) = defaults {
        read_defaults(reader, defaults);
    }
    let configured = match entry("consumers").map(|entry| &entry.value.data) {
        Some(Data::Map(entries)) => entries.as_slice(),
        _ => &[],
    };
    undeclared(reader, configured, consumers);
    duplicates(reader, consumers, attributes);
    let read = consumers.iter().zip(&attributes.values).map(|(declared, values)| {
        let own = configured.iter().find(|entry| entry.name == declared.name);
        consumer(reader, declared, own, defaults, values)
    });
    (top, read.collect())
}

/// Warns about consumers in the file that the program would have to declare.
fn undeclared(reader: &mut Reader<'_>, configured: &[Entry], consumers: &[Declared<'_>]) {
    let names = || consumers.iter().map(|declared| declared.name);
    for entry in configured.iter().filter(|entry| names().all(|name| name != entry.name)) {
        if has(&entry.value, "handler") {
            continue;
        }
        let message = format!("the program declares no consumer `{}`", entry.name);
        let hint = match nearest(&entry.name, names()) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => "check the name, or remove the consumer".to_owned(),
        };
        reader.findings.add(FindingBuilder::new(Code::NotDeclared, entry.name_span, message).hint(hint));
    }
}

/// Reports declared consumers with the same name.
fn duplicates(reader: &mut Reader<'_>, consumers: &[Declared<'_>], attributes: &Attributes) {
    for (index, declared) in consumers.iter().enumerate() {
        if let Some(first) = consumers[..index].iter().position(|other| other.name == declared.name) {
            let message = format!("two consumers are named `{}`", declared.name);
            let finding = FindingBuilder::new(Code::DuplicateConsumer, attributes.values[index].0, message);
            let finding = finding.related(attributes.values[first].0, "first declared here");
            reader.findings.add(finding.hint("set `name` on one: each consumer has its own queue"));
        }
    }
}

fn consumer(
    reader: &mut Reader<'_>,
    declared: &Declared<'_>,
    own: Option<&Entry>,
    defaults: Option<&Entry>,
    (place, settings, base): &(Span, Node, Node),
) -> ConsumerFields {
    let name = declared.name;
    if let Err(bad) = text::parse(Format::Name, name) {
        let finding = FindingBuilder::new(bad.code, *place, format!("`{name}` {}", bad.why));
        reader.findings.add(finding.hint(bad.hint.unwrap_or_else(|| "choose a name".to_owned())));
    }
    let mut values = match defaults {
        Some(defaults) => merged(&CONSUMER, &without(&defaults.value, "handler"), base),
        None => base.clone(),
    };
    if let Some(own) = own {
        conflicts(reader, own, settings);
        // Reports unknown keys, which a merge leaves out.
        reader.section(&CONSUMER, name, own.name_span, &own.value, Mode::Partial);
        values = merged(&CONSUMER, &without(&own.value, "handler"), &values);
    }
    let values = merged(&CONSUMER, settings, &values);
    let at = own.map_or(*place, |own| own.name_span);
    let fields = reader.section(&CONSUMER, name, at, &values, Mode::Declared);
    ConsumerFields { name: name.to_owned(), name_span: at, fields }
}

/// Reports a handler in the file, and a source of a different kind than the declared one.
fn conflicts(reader: &mut Reader<'_>, own: &Entry, settings: &Node) {
    let name = &own.name;
    if let Some(handler) = child(&own.value, "handler") {
        let message = format!("`{name}` has a handler, but the program declares its handler");
        let finding = FindingBuilder::new(Code::Contradiction, handler.name_span, message);
        reader.findings.add(finding.hint("remove `handler`, or rename the consumer"));
    }
    let kind = |node: &Node| match child(node, "source").map(|source| &source.value.data) {
        Some(Data::Map(entries)) => entries.first().map(|entry| (entry.name.clone(), entry.name_span)),
        _ => None,
    };
    if let (Some((theirs, span)), Some((ours, _))) = (kind(&own.value), kind(settings))
        && theirs != ours
    {
        let message = format!("`{name}` reads from `{theirs}`, but the program declares `{ours}`");
        let finding = FindingBuilder::new(Code::Contradiction, span, message);
        reader.findings.add(finding.hint(format!("write `source: {{ {ours}: … }}`, or remove `source`")));
    }
}

fn child<'a>(node: &'a Node, name: &str) -> Option<&'a Entry> {
    match &node.data {
        Data::Map(entries) => entries.iter().find(|entry| entry.name == name),
        _ => None,
    }
}

fn has(node: &Node, name: &str) -> bool {
    child(node, name).is_some()
}

fn without(node: &Node, name: &str) -> Node {
    match &node.data {
        Data::Map(entries) => {
            let kept = entries.iter().filter(|entry| entry.name != name).cloned().collect();
            Node { span: node.span, data: Data::Map(kept) }
        }
        _ => node.clone(),
    }
}

#[cfg(test)]
mod tests;
