//! What changed between two configurations, and what can be taken over by a running process.

use std::collections::BTreeMap;
use std::fmt;

use crate::effective::shown;
use crate::model::Config;
use crate::table::Reload;
use crate::value::{Field, Fields, Value};

/// What changed.
///
/// ```
/// use lazaret_config::{check, diff, NoEnv, Reload};
/// let read = |attempts: u32, store: &str| {
///     let text = format!("
/// store: {store}
/// consumers:
///   orders:
///     source: {{ inbox: {{}} }}
///     handler: {{ command: {{ program: [./handle] }} }}
///     retry: {{ max-attempts: {attempts} }}
/// ");
///     check("lazaret.yaml", text.as_bytes(), &NoEnv).config.unwrap()
/// };
/// let changed = diff(&read(3, "sqlite:a.db"), &read(5, "sqlite:a.db"));
/// assert_eq!(changed.changes[0].to_string(), "consumers.orders.retry.max-attempts: 3 -> 5 (live)");
/// assert!(!changed.needs_restart());
/// assert!(diff(&read(3, "sqlite:a.db"), &read(3, "sqlite:b.db")).needs_restart());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diff {
    /// The changes, by path.
    pub changes: Vec<Change>,
}

impl Diff {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Whether one of the changes needs a restart.
    pub fn needs_restart(&self) -> bool {
        self.changes.iter().any(|change| change.reload == Reload::Restart)
    }

    /// The changes that can be taken over as they are.
    pub fn live(&self) -> impl Iterator<Item = &Change> {
        self.changes.iter().filter(|change| change.reload == Reload::Live)
    }

    /// Those that cannot.
    pub fn restart(&self) -> impl Iterator<Item = &Change> {
        self.changes.iter().filter(|change| change.reload == Reload::Restart)
    }
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The key, from the top of the file: `consumers.orders.retry.hold`.
    pub path: String,
    /// The consumer that it is about; `None` for what is about all.
    pub consumer: Option<String>,
    /// What happened to it.
    pub what: What,
    /// What it needs.
    pub reload: Reload,
}

/// What happened to a key. Values are as they are written; secrets are not shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// It has a value that it did not have.
    Added(String),
    /// It has a value no more.
    Removed(String),
    /// It has another value.
    Changed {
        /// The old value.
        from: String,
        /// The new one.
        to: String,
    },
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path)?;
        match &self.what {
            What::Added(value) => write!(f, "+ {value}")?,
            What::Removed(value) => write!(f, "- {value}")?,
            // Only the environment changed, or the secret.
            What::Changed { from, to } if from == to => write!(f, "{to} has another value")?,
            What::Changed { from, to } => write!(f, "{from} -> {to}")?,
        }
        write!(f, " ({})", if self.reload == Reload::Live { "live" } else { "restart" })
    }
}

/// Says what changed from one configuration to another.
///
/// Policies can be taken over live: retry (but not its strategy), classify, breaker, fuse, poison, dead-letter, replay, and the
/// settings of a handler. Sources, stores, addresses, order and sequences need a restart, and so does a consumer that comes or
/// goes.
pub fn diff(old: &Config, new: &Config) -> Diff {
    let (old, new) = (leaves(old), leaves(new));
    let mut changes = Vec::new();
    for (path, was) in &old {
        let what = match new.get(path) {
            None => What::Removed(was.shown.clone()),
            Some(is) if is.value != was.value => {
                What::Changed { from: was.shown.clone(), to: is.shown.clone() }
            }
            Some(_) => continue,
        };
        changes.push(was.change(path, what));
    }
    for (path, is) in new.iter().filter(|(path, _)| !old.contains_key(*path)) {
        changes.push(is.change(path, What::Added(is.shown.clone())));
    }
    // A consumer that comes or goes is one change, not one for each of its keys.
    let whole: Vec<_> = changes
        .iter()
        .filter(|change| change.is_consumer())
        .map(|change| format!("{}.", change.path))
        .collect();
    changes.retain(|change| !whole.iter().any(|prefix| change.path.starts_with(prefix)));
    changes.sort_by(|a, b| a.path.cmp(&b.path));
    Diff { changes }
}

