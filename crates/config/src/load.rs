//! Loads a file: decodes, parses, reads, checks rules and capabilities, and builds the configuration.

use std::sync::Arc;

use crate::capability::Capabilities;
use crate::code::Code;
use crate::diagnostic::{Diagnostics, FindingBuilder, Findings};
use crate::document::{ConsumerFields, Document};
use crate::env::Env;
use crate::merge::merged;
use crate::model::Config;
use crate::read::{Mode, Reader};
use crate::rules;
use crate::secrets;
use crate::source::{SourceText, Span};
use crate::table::{CONSUMER, Format, Kind, TOP};
use crate::text;
use crate::tree::{Data, Entry, Node, parse};
use crate::value::{Fields, Origin};

/// The maximum size of a file, in bytes.
const MAX_BYTES: usize = 1 << 20;

/// The result of checking a file.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The configuration, if there are no errors.
    pub config: Option<Config>,
    /// The errors and warnings.
    pub diagnostics: Diagnostics,
}

/// A configuration without errors.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// The warnings.
    pub warnings: Diagnostics,
}

/// Reads and checks a file. `name` is the file name shown in messages.
///
/// ```
/// use lazaret_config::{check, NoEnv};
/// let checked = check("lazaret.yaml", b"listen: 127.0.0.1:7117\n", &NoEnv);
/// assert!(checked.config.is_none());
/// assert!(checked.diagnostics.plain().contains("requires the key `consumers`"));
/// ```
pub fn check(name: &str, bytes: &[u8], env: &dyn Env) -> Checked {
    let (document, diagnostics) = read(name, bytes, env, None);
    Checked { config: document.map(Config::from_document), diagnostics }
}

/// Reads and checks a file for a build with these capabilities. Everything that prevents the
/// configuration from running is an error. All errors are reported at once.
///
/// ```
/// use lazaret_config::{load, Capabilities, Capability, Code, NoEnv};
/// let text = b"store: mongodb://127.0.0.1/lazaret\nconsumers: {}\n";
/// let embedded = Capabilities::of([Capability::StoreSqlite]);
/// let found = load("lazaret.yaml", text, &NoEnv, &embedded).unwrap_err();
/// assert_eq!(found.list()[0].code(), Code::NotInThisBuild);
/// assert_eq!(load("lazaret.yaml", text, &NoEnv, &Capabilities::all()).unwrap().warnings.warnings(), 1);
/// ```
pub fn load(name: &str, bytes: &[u8], env: &dyn Env, build: &Capabilities) -> Result<Loaded, Diagnostics> {
    let (document, diagnostics) = read(name, bytes, env, Some(build));
    match document {
        Some(document) => Ok(Loaded { config: Config::from_document(document), warnings: diagnostics }),
        None => Err(diagnostics),
    }
}

/// Reads and checks a file, for a build if one is given. Returns the document if there are no errors.
fn read(
    name: &str,
    bytes: &[u8],
    env: &dyn Env,
    build: Option<&Capabilities>,
) -> (Option<Document>, Diagnostics) {
    let mut findings = Findings::default();
    let text = match decoded(bytes, &mut findings) {
        Ok(text) => text,
        Err(lossy) => {
            return (None, findings.finish(&Arc::new(SourceText::new(name, secrets::redact(&lossy, &[])))));
        }
    };
    let root = parse(text, &mut findings);
    let (parts, shown) = match &root {
        Some(root) => {
            let mut reader =
                Reader { text, env, findings: &mut findings, secrets: Vec::new(), origins: Vec::new() };
            let parts = read_root(&mut reader, root);
            let shown = secrets::redact(text, &reader.secrets);
            (Some(parts), shown)
        }
        None => (None, secrets::redact(text, &[])),
    };
    let source = Arc::new(SourceText::new(name, shown));
    let document = parts.map(|(top, consumers)| Document { source: Arc::clone(&source), top, consumers });
    if let Some(document) = &document {
        rules::check(document, &mut findings);
        // Missing capabilities are reported together with all other errors.
        if let Some(build) = build {
            build.missing(document, &mut findings);
        }
    }
    let usable = !findings.has_errors();
    (document.filter(|_| usable), findings.finish(&source))
}

