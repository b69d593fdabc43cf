//! Default hints for invalid values, derived from the table of keys.

use crate::scalar::typed;
use crate::table::{DefaultValue, Format, Key, Kind, Section, either};
use crate::tree::{Data, Node};

/// The number of keys of a section that a hint lists.
const NAMED: usize = 6;

/// Returns the hint for an unknown key that is in no other section either.
pub(crate) fn for_unknown_key(section: &'static Section, name: &str) -> String {
    let names: Vec<_> = section.names().map(|name| format!("`{name}`")).collect();
    let names = names.join(", ");
    match section.key("properties") {
        _ if names.is_empty() => "this section has no keys".to_owned(),
        // Files for other tools write `auto-offset-reset`.
        Some(_) => {
            let property = name.replace(['-', '_'], ".");
            format!(
                "a property of the Kafka client is written `properties: {{ {property}: … }}`; the keys of this section are {names}"
            )
        }
        None => format!("the keys of this section are {names}"),
    }
}

/// Returns the hint for an invalid scalar.
pub(crate) fn for_scalar(key: &Key, kind: &Kind) -> String {
    if !key.hint.is_empty() {
        return key.hint.to_owned();
    }
    let what = match kind.inner() {
        Kind::Flag => return format!("write `true` or `false`{}", or_remove(key)),
        Kind::Count { min, max } if *max >= u64::from(u32::MAX) => {
            format!("a whole number of at least {min}")
        }
        Kind::Count { min, max } => format!("a whole number from {min} to {max}"),
        Kind::Number { min, max, exclusive: true } => format!("a number above {min}, {max} at most"),
        Kind::Number { min, max, exclusive: false } => format!("a number from {min} to {max}"),
        Kind::Jitter => "a number from 0 to 1".to_owned(),
        Kind::Duration { zero: false } => "a duration above 0".to_owned(),
        Kind::Duration { zero: true } => "a duration".to_owned(),
        Kind::Size { .. } => "a size".to_owned(),
        Kind::Rate => "a rate".to_owned(),
        Kind::Text(format) => for_format(*format).to_owned(),
        kind => kind.expected(),
    };
    let example = example(key, kind).map_or_else(String::new, |example| format!(", for example `{example}`"));
    format!("write {what}{example}{}", or_remove(key))
}

/// Returns the hint for a list with too few items.
pub(crate) fn for_empty_list(key: &Key, of: &Kind) -> String {
    let example = match (key.default, of) {
        (DefaultValue::Literal(list), _) if list.len() > 2 => Some(list.to_owned()),
        (_, Kind::Enum(words)) => words.first().map(|word| format!("[{}]", word.0)),
        _ if key.example.is_empty() => None,
        _ => Some(format!("[{}]", key.example)),
    };
    let example = example.unwrap_or_else(|| "[…]".to_owned());
    format!("add at least one item: `{}: {example}`{}", key.name, or_remove(key))
}

/// Returns the hint for a value of the wrong shape, such as a list in place of a scalar, or a scalar in
/// place of a section.
pub(crate) fn for_shape(kind: &Kind, name: &str, key: Option<&Key>, node: &Node) -> String {
    match (kind, &node.data) {
        (Kind::List { .. }, Data::Scalar { text, .. }) if !text.contains([',', ':', '$']) => {
            let words: Vec<_> = text.split_whitespace().collect();
            format!("write `[{}]`", words.join(", "))
        }
        (Kind::List { .. }, Data::Scalar { .. }) => "write a list in brackets: `[…]`".to_owned(),
        (Kind::List { of, .. }, _) => match of.section() {
            Some(section) => {
                format!("write a list: start each item with a dash, for example `- {}`", pattern(section))
            }
            None => "write a list: `[a, b]`".to_owned(),
        },
        (Kind::Section(section) | Kind::Partial(section), Data::List { items, brackets }) => {
            let are_sections = items.iter().all(|item| matches!(item.data, Data::Map(_)));
            match (are_sections && !items.is_empty(), *brackets) {
                (true, true) => "remove the brackets".to_owned(),
                (true, false) => "remove the dashes".to_owned(),
                (false, _) => keys(section, name, &node.data),
            }
        }
        (Kind::Or(word, _), Data::Scalar { text, .. }) if text == "true" => {
            let is_off = key.is_some_and(|key| key.default == DefaultValue::Literal(word));
            if is_off {
                format!(
                    "write `{name}: {{}}` to enable it with its defaults, or remove the key to disable it"
                )
            } else {
                format!("remove the key to use the default, or write `{word}` to disable it")
            }
        }
        (Kind::Or(word, inner), Data::Scalar { .. }) => {
            let keys = inner.section().map_or_else(String::new, |section| keys(section, name, &node.data));
            format!("write `{word}` to disable it, or {keys}")
        }
        (Kind::Section(_) | Kind::Partial(_), Data::Scalar { text, .. })
            if text.contains(':') && !text.contains("://") =>
        {
            "put a space after the colon: `key: value`".to_owned()
        }
        (Kind::OneOf(section), _) => {
            let names: Vec<_> = section.names().map(|name| format!("`{name}`")).collect();
            format!("choose one of {}, for example `{name}: {{ {}: … }}`", either(&names), first(section))
        }
        (Kind::Section(section) | Kind::Partial(section), Data::Scalar { .. }) => {
            keys(section, name, &node.data)
        }
        (Kind::Map { .. }, _) => format!("write names and values: `{name}: {{ NAME: VALUE }}`"),
        (kind, Data::List { items, brackets }) if items.len() == 1 && kind.section().is_none() => {
            let sign = if *brackets { "brackets" } else { "dash" };
            format!("remove the {sign}")
        }
        (kind, _) => key.map_or_else(|| format!("write {}", kind.expected()), |key| for_scalar(key, kind)),
    }
}

