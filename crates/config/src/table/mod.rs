//! The table of keys: the one place that says what may stand in a configuration file.
//!
//! The reader, the JSON Schema, the reference for users, the effective configuration and the reload all go by it, so that
//! none of them can say something that the others do not.

mod consumer;
mod io;
mod top;

pub(crate) use consumer::CONSUMER;
pub(crate) use top::TOP;

/// What a section may hold.
#[derive(Debug)]
pub(crate) struct Section {
    /// Its name in the schema.
    pub(crate) name: &'static str,
    /// What it is for.
    pub(crate) doc: &'static str,
    /// Its keys, in the order in which they are shown.
    pub(crate) keys: &'static [Key],
}

impl Section {
    pub(crate) fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.name == name)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.keys.iter().map(|key| key.name)
    }
}

/// One key of a section.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) preset: Preset,
    pub(crate) doc: &'static str,
    /// Whether its value must not be shown.
    pub(crate) secret: bool,
    /// What a change of it needs; `None` is what the section needs.
    pub(crate) reload: Option<Reload>,
    /// What stands in the schema as an example; empty for none.
    pub(crate) example: &'static str,
    /// What to do about a value that cannot be; empty for what its kind says.
    pub(crate) remedy: &'static str,
}

/// What holds when a key is not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Preset {
    /// It must be given.
    Required,
    /// Nothing, and the text says what that means.
    Absent(&'static str),
    /// This value, written as in a file.
    Is(&'static str),
}

/// What a changed value needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reload {
    /// It is taken over while the consumer runs.
    Live,
    /// The consumer, or the process, has to be started again.
    Restart,
}

