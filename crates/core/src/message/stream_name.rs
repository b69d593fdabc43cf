//! The name of a stream.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::interned::{Interned, intern};

/// The logical name of what is consumed: a topic, a collection, an inbox.
#[derive(Clone)]
pub struct StreamName(Text);

#[derive(Clone)]
enum Text {
    Shared(Arc<str>),
    Interned(Interned),
}

impl StreamName {
    /// Makes the name from any text.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(Text::Shared(text.into()))
    }

    /// Makes the name of a stream that this process reads. It is kept until the process ends, and clones of it cost nothing: every
    /// message has one, and threads that count references to one name slow each other down.
    ///
    /// ```
    /// use lazaret_core::StreamName;
    /// assert_eq!(StreamName::interned("orders"), StreamName::new("orders"));
    /// ```
    #[must_use]
    pub fn interned(text: &str) -> Self {
        Self(Text::Interned(intern(text)))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Text::Shared(text) => text,
            Text::Interned(text) => text.as_str(),
        }
    }
}

impl PartialEq for StreamName {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Text::Interned(one), Text::Interned(other)) => std::ptr::eq(*one, *other),
            _ => self.as_str() == other.as_str(),
        }
    }
}

impl Eq for StreamName {}

impl PartialOrd for StreamName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for StreamName {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl Hash for StreamName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl Serialize for StreamName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for StreamName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Arc::deserialize(deserializer).map(|text: Arc<str>| Self::new(text))
    }
}

impl fmt::Display for StreamName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for StreamName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl From<&str> for StreamName {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl From<String> for StreamName {
    fn from(text: String) -> Self {
        Self::new(text)
    }
}

impl AsRef<str> for StreamName {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_name_is_the_same_however_it_is_kept() {
        let (shared, interned) = (StreamName::new("orders"), StreamName::interned("orders"));
        assert_eq!((&shared, shared.cmp(&interned)), (&interned, Ordering::Equal));
        assert!(HashSet::from([shared.clone()]).contains(&interned));
        assert_ne!(interned, StreamName::interned("payments"));
        assert_ne!(StreamName::interned("payments"), shared);
        let text = serde_json::to_string(&interned).unwrap();
        assert_eq!((text.as_str(), serde_json::from_str(&text).ok()), ("\"orders\"", Some(shared)));
    }
}