/// Decodes the file as UTF-8. Otherwise returns the part that can be shown in messages.
pub(crate) fn decoded<'a>(bytes: &'a [u8], findings: &mut Findings) -> Result<&'a str, String> {
    if bytes.len() > MAX_BYTES {
        let message = format!("the file has {} bytes, more than the limit of 1 MiB", bytes.len());
        findings.add(
            FindingBuilder::new(Code::TooLarge, Span::default(), message)
                .hint("check that this is the right file"),
        );
        let beginning = String::from_utf8_lossy(&bytes[..1024]);
        return Err(beginning.lines().next().unwrap_or_default().to_owned());
    }
    std::str::from_utf8(bytes).map_err(|error| {
        let at = error.valid_up_to();
        let hint = match bytes {
            [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "the file looks like UTF-16; save it as UTF-8",
            _ => "save the file as UTF-8",
        };
        findings.add(
            FindingBuilder::new(Code::NotUtf8, Span::new(at, at), format!("byte {at} is not UTF-8"))
                .hint(hint),
        );
        String::from_utf8_lossy(bytes).into_owned()
    })
}

/// Reads the top level and all consumers.
fn read_root(reader: &mut Reader<'_>, root: &Node) -> (Fields, Vec<ConsumerFields>) {
    let first_line = Span::new(root.span.start, root.span.start);
    let top = reader.section(&TOP, "", first_line, root, Mode::Complete);
    let Data::Map(entries) = &root.data else { return (top, Vec::new()) };
    let entry = |name: &str| entries.iter().find(|entry| entry.name == name);
    let defaults = entry("defaults");
    if let Some(defaults) = defaults {
        read_defaults(reader, defaults);
    }
    let named = entry("consumers").map(|consumers| consumers_of(reader, consumers, defaults));
    (top, named.unwrap_or_default())
}

/// Reads `defaults`. Reports invalid values, and marks the origin of the others.
pub(crate) fn read_defaults(reader: &mut Reader<'_>, defaults: &Entry) {
    let span = Span::new(defaults.name_span.start, defaults.value.span.end);
    reader.origins.push((span, Origin::Defaults));
    reader.section(&CONSUMER, "defaults", defaults.name_span, &defaults.value, Mode::Partial);
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
            let finding = FindingBuilder::new(Code::WrongType, consumers.value.span, message);
            reader.findings.add(
                finding.hint("write a name with a colon, and the keys of the consumer indented below it"),
            );
            return Vec::new();
        }
    };
    if entries.is_empty() {
        let finding = FindingBuilder::new(Code::NoConsumers, consumers.name_span, "no consumers configured");
        reader.findings.add(finding.hint("add a consumer below `consumers`"));
    }
    entries.iter().map(|entry| consumer(reader, entry, defaults)).collect()
}

fn consumer(reader: &mut Reader<'_>, entry: &Entry, defaults: Option<&Entry>) -> ConsumerFields {
    if let Err(bad) = text::parse(Format::Name, &entry.name) {
        let finding = FindingBuilder::new(bad.code, entry.name_span, format!("`{}` {}", entry.name, bad.why));
        reader.findings.add(finding.hint(bad.hint.unwrap_or_else(|| "choose a name".to_owned())));
    }
    let node = match defaults {
        Some(defaults) => merged(&CONSUMER, &entry.value, &defaults.value),
        None => entry.value.clone(),
    };
    let fields = reader.section(&CONSUMER, &entry.name, entry.name_span, &node, Mode::Complete);
    ConsumerFields { name: entry.name.clone(), name_span: entry.name_span, fields }
}
