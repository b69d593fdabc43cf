//! Parses a YAML document into a tree with the location of every key and value.

use std::collections::HashMap;

use granit_parser::{Event, Parser, ScalarStyle};
use serde_json::Value as Json;

use crate::code::Code;
use crate::diagnostic::{FindingBuilder, Findings};
use crate::source::Span;
use crate::syntax;

/// The maximum nesting depth of a document.
const DEPTH: usize = 64;

/// A value and its location.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) span: Span,
    pub(crate) data: Data,
}

#[derive(Clone, Debug)]
pub(crate) enum Data {
    /// No value, or `null`.
    Null,
    Scalar {
        text: String,
        /// Whether the scalar is unquoted, and may be a number.
        plain: bool,
    },
    List {
        items: Vec<Node>,
        /// Whether the list is written in brackets, not with dashes.
        brackets: bool,
    },
    Map(Vec<Entry>),
    /// A value that was already reported as invalid.
    Broken,
}

/// A key with its value.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) name_span: Span,
    pub(crate) value: Node,
}

impl Node {
    /// Names the kind of the value for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match &self.data {
            Data::Null => "nothing",
            Data::List { .. } => "a list",
            Data::Map(_) => "a section",
            Data::Broken => "an invalid value",
            Data::Scalar { plain: false, .. } => "a string",
            Data::Scalar { text, .. } => match text.as_str() {
                "true" | "false" => "true or false",
                text if text.parse::<f64>().is_ok() => "a number",
                _ => "a string",
            },
        }
    }

    /// Converts the value to JSON by the rules of YAML 1.2.
    pub(crate) fn json(&self) -> Json {
        match &self.data {
            Data::Null | Data::Broken => Json::Null,
            Data::Scalar { text, plain: false } => text.as_str().into(),
            Data::Scalar { text, .. } => match text.as_str() {
                "true" => true.into(),
                "false" => false.into(),
                text => number(text).unwrap_or_else(|| text.into()),
            },
            Data::List { items, .. } => items.iter().map(Self::json).collect(),
            Data::Map(entries) => entries.iter().map(|e| (e.name.clone(), e.value.json())).collect(),
        }
    }
}

/// Parses a plain scalar as a number if it is one.
fn number(text: &str) -> Option<Json> {
    let digits = text.trim_start_matches(['-', '+']);
    if !digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    let whole = text.parse::<i64>().map(Json::from).or_else(|_| text.parse::<u64>().map(Json::from));
    whole.ok().or_else(|| serde_json::Number::from_f64(text.parse().ok()?).map(Json::Number))
}

/// Parses the single document of a text. Returns `None` after a fatal error, which is reported in the
/// findings.
pub(crate) fn parse(text: &str, findings: &mut Findings) -> Option<Node> {
    let options = granit_parser::options! {
        emit_unresolved_aliases: true,
        emit_anchor_events: true,
        flow_nesting_limit: DEPTH,
        block_nesting_limit: DEPTH,
    };
    let mut builder = Builder { text, findings, frames: Vec::new(), root: None, documents: 0, refused: None };
    for next in Parser::new_from_str_with_options(text, options) {
        match next {
            Ok((event, span)) => builder.handle(event, span),
            Err(error) => {
                // After a literal star, the parser also rejects the rest of the line. One finding is enough.
                let at = error.marker().byte_offset().unwrap_or(text.len());
                let explained = builder
                    .refused
                    .and_then(|refused| text.get(refused.end..at))
                    .is_some_and(|between| !between.contains('\n'));
                if !explained {
                    builder.findings.add(syntax::explain(text, &error));
                }
                return None;
            }
        }
        if builder.documents > 1 {
            return None;
        }
    }
    let root = builder.root.take();
    match root {
        None | Some(Node { data: Data::Null, .. }) => {
            findings.add(
                FindingBuilder::new(Code::EmptyFile, Span::default(), "the file contains no configuration")
                    .hint("run `lazaret init` to write a starter file"),
            );
            None
        }
        root => root,
    }
}

/// The entries of an open map, and the location of the first use of each name.
#[derive(Default)]
struct Entries {
    list: Vec<Entry>,
    places: HashMap<String, Span>,
}

/// A list or a map whose end is not parsed yet.
enum Frame {
    List { start: usize, items: Vec<Node> },
    Map { start: usize, entries: Entries, key: Option<(String, Span)> },
}

struct Builder<'a> {
    text: &'a str,
    findings: &'a mut Findings,
    frames: Vec<Frame>,
    root: Option<Node>,
    documents: usize,
    /// The location of the last anchor or alias.
    refused: Option<Span>,
}

