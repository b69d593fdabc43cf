//! Results: rows of values, their targets, and the output as table and JSON.

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use serde::Serialize;

/// The number of rounds of each contender.
pub(crate) const ROUNDS: usize = 3;

/// The target of a row.
#[derive(Clone, Copy)]
pub(crate) enum Bar {
    /// The ratio is at most this.
    RatioAtMost(f64),
    /// The ratio is at least this.
    RatioAtLeast(f64),
    /// The value is at most this.
    ValueAtMost(f64),
    /// The value is at least this.
    #[cfg_attr(
        not(feature = "mongodb"),
        allow(dead_code, reason = "only rows of this group have such a target")
    )]
    ValueAtLeast(f64),
    /// The value equals this.
    ValueIs(f64),
}

/// One row of the results. The field names are the public contract of the JSON.
#[derive(Serialize)]
pub(crate) struct Row {
    bench: &'static str,
    name: String,
    value: f64,
    unit: &'static str,
    baseline: Option<f64>,
    ratio: Option<f64>,
    bar: Option<String>,
    ok: Option<bool>,
    /// A note that is printed below the table.
    #[serde(skip)]
    note: Option<String>,
}

impl Row {
    /// Creates a row without a baseline.
    pub(crate) fn new(bench: &'static str, name: impl Into<String>, unit: &'static str, value: f64) -> Self {
        Self {
            bench,
            name: name.into(),
            value,
            unit,
            baseline: None,
            ratio: None,
            bar: None,
            ok: None,
            note: None,
        }
    }

    /// Creates a row with a baseline, measured in rounds.
    pub(crate) fn compared(
        bench: &'static str,
        name: impl Into<String>,
        unit: &'static str,
        compared: &Compared,
    ) -> Self {
        let mut row = Self::new(bench, name, unit, compared.value);
        row.baseline = Some(compared.baseline);
        row.ratio = Some(compared.ratio);
        row
    }

    /// Sets the target.
    pub(crate) fn with_bar(mut self, bar: Bar) -> Self {
        let ratio = self.ratio.unwrap_or(f64::NAN);
        let (ok, text) = match bar {
            Bar::RatioAtMost(limit) => (ratio <= limit, format!("<= {limit:?}")),
            Bar::RatioAtLeast(limit) => (ratio >= limit, format!(">= {limit:?}")),
            Bar::ValueAtMost(limit) => (self.value <= limit, format!("<= {limit} {}", self.unit)),
            Bar::ValueAtLeast(limit) => (self.value >= limit, format!(">= {limit} {}", self.unit)),
            Bar::ValueIs(wanted) => (self.value == wanted, format!("== {wanted}")),
        };
        self.ok = Some(ok);
        self.bar = Some(text);
        self
    }

    /// Sets the note.
    pub(crate) fn with_note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }

    fn cells(&self) -> [String; 7] {
        let ok = match self.ok {
            None => "-",
            Some(true) => "ok",
            Some(false) => "MISSED",
        };
        [
            self.name.clone(),
            readable(Some(self.value)),
            self.unit.to_owned(),
            readable(self.baseline),
            self.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}")),
            self.bar.clone().unwrap_or_else(|| "-".to_owned()),
            ok.to_owned(),
        ]
    }
}

/// Formats a number with three decimals if it is small, and none if it is large.
fn readable(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value.fract() == 0.0 || value.abs() >= 1000.0 => format!("{value:.0}"),
        Some(value) if value.abs() >= 10.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.3}"),
    }
}

/// A subject and its baseline over all rounds.
pub(crate) struct Compared {
    /// The subject's median.
    pub(crate) value: f64,
    /// The baseline's median.
    pub(crate) baseline: f64,
    /// The median of the rounds' ratios, subject to baseline. Not the ratio of the medians: a disturbance affects both sides of a
    /// round.
    pub(crate) ratio: f64,
}

impl Compared {
    /// Compares the subject's rounds with the baseline's, round by round.
    pub(crate) fn new(subject: &[f64], baseline: &[f64]) -> Self {
        let ratios: Vec<f64> =
            subject.iter().zip(baseline).map(|(subject, baseline)| subject / baseline).collect();
        Self { value: median(subject), baseline: median(baseline), ratio: median(&ratios) }
    }
}

/// Formats the range of the rounds' ratios.
pub(crate) fn spread(subject: &[f64], baseline: &[f64]) -> String {
    let ratios = subject.iter().zip(baseline).map(|(subject, baseline)| subject / baseline);
    let (low, high) =
        ratios.fold((f64::INFINITY, 0.0_f64), |(low, high), ratio| (low.min(ratio), high.max(ratio)));
    format!("{low:.3} and {high:.3}")
}

