//! A whole file, read: what stands at its top, and its consumers with what they take from `defaults`.

use std::sync::Arc;

use crate::capability::Capabilities;
use crate::code::Code;
use crate::diagnostic::{Diagnostics, Findings, Trouble};
use crate::env::Env;
use crate::forms;
use crate::merge::merged;
use crate::read::{Mode, Reader};
use crate::rules;
use crate::secrets;
use crate::source::{SourceText, Span};
use crate::table::{CONSUMER, Form, Kind, TOP};
use crate::tree::{Data, Entry, Node, parse};
use crate::value::Fields;

/// The largest file that is read.
const LARGEST: usize = 1 << 20;

/// A file with all its values.
#[derive(Debug)]
pub(crate) struct Document {
    pub(crate) source: Arc<SourceText>,
    pub(crate) top: Fields,
    pub(crate) consumers: Vec<ConsumerFields>,
}

/// A consumer with its values.
#[derive(Debug)]
pub(crate) struct ConsumerFields {
    pub(crate) name: String,
    pub(crate) name_span: Span,
    pub(crate) fields: Fields,
}

/// Reads and checks a file, and for a build that has these parts only. There is a document when there are no errors.
pub(crate) fn read(
    name: &str,
    bytes: &[u8],
    env: &dyn Env,
    build: Option<&Capabilities>,
) -> (Option<Document>, Diagnostics) {
    let mut findings = Findings::default();
    let text = match decoded(bytes, &mut findings) {
        Ok(text) => text,
        Err(lossy) => {
            return (None, findings.finish(&Arc::new(SourceText::new(name, secrets::painted(&lossy, &[])))));
        }
    };
    let root = parse(text, &mut findings);
    let (parts, painted) = match &root {
        Some(root) => {
            let mut reader =
                Reader { text, env, findings: &mut findings, secrets: Vec::new(), defaults: None };
            let parts = whole(&mut reader, root);
            let painted = secrets::painted(text, &reader.secrets);
            (Some(parts), painted)
        }
        None => (None, secrets::painted(text, &[])),
    };
    let source = Arc::new(SourceText::new(name, painted));
    let document = parts.map(|(top, consumers)| Document { source: Arc::clone(&source), top, consumers });
    if let Some(document) = &document {
        rules::check(document, &mut findings);
        // What a build does not have is told whatever else is wrong: nobody wants to hear of it last.
        if let Some(build) = build {
            build.missing(document, &mut findings);
        }
    }
    let usable = !findings.has_errors();
    (document.filter(|_| usable), findings.finish(&source))
}

/// The text of a file, or what can be shown of one that is none.
fn decoded<'a>(bytes: &'a [u8], findings: &mut Findings) -> Result<&'a str, String> {
    if bytes.len() > LARGEST {
        let message = format!("the file has {} bytes; at most 1 MiB is read", bytes.len());
        findings.add(Trouble::new(Code::TooLarge, Span::default(), message).hint("is this the right file?"));
        let beginning = String::from_utf8_lossy(&bytes[..1024]);
        return Err(beginning.lines().next().unwrap_or_default().to_owned());
    }
    std::str::from_utf8(bytes).map_err(|error| {
        let at = error.valid_up_to();
        let hint = match bytes {
            [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "it looks like UTF-16; save it as UTF-8",
            _ => "save the file as UTF-8",
        };
        findings.add(
            Trouble::new(Code::NotText, Span::new(at, at), format!("byte {at} is not UTF-8")).hint(hint),
        );
        String::from_utf8_lossy(bytes).into_owned()
    })
}

fn whole(reader: &mut Reader<'_>, root: &Node) -> (Fields, Vec<ConsumerFields>) {
    let first_line = Span::new(root.span.start, root.span.start);
    let top = reader.section(&TOP, "", first_line, root, Mode::Whole);
    let Data::Map(entries) = &root.data else { return (top, Vec::new()) };
    let entry = |name: &str| entries.iter().find(|entry| entry.name == name);
    let defaults = entry("defaults");
    if let Some(defaults) = defaults {
        reader.defaults = Some(Span::new(defaults.name_span.start, defaults.value.span.end));
        reader.section(&CONSUMER, "defaults", defaults.name_span, &defaults.value, Mode::Partial);
    }
    let named = entry("consumers").map(|consumers| consumers_of(reader, consumers, defaults));
    (top, named.unwrap_or_default())
}

fn consumers_of(reader: &mut Reader<'_>, consumers: &Entry, defaults: Option<&Entry>) -> Vec<ConsumerFields> {
    let entries = match &consumers.value.data {
        Data::Map(entries) => entries.as_slice(),
        Data::Null => &[],
        Data::Broken => return Vec::new(),
        _ => {
            let message = format!(
                "`consumers` must be {}, not {}",
                Kind::Named(&CONSUMER).expected(),
                consumers.value.kind()
            );
            let finding = Trouble::new(Code::WrongType, consumers.value.span, message);
            reader
                .findings
                .add(finding.hint("write a name with a colon, and the keys of the consumer below it"));
            return Vec::new();
        }
    };
    if entries.is_empty() {
        let finding = Trouble::new(Code::NothingToRun, consumers.name_span, "there are no consumers");
        reader.findings.add(finding.hint("add one below `consumers`"));
    }
    entries.iter().map(|entry| consumer(reader, entry, defaults)).collect()
}

fn consumer(reader: &mut Reader<'_>, entry: &Entry, defaults: Option<&Entry>) -> ConsumerFields {
    if let Err(bad) = forms::read(Form::Name, &entry.name) {
        let finding = Trouble::new(bad.code, entry.name_span, format!("`{}` {}", entry.name, bad.why));
        reader.findings.add(finding.hint(bad.hint.unwrap_or_else(|| "give it a name".to_owned())));
    }
    let node = match defaults {
        Some(defaults) => merged(&CONSUMER, &entry.value, &defaults.value),
        None => entry.value.clone(),
    };
    let fields = reader.section(&CONSUMER, &entry.name, entry.name_span, &node, Mode::Whole);
    ConsumerFields { name: entry.name.clone(), name_span: entry.name_span, fields }
}
