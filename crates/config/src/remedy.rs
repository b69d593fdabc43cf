//! What to write in place of a value that cannot be, where nothing better is known about it.

use crate::scalar::typed;
use crate::table::{Form, Key, Kind, Preset, Section, either};
use crate::tree::{Data, Node};

/// How many keys of a section are named.
const NAMED: usize = 6;

/// What to do about a single value that does not fit its key.
pub(crate) fn of_scalar(key: &Key, kind: &Kind) -> String {
    if !key.remedy.is_empty() {
        return key.remedy.to_owned();
    }
    let what = match kind.inner() {
        Kind::Flag => return format!("write `true` or `false`{}", leave_out(key)),
        Kind::Count { least, most } if *most >= u64::from(u32::MAX) => {
            format!("a whole number of at least {least}")
        }
        Kind::Count { least, most } => format!("a whole number from {least} to {most}"),
        Kind::Number { least, most, above: true } => format!("a number above {least}, {most} at most"),
        Kind::Number { least, most, above: false } => format!("a number from {least} to {most}"),
        Kind::Jitter => "a number from 0 to 1".to_owned(),
        Kind::Duration { zero: false } => "a duration above 0".to_owned(),
        Kind::Duration { zero: true } => "a duration".to_owned(),
        Kind::Size { .. } => "a size".to_owned(),
        Kind::Rate => "a rate".to_owned(),
        Kind::Text(form) => of_form(*form).to_owned(),
        kind => kind.expected(),
    };
    let example = example(key, kind).map_or_else(String::new, |example| format!(", as in `{example}`"));
    format!("write {what}{example}{}", leave_out(key))
}

/// What a list must have that has too little.
pub(crate) fn of_empty_list(key: &Key, of: &Kind) -> String {
    let example = match (key.preset, of) {
        (Preset::Is(list), _) if list.len() > 2 => Some(list.to_owned()),
        (_, Kind::Choice(words)) => words.first().map(|word| format!("[{}]", word.0)),
        _ if key.example.is_empty() => None,
        _ => Some(format!("[{}]", key.example)),
    };
    let example = example.unwrap_or_else(|| "[…]".to_owned());
    format!("name at least one: `{}: {example}`{}", key.name, leave_out(key))
}

/// What to do about a value of another shape: a list where one value belongs, a word where a section belongs.
pub(crate) fn of_shape(kind: &Kind, name: &str, key: Option<&Key>, node: &Node) -> String {
    match (kind, &node.data) {
        (Kind::List { .. }, Data::Scalar { text, .. }) if !text.contains([',', ':', '$']) => {
            let words: Vec<_> = text.split_whitespace().collect();
            format!("write `[{}]`", words.join(", "))
        }
        (Kind::List { .. }, Data::Scalar { .. }) => "put it in brackets: `[…]`".to_owned(),
        (Kind::List { of, .. }, _) => match of.section() {
            Some(section) => format!("it is a list: begin each with a dash, as in `- {}`", pattern(section)),
            None => "write a list: `[a, b]`".to_owned(),
        },
        (Kind::Section(_) | Kind::Partial(_), Data::List(_)) => "write the keys without dashes".to_owned(),
        (Kind::Or(word, _), Data::Scalar { text, .. }) if text == "true" => {
            let is_off = key.is_some_and(|key| key.preset == Preset::Is(word));
            if is_off {
                format!("write `{name}: {{}}` to have it with its defaults; without the key there is none")
            } else {
                format!("remove the key to have it as it is by default, or write `{word}` to have none")
            }
        }
        (Kind::Or(word, inner), Data::Scalar { text, .. }) => {
            let keys = inner.section().map_or_else(String::new, |section| keys(section, name, text));
            format!("write `{word}` to have none, or {keys}")
        }
        (Kind::Section(_) | Kind::Partial(_), Data::Scalar { text, .. })
            if text.contains(':') && !text.contains("://") =>
        {
            "put a space after the colon: `key: value`".to_owned()
        }
        (Kind::OneOf(section), _) => {
            let names: Vec<_> = section.names().map(|name| format!("`{name}`")).collect();
            format!("choose {} below it, as in `{name}: {{ {}: … }}`", either(&names), first(section))
        }
        (Kind::Section(section) | Kind::Partial(section), Data::Scalar { text, .. }) => {
            keys(section, name, text)
        }
        (Kind::Map { .. }, _) => format!("write names with their values: `{name}: {{ NAME: VALUE }}`"),
        (kind, Data::List(items)) if items.len() == 1 && kind.section().is_none() => {
            "write it without brackets or dash".to_owned()
        }
        (kind, _) => key.map_or_else(|| format!("write {}", kind.expected()), |key| of_scalar(key, kind)),
    }
}

