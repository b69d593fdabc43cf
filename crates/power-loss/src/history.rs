//! What was requested and answered, and so what has to be found after a cut.

use std::collections::BTreeMap;

use crate::recording::Recording;

/// The values of objects over time. A value is requested, and later answered as durable. Objects start absent, which is an empty
/// value.
#[derive(Debug, Default)]
pub struct History {
    objects: BTreeMap<String, Vec<Version>>,
}

#[derive(Debug)]
struct Version {
    value: String,
    /// The cut after which it may be there.
    requested: usize,
    /// The cut after which it, or a later one, has to be there.
    answered: Option<usize>,
}

impl History {
    /// Notes that an object was requested to have this value. An empty one removes it.
    pub fn request(&mut self, object: impl Into<String>, value: impl Into<String>, recording: &Recording) {
        let version = Version { value: value.into(), requested: recording.mark(), answered: None };
        self.objects.entry(object.into()).or_default().push(version);
    }

    /// Notes that the last request of an object was answered.
    ///
    /// # Panics
    /// If nothing was requested.
    pub fn answer(&mut self, object: &str, recording: &Recording) {
        let last = self.objects.get_mut(object).and_then(|versions| versions.last_mut());
        last.unwrap_or_else(|| panic!("{object} was not requested")).answered = Some(recording.mark());
    }

    /// The names of all objects.
    pub fn objects(&self) -> impl Iterator<Item = &str> {
        self.objects.keys().map(String::as_str)
    }

    /// Returns whether a value was requested before the cut.
    pub fn is_requested(&self, object: &str, cut: usize) -> bool {
        self.value_at(object, cut).is_some()
    }

    /// The last value that was requested before the cut.
    pub fn value_at(&self, object: &str, cut: usize) -> Option<String> {
        let last = self.objects.get(object)?.iter().rfind(|version| version.requested <= cut);
        last.map(|version| version.value.clone())
    }

    /// Returns whether the last value that was requested before the cut was answered before it.
    pub fn is_answered(&self, object: &str, cut: usize) -> bool {
        let versions = self.objects.get(object).map_or(&[][..], |versions| versions);
        let last = versions.iter().rfind(|version| version.requested <= cut);
        last.is_some_and(|version| version.answered.is_some_and(|answered| answered <= cut))
    }

    /// Checks that every object has the last value that was answered before the cut, or a later one that was requested.
    ///
    /// # Panics
    /// If one has not.
    pub fn check(&self, cut: usize, found: &BTreeMap<String, String>) {
        for object in found.keys() {
            assert!(self.objects.contains_key(object), "{object} was never requested");
        }
        for (object, versions) in &self.objects {
            let value = found.get(object).map_or("", String::as_str);
            let is_answered = |version: &Version| version.answered.is_some_and(|answered| answered <= cut);
            let first = versions.iter().rposition(is_answered);
            let last = versions.iter().rposition(|version| version.requested <= cut);
            let from = first.unwrap_or_default();
            let allowed = last.map_or(&[][..], |last| &versions[from..=last]);
            let is_allowed = allowed.iter().any(|version| version.value == value);
            let may_be_absent = first.is_none() && value.is_empty();
            assert!(
                is_allowed || may_be_absent,
                "{object} is {value:?} after a cut at {cut}; answered: {:?}, requested: {:?}",
                first.map(|first| &versions[first].value),
                last.map(|last| &versions[last].value),
            );
        }
    }
}
