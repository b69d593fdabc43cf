//! Compares two configurations, and determines which changes a reload applies.

use std::collections::BTreeMap;
use std::fmt;

use crate::effective::shown;
use crate::formats::StoreLocation;
use crate::model::Config;
use crate::table::Reload;
use crate::value::{Field, Fields, Value};

/// The changes between two configurations.
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
    /// The changes, ordered by path.
    pub changes: Vec<Change>,
}

impl Diff {
    /// Returns `true` if there are no changes.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Returns `true` if a change requires a restart.
    pub fn needs_restart(&self) -> bool {
        self.changes.iter().any(|change| change.reload == Reload::Restart)
    }

    /// Returns the changes that a reload applies.
    pub fn live(&self) -> impl Iterator<Item = &Change> {
        self.changes.iter().filter(|change| change.reload == Reload::Live)
    }

    /// Returns the changes that require a restart.
    pub fn restart(&self) -> impl Iterator<Item = &Change> {
        self.changes.iter().filter(|change| change.reload == Reload::Restart)
    }
}

/// A change of one key, section or consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The path of the key: `consumers.orders.retry.hold`.
    pub path: String,
    /// The consumer, or `None` for a key of the top level.
    pub consumer: Option<String>,
    /// The kind of the change, with its values.
    pub kind: ChangeKind,
    /// How the change is applied.
    pub reload: Reload,
}

/// The kind of a change. Values are as written in the file, with secrets redacted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChangeKind {
    /// The value was added.
    Added(String),
    /// The value was removed.
    Removed(String),
    /// The value changed.
    Changed {
        /// The old value.
        from: String,
        /// The new value.
        to: String,
    },
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path)?;
        match &self.kind {
            ChangeKind::Added(value) => write!(f, "+ {value}")?,
            ChangeKind::Removed(value) => write!(f, "- {value}")?,
            // The value of a variable or a secret changed.
            ChangeKind::Changed { from, to } if from == to => write!(f, "{to}, value changed")?,
            ChangeKind::Changed { from, to } => write!(f, "{from} -> {to}")?,
        }
        write!(f, " ({})", if self.reload == Reload::Live { "live" } else { "restart" })
    }
}

/// Compares two configurations.
///
/// A reload applies changes of policies: retry (except its strategy), classify, grouping, breaker, fuse,
/// poison, dead-letter and replay. It also applies changes of a handler's settings and of the API
/// tokens. Changes of sources, stores, addresses, order and sequences require a restart, as do added and
/// removed consumers.
pub fn diff(old: &Config, new: &Config) -> Diff {
    let (old, new) = (leaves(old), leaves(new));
    let mut changes = Vec::new();
    for (path, was) in &old {
        let kind = match new.get(path) {
            None => ChangeKind::Removed(was.shown.clone()),
            Some(is) if is.value != was.value => {
                ChangeKind::Changed { from: was.shown.clone(), to: is.shown.clone() }
            }
            Some(_) => continue,
        };
        changes.push(was.change(path, kind));
    }
    for (path, is) in new.iter().filter(|(path, _)| !old.contains_key(*path)) {
        changes.push(is.change(path, ChangeKind::Added(is.shown.clone())));
    }
    // An added or removed consumer is one change, not one for each of its keys.
    let whole: Vec<_> = changes
        .iter()
        .filter(|change| change.is_consumer())
        .map(|change| format!("{}.", change.path))
        .collect();
    changes.retain(|change| !whole.iter().any(|prefix| change.path.starts_with(prefix)));
    // A running process can add authentication and change its tokens. Removing authentication requires a
    // restart.
    if let Some(removed) = changes.iter_mut().find(|change| change.path == "auth" && change.is_removal()) {
        removed.reload = Reload::Restart;
    }
    changes.sort_by(|a, b| a.path.cmp(&b.path));
    Diff { changes }
}

impl Change {
    fn is_removal(&self) -> bool {
        matches!(self.kind, ChangeKind::Removed(_))
    }

    fn is_consumer(&self) -> bool {
        self.consumer.as_ref().is_some_and(|name| self.path == format!("consumers.{name}"))
    }
}

/// A value without nested values.
struct Leaf {
    /// The value for comparison, with variables expanded.
    value: String,
    shown: String,
    reload: Reload,
    consumer: Option<String>,
}

impl Leaf {
    fn change(&self, path: &str, kind: ChangeKind) -> Change {
        Change { path: path.to_owned(), consumer: self.consumer.clone(), kind, reload: self.reload }
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
            // The presence of a section is a value: `breaker: off`, or `kafka` instead of `file`.
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

/// Returns how an added or removed section is applied: as its key says, or as inherited.
fn presence(own: Option<Reload>, inherited: Reload) -> Reload {
    own.unwrap_or(inherited)
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

/// Returns the canonical form. Equal values have equal forms, such as `60s` and `1m`.
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

/// Returns the URL of a store, which its debug output leaves out.
fn canonical_store(store: &StoreLocation) -> &str {
    match store {
        StoreLocation::Memory => "",
        StoreLocation::Sqlite(at) | StoreLocation::Postgres(at) | StoreLocation::Mongodb(at) => at,
    }
}