impl Change {
    fn is_consumer(&self) -> bool {
        self.consumer.as_ref().is_some_and(|name| self.path == format!("consumers.{name}"))
    }
}

/// A value that has no values inside.
struct Leaf {
    /// For comparing: what holds, with variables put in.
    value: String,
    shown: String,
    reload: Reload,
    consumer: Option<String>,
}

impl Leaf {
    fn change(&self, path: &str, what: What) -> Change {
        Change { path: path.to_owned(), consumer: self.consumer.clone(), what, reload: self.reload }
    }
}

fn leaves(config: &Config) -> BTreeMap<String, Leaf> {
    let mut found = BTreeMap::new();
    collect(&config.document.top, "", Reload::Restart, None, &mut found);
    for consumer in &config.document.consumers {
        let path = format!("consumers.{}", consumer.name);
        let leaf = Leaf {
            value: String::new(),
            shown: "consumer".to_owned(),
            reload: Reload::Restart,
            consumer: Some(consumer.name.clone()),
        };
        found.insert(path.clone(), leaf);
        collect(&consumer.fields, &path, Reload::Restart, Some(&consumer.name), &mut found);
    }
    found
}

fn collect(
    fields: &Fields,
    path: &str,
    reload: Reload,
    consumer: Option<&str>,
    found: &mut BTreeMap<String, Leaf>,
) {
    for (key, field) in &fields.list {
        let reload = key.reload.unwrap_or(reload);
        let dot = if path.is_empty() { "" } else { "." };
        let path = format!("{path}{dot}{}", key.name);
        if let Value::Section(inner) = &field.value {
            // That a section is there at all is a value: `breaker: off`, `kafka` and not `file`.
            let leaf = Leaf {
                value: "on".to_owned(),
                shown: "on".to_owned(),
                reload: presence(key.reload, reload),
                consumer: consumer.map(str::to_owned),
            };
            found.insert(path.clone(), leaf);
            collect(inner, &path, reload, consumer, found);
            continue;
        }
        let leaf = Leaf {
            value: canonical(field),
            shown: text(field),
            reload,
            consumer: consumer.map(str::to_owned),
        };
        found.insert(path, leaf);
    }
}

/// What it needs that a section comes or goes: what its key says, or what holds around it.
fn presence(own: Option<Reload>, around: Reload) -> Reload {
    own.unwrap_or(around)
}

fn text(field: &Field) -> String {
    match &field.value {
        Value::Nothing if field.text.is_empty() => "off".to_owned(),
        Value::List(items) => {
            let items: Vec<_> = items.iter().map(text).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Map(entries) => {
            let entries: Vec<_> =
                entries.iter().map(|(name, field)| format!("{name}: {}", text(field))).collect();
            format!("{{{}}}", entries.join(", "))
        }
        Value::Section(fields) => {
            let parts: Vec<_> =
                fields.list.iter().map(|(key, field)| format!("{}: {}", key.name, text(field))).collect();
            format!("{{{}}}", parts.join(", "))
        }
        Value::Json(json) => json.to_string(),
        _ => shown(field),
    }
}

/// The value in a form in which equal values are equal, however they are written: `60s` is `1m`.
fn canonical(field: &Field) -> String {
    match &field.value {
        Value::Nothing => "nothing".to_owned(),
        Value::List(items) => items.iter().map(|item| format!("{};", canonical(item))).collect(),
        Value::Map(entries) => {
            entries.iter().map(|(name, field)| format!("{name}={};", canonical(field))).collect()
        }
        Value::Section(fields) => {
            fields.list.iter().map(|(key, field)| format!("{}={};", key.name, canonical(field))).collect()
        }
        Value::Store(store) => format!("{store:?}{}", canonical_store(store)),
        value => format!("{value:?}"),
    }
}

/// The URL, which a store does not show by itself.
fn canonical_store(store: &crate::forms::StoreAt) -> &str {
    use crate::forms::StoreAt;
    match store {
        StoreAt::Memory => "",
        StoreAt::Sqlite(at) | StoreAt::Postgres(at) | StoreAt::Mongodb(at) => at,
    }
}