/// How the keys of a section are written: with the one that this value may be meant for, or those that there are.
fn keys(section: &'static Section, name: &str, text: &str) -> String {
    let is_value = |key: &&'static Key| {
        let kind = key.kind.inner();
        let has_form = !matches!(kind, Kind::Text(_) | Kind::Any) && key.kind.section().is_none();
        has_form
            && !matches!(kind, Kind::List { .. } | Kind::Map { .. })
            && typed(kind, text, key.name).is_ok()
    };
    if name.is_empty() {
        return "a configuration has keys, such as `consumers:`; `lazaret init` writes one to begin with"
            .to_owned();
    }
    match section.keys.iter().find(is_value) {
        Some(key) => format!("write its keys, as in `{name}: {{ {}: {text} }}`", key.name),
        None => {
            let required = section.keys.iter().filter(|key| key.preset == Preset::Required);
            let others = section.keys.iter().filter(|key| key.preset != Preset::Required);
            let names: Vec<_> =
                required.chain(others).take(NAMED).map(|key| format!("`{}`", key.name)).collect();
            let more = if section.keys.len() > NAMED { " and so on" } else { "" };
            format!("write its keys below it: {}{more}", names.join(", "))
        }
    }
}

/// A section with what it cannot do without: `{ when: …, then: … }`.
fn pattern(section: &Section) -> String {
    let required = section.keys.iter().filter(|key| key.preset == Preset::Required);
    let parts: Vec<_> = required.map(|key| format!("{}: …", key.name)).collect();
    format!("{{ {} }}", parts.join(", "))
}

fn first(section: &Section) -> &'static str {
    section.names().next().unwrap_or("KEY")
}

/// What a value of this key may look like.
fn example(key: &Key, kind: &Kind) -> Option<&'static str> {
    match (key.preset, kind.inner()) {
        _ if !key.example.is_empty() => Some(key.example),
        (Preset::Is(text), _) if !matches!(text, "unlimited" | "off") && !text.starts_with(['[', '{']) => {
            Some(text)
        }
        (_, Kind::Duration { .. }) => Some("30s"),
        (_, Kind::Size { .. }) => Some("64KiB"),
        (_, Kind::Rate) => Some("50/s"),
        _ => None,
    }
}

/// That the key can be left out, if it can.
fn leave_out(key: &Key) -> &'static str {
    if key.preset == Preset::Required { "" } else { ", or remove the key" }
}

/// What a text of this form is.
pub(crate) fn of_form(form: Form) -> &'static str {
    match form {
        Form::Path => "a path",
        Form::Name => "a name",
        Form::Url | Form::MongoUri => "a URL",
        Form::Address => "a host and a port",
        Form::Brokers => "hosts and ports, separated by commas",
        Form::Host => "the name of a host",
        Form::Store => "a store",
        Form::Reason => "a reason code in upper case",
        Form::Glob => "a name, in which `*` stands for any text",
        Form::Regex => "a regular expression",
        Form::Comparison => "a comparison",
        Form::Cron => "a schedule in cron notation",
        Form::Sequence => "a sequence rule",
        Form::Topic => "the name of a topic",
        Form::HeaderName => "the name of a header",
        Form::HeaderValue => "a text on one line",
        Form::EnvName => "a name without `=`",
        Form::Property => "the name of a property",
        Form::Fingerprint | Form::Hash | Form::Time | Form::Free | Form::Line => "a text",
    }
}