/// What a value is.
#[derive(Debug)]
pub(crate) enum Kind {
    /// `true` or `false`.
    Flag,
    /// A whole number.
    Count { least: u64, most: u64 },
    /// A number; `above` means that the least is not allowed itself.
    Number { least: f64, most: f64, above: bool },
    /// A share, or `true` for 0.2, or `false` for none.
    Jitter,
    /// A duration; whether it may be 0.
    Duration { zero: bool },
    /// A size in bytes, at least this.
    Size { least: u64 },
    /// A rate above 0.
    Rate,
    /// A text of some form.
    Text(Form),
    /// One of these words.
    Choice(&'static [Word]),
    /// Anything that YAML can hold.
    Any,
    /// A list with at least so many items.
    List { of: &'static Kind, least: usize },
    /// Names that the user makes up, of some form, and values.
    Map { names: Form, of: &'static Kind },
    /// A section with its own keys.
    Section(&'static Section),
    /// The same, in which nothing is required: `defaults`.
    Partial(&'static Section),
    /// A section of which exactly one key is given.
    OneOf(&'static Section),
    /// Sections with names that the user makes up.
    Named(&'static Section),
    /// This word for none, or a value.
    Or(&'static str, &'static Kind),
}

/// A word that is possible, and what it means.
#[derive(Debug)]
pub(crate) struct Word(pub(crate) &'static str, pub(crate) &'static str);

/// The form of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Any text.
    Free,
    /// Any text but an empty one.
    Line,
    /// The name of a consumer or a token.
    Name,
    /// A path.
    Path,
    /// `http://…` or `https://…`.
    Url,
    /// `mongodb://…`.
    MongoUri,
    /// `host:port`.
    Address,
    /// `host:port,host:port`.
    Brokers,
    /// The name of a host, perhaps with a port.
    Host,
    /// Where letters are kept.
    Store,
    /// A reason code.
    Reason,
    /// A name in which `*` stands for any text.
    Glob,
    /// A regular expression.
    Regex,
    /// A condition on a count.
    Comparison,
    /// Times in cron notation.
    Cron,
    /// How messages find their sequence.
    Sequence,
    /// The fingerprint of a failure.
    Fingerprint,
    /// The name of an HTTP header.
    HeaderName,
    /// The value of an HTTP header.
    HeaderValue,
    /// The name of an environment variable.
    EnvName,
    /// The name of a Kafka topic.
    Topic,
    /// The name of a property of the Kafka client.
    Property,
    /// `sha256:` and 64 hexadecimal digits.
    Hash,
    /// A time in RFC 3339.
    Time,
}

impl Key {
    pub(crate) const fn new(name: &'static str, kind: Kind, doc: &'static str) -> Self {
        let preset = Preset::Absent("none");
        Self { name, kind, preset, doc, secret: false, reload: None, example: "", remedy: "" }
    }

    /// Without it there is an error.
    pub(crate) const fn required(self) -> Self {
        Self { preset: Preset::Required, ..self }
    }

    /// Without it, this value holds.
    pub(crate) const fn or(self, text: &'static str) -> Self {
        Self { preset: Preset::Is(text), ..self }
    }

    /// Without it, what is meant is this, in words.
    pub(crate) const fn absent(self, meaning: &'static str) -> Self {
        Self { preset: Preset::Absent(meaning), ..self }
    }

    /// Its value is not shown.
    pub(crate) const fn secret(self) -> Self {
        Self { secret: true, ..self }
    }

    /// It can change while the consumer runs.
    pub(crate) const fn live(self) -> Self {
        Self { reload: Some(Reload::Live), ..self }
    }

    /// It cannot change while the consumer runs.
    pub(crate) const fn restart(self) -> Self {
        Self { reload: Some(Reload::Restart), ..self }
    }

    pub(crate) const fn example(self, example: &'static str) -> Self {
        Self { example, ..self }
    }

    /// What to do about a value that cannot be.
    pub(crate) const fn remedy(self, remedy: &'static str) -> Self {
        Self { remedy, ..self }
    }
}

impl Kind {
    /// The section inside, however it is wrapped.
    pub(crate) fn section(&self) -> Option<&'static Section> {
        match self {
            Self::Section(section) | Self::Partial(section) | Self::OneOf(section) | Self::Named(section) => {
                Some(section)
            }
            Self::Or(_, kind) => kind.section(),
            Self::List { of, .. } => of.section(),
            _ => None,
        }
    }

    /// The kind behind the words for none.
    pub(crate) fn inner(&self) -> &Self {
        match self {
            Self::Or(_, kind) => kind.inner(),
            kind => kind,
        }
    }

    /// What is expected, in words that follow "expected".
    pub(crate) fn expected(&self) -> String {
        match self {
            Self::Flag => "true or false".to_owned(),
            Self::Count { .. } => "a whole number".to_owned(),
            Self::Number { .. } => "a number".to_owned(),
            Self::Jitter => "a number between 0 and 1, true or false".to_owned(),
            Self::Duration { .. } => "a duration such as `500ms`".to_owned(),
            Self::Size { .. } => "a size such as `64KiB`".to_owned(),
            Self::Rate => "a rate such as `50/s`".to_owned(),
            Self::Text(_) => "a text".to_owned(),
            Self::Choice(words) => {
                let words: Vec<_> = words.iter().map(|word| format!("`{}`", word.0)).collect();
                either(&words)
            }
            Self::Any => "a value".to_owned(),
            Self::List { .. } => "a list".to_owned(),
            Self::Map { .. } => "names and values".to_owned(),
            Self::Section(_) | Self::Partial(_) | Self::OneOf(_) => "a section with keys".to_owned(),
            Self::Named(_) => "names, each with a section".to_owned(),
            Self::Or(word, kind) => format!("{}, or `{word}`", kind.expected()),
        }
    }
}

/// "a, b or c".
pub(crate) fn either(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

/// All sections that can be reached from one, each with its path, parents first. `*` stands for a name.
pub(crate) fn sections() -> Vec<(String, &'static Section)> {
    let mut found = Vec::new();
    collect(&TOP, "", &mut found);
    found
}

fn collect(section: &'static Section, path: &str, found: &mut Vec<(String, &'static Section)>) {
    found.push((path.to_owned(), section));
    for key in section.keys {
        // `defaults` holds what a consumer holds.
        if matches!(key.kind, Kind::Partial(_)) {
            continue;
        }
        let Some(inner) = key.kind.section() else { continue };
        let dot = if path.is_empty() { "" } else { "." };
        let below = match key.kind.inner() {
            Kind::Named(_) => ".NAME",
            Kind::List { .. } => "[]",
            _ => "",
        };
        collect(inner, &format!("{path}{dot}{}{below}", key.name), found);
    }
}

/// Where a key that does not exist here does exist.
pub(crate) fn elsewhere(here: &'static Section, name: &str) -> Option<String> {
    let sections = sections();
    let found = sections.iter().filter(|(_, section)| !std::ptr::eq(*section, here));
    // The nearest section below comes first, then any other.
    let below = |section: &&'static Section| {
        here.keys.iter().any(|key| key.kind.section().is_some_and(|s| std::ptr::eq(s, *section)))
    };
    let mut places: Vec<_> = found.filter(|(_, section)| section.key(name).is_some()).collect();
    places.sort_by_key(|(path, section)| (!below(section), path.len()));
    let (path, _) = places.first()?;
    Some(match path.as_str() {
        "" => format!("`{name}` belongs at the top of the file"),
        path => format!("`{name}` belongs into `{path}`"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_kebab_case_and_documented() {
        for (path, section) in sections() {
            let mut names: Vec<_> = section.names().collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), section.keys.len(), "{path} has a key twice");
            for key in section.keys {
                let kebab =
                    key.name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
                assert!(kebab, "{path}.{}", key.name);
                assert!(key.doc.ends_with('.'), "{path}.{} has no doc", key.name);
            }
        }
    }
}