/// Returns the median; of an even number of values, the upper one.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Returns the percentile of sorted values.
pub(crate) fn share_of(sorted: &[f64], share: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * share) as usize]
}

/// All rows of a run.
pub(crate) struct Table {
    rows: Vec<Row>,
}

impl Table {
    pub(crate) fn new(rows: Vec<Row>) -> Self {
        Self { rows }
    }

    /// Writes the rows as a JSON array.
    pub(crate) fn write_json(&self, path: &Path) -> io::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        serde_json::to_writer_pretty(&mut file, &self.rows)?;
        writeln!(file)?;
        file.flush()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ["name", "value", "unit", "baseline", "ratio", "bar", "ok"].map(str::to_owned);
        let lines: Vec<[String; 7]> = std::iter::once(head).chain(self.rows.iter().map(Row::cells)).collect();
        let widths: [usize; 7] = std::array::from_fn(|column| {
            lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0)
        });
        for [name, value, unit, baseline, ratio, bar, ok] in &lines {
            let [w_name, w_value, w_unit, w_baseline, w_ratio, w_bar, _] = widths;
            writeln!(
                f,
                "{name:w_name$}  {value:>w_value$}  {unit:w_unit$}  {baseline:>w_baseline$}  {ratio:>w_ratio$}  \
                 {bar:w_bar$}  {ok}"
            )?;
        }
        writeln!(f)?;
        writeln!(
            f,
            "Each ratio is the median over at least {ROUNDS} rounds, baseline and subject alternating."
        )?;
        for row in &self.rows {
            if let Some(note) = &row.note {
                writeln!(f, "{}: {note}", row.name)?;
            }
        }
        let missed: Vec<&Row> = self.rows.iter().filter(|row| row.ok == Some(false)).collect();
        if missed.is_empty() {
            return writeln!(f, "All targets met.");
        }
        for row in missed {
            let [name, value, unit, _, ratio, bar, _] = row.cells();
            writeln!(f, "MISSED: {name}: {value} {unit}, ratio {ratio}, target {bar}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_the_median_of_the_rounds() {
        let compared = Compared::new(&[10.0, 40.0, 30.0], &[10.0, 10.0, 10.0]);
        assert_eq!((compared.value, compared.baseline, compared.ratio), (30.0, 10.0, 3.0));
    }

    #[test]
    fn a_bar_is_held_against_what_it_speaks_of() {
        let compared = Compared::new(&[4.0], &[1.0]);
        let row = || Row::compared("core", "n", "ns", &compared);
        let table = [
            (Bar::RatioAtMost(5.0), "<= 5.0", true),
            (Bar::RatioAtMost(3.0), "<= 3.0", false),
            (Bar::RatioAtLeast(0.98), ">= 0.98", true),
            (Bar::ValueAtMost(3.0), "<= 3 ns", false),
            (Bar::ValueAtLeast(4.0), ">= 4 ns", true),
            (Bar::ValueAtLeast(5.0), ">= 5 ns", false),
            (Bar::ValueIs(4.0), "== 4", true),
        ];
        for (bar, text, ok) in table {
            let row = row().with_bar(bar);
            assert_eq!((row.bar.as_deref(), row.ok), (Some(text), Some(ok)));
        }
        assert_eq!(Row::new("core", "n", "ns", 1.0).with_bar(Bar::RatioAtMost(5.0)).ok, Some(false));
    }

    #[test]
    fn a_missed_bar_is_said_at_the_end() {
        let missed = Row::new("core", "slow thing", "ns", 7.0).with_bar(Bar::ValueAtMost(5.0));
        let text = Table::new(vec![missed]).to_string();
        assert!(text.ends_with("MISSED: slow thing: 7 ns, ratio -, target <= 5 ns\n"), "{text}");
    }

    #[test]
    fn a_note_stands_below_the_table_and_not_in_the_json() {
        let row = Row::new("core", "n", "ns", 7.0).with_note("cold");
        assert!(!serde_json::to_string(&row).expect("a row is plain data").contains("cold"));
        let text = Table::new(vec![row]).to_string();
        assert!(text.contains("\nn: cold\n"), "{text}");
    }

    #[test]
    fn the_json_has_the_fields_of_the_contract() {
        let row = serde_json::to_value(Row::new("core", "n", "ns", 7.0)).expect("a row is plain data");
        let fields: Vec<_> =
            row.as_object().expect("a row is an object").keys().map(String::as_str).collect();
        let mut contract = ["bench", "name", "value", "unit", "baseline", "ratio", "bar", "ok"];
        contract.sort_unstable();
        assert_eq!(fields, contract);
    }
}
