//! Formats one record as aligned names and values.

use super::Tone;
use super::line::Line;

/// Names and values.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields {
    fields: Vec<(&'static str, String, Tone)>,
}

impl Fields {
    /// Creates an empty list.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds a field.
    pub(crate) fn add(&mut self, name: &'static str, value: impl Into<String>) {
        self.toned(name, value, Tone::Plain);
    }

    /// Adds a field with a tone.
    pub(crate) fn toned(&mut self, name: &'static str, value: impl Into<String>, tone: Tone) {
        self.fields.push((name, value.into(), tone));
    }

    /// Adds a field if there is a value.
    pub(crate) fn maybe(&mut self, name: &'static str, value: Option<impl Into<String>>) {
        if let Some(value) = value {
            self.add(name, value);
        }
    }

    /// Returns the lines, with the values aligned.
    pub(crate) fn lines(&self) -> impl Iterator<Item = Line> {
        let width = self.fields.iter().map(|(name, ..)| name.len()).max().unwrap_or(0);
        self.fields.iter().map(move |(name, value, tone)| {
            Line::new().add(format!("{name:width$}"), Tone::Dim).plain("  ").add(value, *tone)
        })
    }
}
