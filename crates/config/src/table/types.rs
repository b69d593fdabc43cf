//! The types of the table: sections, keys, kinds and formats.

/// A section and its keys.
#[derive(Debug)]
pub(crate) struct Section {
    /// The name in the schema.
    pub(crate) name: &'static str,
    /// The description.
    pub(crate) doc: &'static str,
    /// The keys, in display order.
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
    pub(crate) default: DefaultValue,
    pub(crate) doc: &'static str,
    /// Whether the value must not be shown.
    pub(crate) secret: bool,
    /// How a change is applied. `None` inherits from the section.
    pub(crate) reload: Option<Reload>,
    /// An example value. Empty if there is none.
    pub(crate) example: &'static str,
    /// The hint for an invalid value. If empty, the default hint applies.
    pub(crate) hint: &'static str,
}

/// The value of a key that is not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DefaultValue {
    /// The key is required.
    Required,
    /// No value. The text describes the meaning.
    Absent(&'static str),
    /// This value, as written in a file.
    Literal(&'static str),
}

/// How a changed value is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Reload {
    /// Applied by a reload.
    Live,
    /// Applied by a restart of the process.
    Restart,
}

/// The kind of a value.
#[derive(Debug)]
pub(crate) enum Kind {
    /// `true` or `false`.
    Flag,
    /// A whole number.
    Count { min: u64, max: u64 },
    /// A number. `exclusive` excludes the minimum.
    Number { min: f64, max: f64, exclusive: bool },
    /// A fraction, `true` for 0.2, or `false` for none.
    Jitter,
    /// A duration. `zero` allows 0.
    Duration { zero: bool },
    /// A size in bytes, with a minimum.
    Size { min: u64 },
    /// A rate above 0.
    Rate,
    /// A string with a format.
    Text(Format),
    /// One of these values.
    Enum(&'static [EnumValue]),
    /// Any YAML value.
    Any,
    /// A list with a minimum number of items.
    List { of: &'static Kind, min: usize },
    /// Entries with user-defined names of a format, and values.
    Map { names: Format, of: &'static Kind },
    /// A section with keys.
    Section(&'static Section),
    /// A section without required keys: `defaults`.
    Partial(&'static Section),
    /// A section with exactly one key set.
    OneOf(&'static Section),
    /// Sections with user-defined names.
    Named(&'static Section),
    /// A keyword for "none", or a value.
    Or(&'static str, &'static Kind),
}

/// An allowed value and its description.
#[derive(Debug)]
pub(crate) struct EnumValue(pub(crate) &'static str, pub(crate) &'static str);

/// The format of a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Any string.
    Free,
    /// Any non-empty string.
    Line,
    /// The name of a consumer or a token.
    Name,
    /// A path.
    Path,
    /// `http://…` or `https://…`.
    Url,
    /// `mongodb://…`.
    MongoUri,
    /// `postgres://…`.
    PostgresUrl,
    /// `host:port`.
    Address,
    /// `host:port,host:port`.
    Brokers,
    /// A host name, with or without a port.
    Host,
    /// A network of addresses, or one address.
    Network,
    /// The location of the store.
    Store,
    /// The name of a MongoDB collection.
    Collection,
    /// A reason code.
    Reason,
    /// A reason code, or the type of an error.
    Failure,
    /// A name with `*` as wildcard.
    Glob,
    /// A regular expression.
    Regex,
    /// A comparison with a count.
    Comparison,
    /// A status or exit code, or a class or range of codes.
    Status,
    /// A schedule in cron notation.
    Cron,
    /// A sequence rule.
    Sequence,
    /// A path into a JSON payload.
    PayloadPath,
    /// The fingerprint of a failure.
    Fingerprint,
    /// A pattern of a grouping rule.
    GroupPattern,
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
        let default = DefaultValue::Absent("none");
        Self { name, kind, default, doc, secret: false, reload: None, example: "", hint: "" }
    }

    /// Makes the key required.
    pub(crate) const fn required(self) -> Self {
        Self { default: DefaultValue::Required, ..self }
    }

    /// Sets the default.
    pub(crate) const fn or(self, text: &'static str) -> Self {
        Self { default: DefaultValue::Literal(text), ..self }
    }

    /// Describes the meaning of an absent key.
    pub(crate) const fn absent(self, meaning: &'static str) -> Self {
        Self { default: DefaultValue::Absent(meaning), ..self }
    }

    /// Hides the value in output.
    pub(crate) const fn secret(self) -> Self {
        Self { secret: true, ..self }
    }

    /// Lets a reload apply a change.
    pub(crate) const fn live(self) -> Self {
        Self { reload: Some(Reload::Live), ..self }
    }

    /// Requires a restart for a change.
    pub(crate) const fn restart(self) -> Self {
        Self { reload: Some(Reload::Restart), ..self }
    }

    /// Sets an example value.
    pub(crate) const fn example(self, example: &'static str) -> Self {
        Self { example, ..self }
    }

    /// Returns the name and the meaning of an absent key, if its absence has a meaning.
    pub(crate) fn absence(&self) -> Option<(&'static str, &'static str)> {
        match self.default {
            DefaultValue::Absent(meaning) if meaning != "none" => Some((self.name, meaning)),
            _ => None,
        }
    }

    /// Sets the hint for an invalid value.
    pub(crate) const fn hint(self, hint: &'static str) -> Self {
        Self { hint, ..self }
    }
}

impl Kind {
    /// Returns the nested section, however deeply it is wrapped.
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

    /// Returns the kind without keywords for "none".
    pub(crate) fn inner(&self) -> &Self {
        match self {
            Self::Or(_, kind) => kind.inner(),
            kind => kind,
        }
    }

    /// Describes the expected value for messages.
    pub(crate) fn expected(&self) -> String {
        match self {
            Self::Flag => "true or false".to_owned(),
            Self::Count { .. } => "a whole number".to_owned(),
            Self::Number { .. } => "a number".to_owned(),
            Self::Jitter => "a number between 0 and 1, true or false".to_owned(),
            Self::Duration { .. } => "a duration such as `500ms`".to_owned(),
            Self::Size { .. } => "a size such as `64KiB`".to_owned(),
            Self::Rate => "a rate such as `50/s`".to_owned(),
            Self::Text(_) => "a string".to_owned(),
            Self::Enum(words) => {
                let words: Vec<_> = words.iter().map(|word| format!("`{}`", word.0)).collect();
                either(&words)
            }
            Self::Any => "a value".to_owned(),
            Self::List { .. } => "a list".to_owned(),
            Self::Map { .. } => "a map of names to values".to_owned(),
            Self::Section(_) | Self::Partial(_) | Self::OneOf(_) => "a section with keys".to_owned(),
            Self::Named(_) => "a map of names to sections".to_owned(),
            Self::Or(word, kind) => format!("{}, or `{word}`", kind.expected()),
        }
    }
}

/// Joins alternatives, as in "a, b or c".
pub(crate) fn either(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}