impl Builder<'_> {
    fn handle(&mut self, event: Event<'_>, at: granit_parser::Span) {
        let span = range(at);
        if let Some(tag) = at.tag_span() {
            self.findings.add(
                FindingBuilder::new(Code::Tag, range(tag), "tags are not supported")
                    .hint("remove it: the key determines the type of the value"),
            );
        }
        match event {
            Event::DocumentStart(..) => self.document(span),
            Event::Scalar(text, style, ..) => self.scalar(&text, style, span),
            Event::SequenceStart(..) => {
                self.frames.push(Frame::List { start: span.start, items: Vec::new() });
            }
            Event::MappingStart(..) => {
                self.frames.push(Frame::Map { start: span.start, entries: Entries::default(), key: None });
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(span),
            Event::Anchor(..) => self.refuse_anchor(span, "anchors are not supported", '&'),
            Event::Alias(_) | Event::UnresolvedAlias(_) => {
                self.refuse_anchor(span, "aliases are not supported", '*');
                self.put(Node { span, data: Data::Broken });
            }
            _ => {}
        }
    }

    fn document(&mut self, span: Span) {
        self.documents += 1;
        if self.documents > 1 {
            self.findings.add(
                FindingBuilder::new(Code::MultipleDocuments, span, "a second document starts here")
                    .hint("merge it into the first document, or move it to a separate file"),
            );
        }
    }

    fn scalar(&mut self, text: &str, style: ScalarStyle, span: Span) {
        let plain = style == ScalarStyle::Plain;
        let is_null = plain && (span.is_empty() || matches!(text, "" | "~" | "null" | "Null" | "NULL"));
        let data = if is_null { Data::Null } else { Data::Scalar { text: text.to_owned(), plain } };
        self.put(Node { span, data });
    }

    fn close(&mut self, span: Span) {
        let node = match self.frames.pop() {
            Some(Frame::List { start, items }) => {
                let end = items.last().map_or(start, |last| last.span.end).max(span.end.min(self.text.len()));
                let brackets = self.text.get(start..).is_some_and(|list| list.starts_with('['));
                Node { span: Span::new(start, end), data: Data::List { items, brackets } }
            }
            Some(Frame::Map { start, entries: Entries { list: entries, .. }, .. }) => {
                let end = entries.last().map_or(start, |last| last.value.span.end).max(span.end);
                Node { span: Span::new(start, end), data: Data::Map(entries) }
            }
            None => return,
        };
        self.put(node);
    }

    /// Adds a complete value to the innermost open list or map.
    fn put(&mut self, node: Node) {
        let names_consumers = self.names_consumers();
        match self.frames.last_mut() {
            None => self.root = Some(node),
            Some(Frame::List { items, .. }) => items.push(node),
            Some(Frame::Map { key: key @ None, .. }) => *key = Some(key_of(node, self.findings)),
            Some(Frame::Map { entries, key, .. }) => {
                let (name, name_span) = key.take().expect("the arm above takes maps without a key");
                add_entry(entries, Entry { name, name_span, value: node }, names_consumers, self.findings);
            }
        }
    }

    /// Returns `true` if the keys of the innermost map are the names of consumers.
    fn names_consumers(&self) -> bool {
        match self.frames.as_slice() {
            [Frame::Map { key: Some((name, _)), .. }, Frame::Map { .. }] => name == "consumers",
            _ => false,
        }
    }

    fn refuse_anchor(&mut self, span: Span, message: &str, sign: char) {
        let hint = format!(
            "quote the value if `{sign}` is part of it; use `defaults` for values that consumers share"
        );
        self.findings.add(FindingBuilder::new(Code::Anchor, span, message).hint(hint));
        self.refused = Some(span);
    }
}

fn key_of(node: Node, findings: &mut Findings) -> (String, Span) {
    match node.data {
        Data::Scalar { text, .. } if !text.is_empty() => (text, node.span),
        Data::Broken => (String::new(), node.span),
        _ => {
            let finding =
                FindingBuilder::new(Code::InvalidKey, node.span, format!("{} cannot be a key", node.kind()));
            findings.add(finding.hint("write a key as a string, followed by a colon and a space"));
            (String::new(), node.span)
        }
    }
}

/// Adds an entry unless its key is invalid or a duplicate.
fn add_entry(entries: &mut Entries, entry: Entry, names_consumers: bool, findings: &mut Findings) {
    if entry.name.is_empty() {
        return;
    }
    if entry.name == "<<" {
        let finding = FindingBuilder::new(Code::Anchor, entry.name_span, "merge keys are not supported");
        findings.add(finding.hint("use `defaults` for values that consumers share"));
        return;
    }
    let first = match entries.places.entry(entry.name.clone()) {
        std::collections::hash_map::Entry::Occupied(first) => *first.get(),
        std::collections::hash_map::Entry::Vacant(place) => {
            place.insert(entry.name_span);
            entries.list.push(entry);
            return;
        }
    };
    let (code, message, hint) = if names_consumers {
        let message = format!("two consumers are named `{}`", entry.name);
        (Code::DuplicateConsumer, message, "rename one: each consumer has its own queue")
    } else {
        (Code::DuplicateKey, format!("duplicate key `{}`", entry.name), "remove one of them")
    };
    let finding = FindingBuilder::new(code, entry.name_span, message);
    findings.add(finding.related(first, "first defined here").hint(hint));
}

/// Converts a span to a byte range. Spans of a parser over a string always have one.
fn range(span: granit_parser::Span) -> Span {
    let range = span.byte_range().unwrap_or_default();
    Span::new(range.start, range.end)
}
