//! Counters, gauges and histograms by family, in a recorder of our own or in the installed one.

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Label, Level, Metadata, Recorder, SharedString};

use crate::names::{self, Family, Kind};

static METADATA: Metadata<'static> = Metadata::new("lazaret", Level::INFO, None);

/// Registers metrics in a recorder.
pub(super) struct Instruments {
    /// `None`: the recorder that the program has installed for the `metrics` facade.
    recorder: Option<Box<dyn Recorder + Send + Sync>>,
}

impl Instruments {
    /// Describes every family in the recorder.
    pub(super) fn new(recorder: Option<Box<dyn Recorder + Send + Sync>>) -> Self {
        let instruments = Self { recorder };
        for family in names::FAMILIES {
            let (name, help) = (KeyName::from_const_str(family.name), SharedString::const_str(family.help));
            instruments.with(|recorder| match family.kind {
                Kind::Counter => recorder.describe_counter(name, None, help),
                Kind::Gauge => recorder.describe_gauge(name, None, help),
                Kind::Histogram => recorder.describe_histogram(name, None, help),
            });
        }
        instruments
    }

    pub(super) fn counter(&self, family: &Family, labels: Vec<Label>) -> Counter {
        let key = key(family, labels);
        self.with(|recorder| recorder.register_counter(&key, &METADATA))
    }

    pub(super) fn gauge(&self, family: &Family, labels: Vec<Label>) -> Gauge {
        let key = key(family, labels);
        self.with(|recorder| recorder.register_gauge(&key, &METADATA))
    }

    pub(super) fn histogram(&self, family: &Family, labels: Vec<Label>) -> Histogram {
        let key = key(family, labels);
        self.with(|recorder| recorder.register_histogram(&key, &METADATA))
    }

    fn with<T>(&self, call: impl FnOnce(&dyn Recorder) -> T) -> T {
        match &self.recorder {
            Some(recorder) => call(&**recorder),
            None => metrics::with_recorder(call),
        }
    }
}

fn key(family: &Family, labels: Vec<Label>) -> Key {
    debug_assert!(labels.iter().map(Label::key).eq(family.labels.iter().copied()), "{}", family.name);
    Key::from_parts(family.name, labels)
}