/// Returns the hint for a section: an example with the key that accepts this value or with the only
/// required key, or else a list of keys.
fn keys(section: &'static Section, name: &str, data: &Data) -> String {
    if name.is_empty() {
        return "write keys such as `consumers:`; `lazaret init` writes a starter file".to_owned();
    }
    let accepts = |key: &&'static Key, text: &str| {
        let kind = key.kind.inner();
        let has_form = !matches!(kind, Kind::Text(_) | Kind::Any) && key.kind.section().is_none();
        has_form
            && !matches!(kind, Kind::List { .. } | Kind::Map { .. })
            && typed(kind, text, key.name).is_ok()
    };
    if let Data::Scalar { text, .. } = data
        && let Some(key) = section.keys.iter().find(|key| accepts(key, text))
    {
        return format!("write its keys, for example `{name}: {{ {}: {text} }}`", key.name);
    }
    let required: Vec<_> = section.keys.iter().filter(|key| key.default == DefaultValue::Required).collect();
    if let [key] = required.as_slice()
        && let Some(example) = meant_value(key, data)
    {
        return format!("write its keys, for example `{name}: {{ {}: {example} }}`", key.name);
    }
    let others = section.keys.iter().filter(|key| key.default != DefaultValue::Required);
    let names: Vec<_> =
        required.into_iter().chain(others).take(NAMED).map(|key| format!("`{}`", key.name)).collect();
    let more = if section.keys.len() > NAMED { ", …" } else { "" };
    format!("write its keys below it: {}{more}", names.join(", "))
}

/// Returns how to write the value that was probably meant for this key: its own words in brackets, or an
/// example.
fn meant_value(key: &Key, data: &Data) -> Option<String> {
    if key.example.is_empty() {
        return None;
    }
    match (&key.kind, data) {
        (Kind::List { .. }, data) => {
            let words = words(data).unwrap_or_else(|| vec![key.example]);
            Some(format!("[{}]", words.join(", ")))
        }
        (Kind::Text(_), Data::Scalar { .. }) => Some(key.example.to_owned()),
        _ => None,
    }
}

/// Returns the words of a text or of a list of texts. Returns `None` if they need quotes or may not be
/// plain words.
fn words(data: &Data) -> Option<Vec<&str>> {
    let is_word =
        |text: &str| text.chars().all(|c| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '/'));
    let words: Vec<&str> = match data {
        Data::Scalar { text, .. } => text.split_whitespace().collect(),
        Data::List { items, .. } => items
            .iter()
            .map(|item| match &item.data {
                Data::Scalar { text, .. } if !text.is_empty() => Some(text.as_str()),
                _ => None,
            })
            .collect::<Option<_>>()?,
        _ => return None,
    };
    (!words.is_empty() && words.iter().all(|word| is_word(word))).then_some(words)
}

/// Returns a section with its required keys: `{ when: …, then: … }`.
fn pattern(section: &Section) -> String {
    let required = section.keys.iter().filter(|key| key.default == DefaultValue::Required);
    let parts: Vec<_> = required.map(|key| format!("{}: …", key.name)).collect();
    format!("{{ {} }}", parts.join(", "))
}

fn first(section: &Section) -> &'static str {
    section.names().next().unwrap_or("KEY")
}

/// Returns an example value of a key.
fn example(key: &Key, kind: &Kind) -> Option<&'static str> {
    match (key.default, kind.inner()) {
        _ if !key.example.is_empty() => Some(key.example),
        (DefaultValue::Literal(text), _)
            if !matches!(text, "unlimited" | "off") && !text.starts_with(['[', '{']) =>
        {
            Some(text)
        }
        (_, Kind::Duration { .. }) => Some("30s"),
        (_, Kind::Size { .. }) => Some("64KiB"),
        (_, Kind::Rate) => Some("50/s"),
        _ => None,
    }
}

/// Returns the text that suggests removing an optional key.
fn or_remove(key: &Key) -> &'static str {
    if key.default == DefaultValue::Required { "" } else { ", or remove the key" }
}

/// Describes a text with the given format.
pub(crate) fn for_format(format: Format) -> &'static str {
    match format {
        Format::Path => "a path",
        Format::Name => "a name",
        Format::Url | Format::MongoUri | Format::PostgresUrl => "a URL",
        Format::Address => "a host and a port",
        Format::Brokers => "a comma-separated list of hosts and ports",
        Format::Host => "a host name",
        Format::Network => "a network",
        Format::Store => "a store",
        Format::Collection => "the name of a collection",
        Format::Reason => "a reason code in upper case",
        Format::Failure => "a reason code in upper case, or the type of an error",
        Format::Glob => "a name with `*` as wildcard",
        Format::Regex | Format::GroupPattern => "a regular expression",
        Format::Comparison => "a comparison",
        Format::Status => "a status, a class or a range of them",
        Format::Cron => "a schedule in cron notation",
        Format::Sequence => "a sequence rule",
        Format::PayloadPath => "a JSON pointer",
        Format::Topic => "a topic name",
        Format::HeaderName => "a header name",
        Format::HeaderValue => "a single line",
        Format::EnvName => "a name without `=`",
        Format::Property => "a property name",
        Format::Fingerprint | Format::Hash | Format::Time | Format::Free | Format::Line => "a string",
    }
}
