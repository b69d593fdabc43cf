//! Renders charts as SVG, each with its numbers as text and as a table.

use std::collections::BTreeSet;

use jiff::Timestamp;
use lazaret_api::numbers::{age, count, plural};
use maud::{Markup, html};

/// The maximum number of bars in the throughput chart.
const BARS: usize = 60;
/// The width of the throughput chart, followed by its height, in its own units.
const WIDTH: usize = 960;
const HEIGHT: usize = 104;
/// The space below the bars for the axis.
const AXIS: usize = 2;

/// Renders the handled and failed attempts per time bucket, current bucket last.
pub(crate) fn throughput(handled: &[u64], failed: &[u64], bucket_seconds: u64) -> Markup {
    let per_bar = handled.len().max(1).div_ceil(BARS);
    let handled = grouped(handled, per_bar);
    let failed = grouped(failed, per_bar);
    let most = handled.iter().zip(&failed).map(|(a, b)| a + b).max().unwrap_or(0);
    let minutes = (handled.len() * per_bar) as u64 * bucket_seconds / 60;
    let seconds = per_bar as u64 * bucket_seconds;
    let step = WIDTH / BARS;
    // The current bar is at the right end, even if there are few bars.
    let bars = handled.len();
    let first = BARS.saturating_sub(bars);
    let scale = |number: u64| scaled(number, most, (HEIGHT - AXIS) as u64);
    let label = format!(
        "{} handled and {} failed attempts in the last {minutes} minutes",
        count(handled.iter().sum()),
        count(failed.iter().sum())
    );
    html! {
        svg.chart viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } preserveAspectRatio="none" role="img" aria-label=(label) {
            @for (index, (handled, failed)) in handled.iter().zip(&failed).enumerate() {
                @let (x, of_failed, of_handled) = ((first + index) * step, scale(*failed), scale(*handled));
                @let base = (HEIGHT - AXIS) as u64;
                @if of_handled > 0 {
                    rect.handled x=(x) y=(base - of_failed.min(base) - of_handled.min(base - of_failed.min(base)))
                        width=(step - 2) height=(of_handled) {}
                }
                @if of_failed > 0 { rect.failed x=(x) y=(base - of_failed.min(base)) width=(step - 2) height=(of_failed) {} }
            }
            line.axis x1="0" y1=(HEIGHT - AXIS) x2=(WIDTH) y2=(HEIGHT - AXIS) {}
        }
        // The labels are text of the page, because text within the picture would shrink with it.
        div.axis-labels {
            span { (minutes) " min ago" }
            span { "peak " (count(most)) " in " (plural(seconds, "second")) }
            span { "now" }
        }
        div.legend-row {
            span { span.swatch.handled {} "handled " (count(handled.iter().sum())) }
            span { span.swatch.failed {} "failed attempts " (count(failed.iter().sum())) }
        }
        details.table #throughput-table {
            summary { "As a table" }
            div.scroll { table {
                thead { tr { th { "Minutes ago" } th.num { "Handled" } th.num { "Failed" } } }
                tbody {
                    @for (index, (handled, failed)) in handled.iter().zip(&failed).enumerate().rev() {
                        @let ago = (bars - index - 1) as u64 * seconds / 60;
                        @if handled + failed > 0 { tr { td { (ago) } td.num { (count(*handled)) } td.num { (count(*failed)) } } }
                    }
                }
            } }
        }
    }
}

/// Sums groups of `by` neighbours.
fn grouped(numbers: &[u64], by: usize) -> Vec<u64> {
    numbers.chunks(by.max(1)).map(|chunk| chunk.iter().sum()).collect()
}

/// Returns the height of a bar. Only zero has no height.
fn scaled(number: u64, most: u64, height: u64) -> u64 {
    match number {
        0 => 0,
        number => (u128::from(number) * u128::from(height)).div_ceil(u128::from(most.max(1))) as u64,
    }
}

/// Renders the trend of a group: a bar per bucket, current bucket last, and a mark where instances of
/// its consumer started.
pub(crate) fn spark(numbers: &[u64], bucket_seconds: u64, starts: &[Timestamp], now: Timestamp) -> Markup {
    let most = numbers.iter().copied().max().unwrap_or(0);
    let hours = numbers.len() as u64 * bucket_seconds / 3600;
    let marks: Vec<usize> =
        starts.iter().filter_map(|at| bucket_of(*at, now, bucket_seconds, numbers.len())).collect();
    let mut label = format!(
        "{} in the last {hours} hours, at most {} in one",
        plural(numbers.iter().sum(), "letter"),
        count(most)
    );
    if let Some(last) = starts.iter().max().filter(|_| !marks.is_empty()) {
        label += &format!(
            "; {} of the consumer started in that time, the last one {} ago",
            plural(marks.len() as u64, "instance"),
            age(*last, now)
        );
    }
    let marks: BTreeSet<usize> = marks.into_iter().collect();
    html! {
        svg.spark viewBox={ "0 0 " (numbers.len() * 4) " 22" } preserveAspectRatio="none" role="img" aria-label=(label) {
            title { (label) }
            @for (index, number) in numbers.iter().enumerate() {
                @let height = scaled(*number, most, 20);
                @if height == 0 { rect.base x=(index * 4) y="20" width="3" height="1" {} }
                @else { rect x=(index * 4) y=(21 - height) width="3" height=(height) {} }
            }
            @for index in marks { rect.start x=(index * 4 + 1) y="0" width="1" height="22" {} }
        }
    }
}

/// Renders the table for the trend of one group, with a row per bucket, current bucket first.
pub(crate) fn trend_table(
    numbers: &[u64],
    bucket_seconds: u64,
    starts: &[Timestamp],
    now: Timestamp,
) -> Markup {
    let started = |index: usize| {
        let is_here = |at: &&Timestamp| bucket_of(**at, now, bucket_seconds, numbers.len()) == Some(index);
        starts.iter().filter(is_here).count() as u64
    };
    html! {
        details.table #trend-table {
            summary { "Trend as a table" }
            div.scroll { table {
                thead { tr { th { "Hours ago" } th.num { "New letters" } th.num { "Instances started" } } }
                tbody { @for (index, number) in numbers.iter().enumerate().rev() {
                    tr { td { (hours_ago(index, numbers.len(), bucket_seconds)) } td.num { (count(*number)) } td.num { (count(started(index))) } }
                } }
            } }
        }
    }
}

/// Renders the table for the trends of a list. It has a row per group with its link and numbers, and a
/// column per bucket, current bucket first.
pub(crate) fn trends_table(rows: &[(Markup, &[u64])], bucket_seconds: u64) -> Markup {
    let buckets = rows.iter().map(|(_, numbers)| numbers.len()).max().unwrap_or(0);
    html! {
        details.table #trends-table {
            summary { "Trends as a table" }
            div.scroll { table {
                thead { tr {
                    th { "New letters, by hours ago" }
                    @for index in (0..buckets).rev() { th.num { (hours_ago(index, buckets, bucket_seconds)) } }
                } }
                tbody { @for (name, numbers) in rows { tr {
                    td { (name) }
                    @for number in numbers.iter().rev() { td.num.zero[*number == 0] { (count(*number)) } }
                } } }
            } }
        }
    }
}

/// Returns how many hours ago a bucket is, with the current bucket as the last of `buckets`.
fn hours_ago(index: usize, buckets: usize, bucket_seconds: u64) -> u64 {
    buckets.saturating_sub(index + 1) as u64 * bucket_seconds / 3600
}

/// Returns the index of the bucket that contains a time, with the current bucket last. Returns `None` if
/// no bucket contains it. Buckets begin at whole multiples of their width.
fn bucket_of(at: Timestamp, now: Timestamp, width_seconds: u64, buckets: usize) -> Option<usize> {
    let width = i64::try_from(width_seconds).ok().filter(|width| *width > 0)?;
    let ago = now.as_second().div_euclid(width) - at.as_second().div_euclid(width);
    buckets.checked_sub(usize::try_from(ago).ok()?.checked_add(1)?)
}

/// Renders a bar with the shares of a whole, by class. A missing share leaves a gap.
pub(crate) fn meter(label: &str, whole: u64, parts: &[(&str, u64)], tall: bool) -> Markup {
    let share = |number: u64| number as f64 * 100.0 / whole.max(1) as f64;
    let starts = parts.iter().scan(0, |from, (_, number)| Some(std::mem::replace(from, *from + number)));
    let bars: Vec<(&str, f64, f64)> = parts
        .iter()
        .zip(starts)
        .map(|((class, number), from)| (*class, share(from), share(*number)))
        .collect();
    html! {
        svg.meter.tall[tall] viewBox="0 0 100 1" preserveAspectRatio="none" role="img" aria-label=(label) {
            @for (class, x, width) in bars {
                rect class=(class) x=(format!("{x:.3}")) y="0" width=(format!("{width:.3}")) height="1" {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_zero_has_no_bar() {
        assert_eq!((scaled(0, 100, 20), scaled(1, 1_000_000, 20), scaled(100, 100, 20)), (0, 1, 20));
        assert_eq!(scaled(u64::MAX, u64::MAX, 20), 20);
    }

    #[test]
    fn a_chart_sums_neighbours_and_says_its_numbers() {
        let chart = throughput(&[1; 240], &[0; 240], 15).into_string();
        assert_eq!(chart.matches("class=\"handled\"").count(), 60);
        assert!(chart.contains("240 handled and 0 failed attempts in the last 60 minutes"), "{chart}");
        assert!(throughput(&[], &[], 15).into_string().contains("<svg"));
    }

    #[test]
    fn the_numbers_of_a_chart_are_a_table_and_the_current_bar_is_the_last() {
        let (mut handled, mut failed) = ([0; 240], [0; 240]);
        (handled[239], failed[238], handled[0]) = (7, 2, 1234);
        let chart = throughput(&handled, &failed, 15).into_string();
        let rows = "<tr><td>0</td><td class=\"num\">7</td><td class=\"num\">2</td></tr>\
                    <tr><td>59</td><td class=\"num\">1,234</td><td class=\"num\">0</td></tr></tbody>";
        assert!(chart.contains(rows), "{chart}");
        // There are fewer buckets than bars.
        let chart = throughput(&[5, 0, 8], &[0, 0, 1], 60).into_string();
        let rows = "<tr><td>0</td><td class=\"num\">8</td><td class=\"num\">1</td></tr>\
                    <tr><td>2</td><td class=\"num\">5</td><td class=\"num\">0</td></tr></tbody>";
        assert!(chart.contains(rows), "{chart}");
        let last = format!("class=\"failed\" x=\"{}\"", WIDTH - WIDTH / BARS);
        assert!(chart.contains(&last), "{chart}");
    }

    #[test]
    fn starts_are_marked_in_their_bucket() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let now = at("2026-01-02T12:30:00Z");
        let starts = [at("2026-01-02T12:01:00Z"), at("2026-01-02T09:59:59Z"), at("2026-01-02T09:00:00Z")];
        let chart = spark(&[1; 24], 3600, &starts, now).into_string();
        assert_eq!(chart.matches("class=\"start\"").count(), 2, "one for each bucket: {chart}");
        assert!(chart.contains("x=\"93\" y=\"0\"") && chart.contains("x=\"81\" y=\"0\""), "{chart}");
        assert!(chart.contains("3 instances of the consumer started in that time, the last one"), "{chart}");
        // One time is too long ago, and one is from a clock that is ahead.
        let chart = spark(&[1; 24], 3600, &[at("2026-01-01T12:59:59Z"), at("2026-01-02T13:00:00Z")], now);
        assert!(!chart.into_string().contains("start"), "nothing is marked");
    }

    #[test]
    fn the_tables_of_trends_have_every_number() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let (mut numbers, now) = ([0; 24], at("2026-01-02T12:30:00Z"));
        (numbers[23], numbers[21]) = (5, 1234);
        let table = trend_table(&numbers, 3600, &[at("2026-01-02T10:01:00Z")], now).into_string();
        assert_eq!(table.matches("<tr>").count(), 25, "a head and 24 hours: {table}");
        for row in [
            "<td>0</td><td class=\"num\">5</td><td class=\"num\">0</td>",
            "<td>2</td><td class=\"num\">1,234</td><td class=\"num\">1</td>",
        ] {
            assert!(table.contains(row), "{table}");
        }
        let table =
            trends_table(&[(html! { "a" }, &numbers[..]), (html! { "b" }, &[0; 24][..])], 3600).into_string();
        assert_eq!(table.matches("<tr>").count(), 3, "{table}");
        let start =
            "<td>a</td><td class=\"num\">5</td><td class=\"num zero\">0</td><td class=\"num\">1,234</td>";
        assert!(table.contains(start), "the current hour first: {table}");
    }

    #[test]
    fn a_meter_has_no_inline_style() {
        let bar = meter("x", 4, &[("ok", 1), ("failed", 2)], false).into_string();
        assert!(bar.contains("x=\"25.000\"") && !bar.contains("style"), "{bar}");
    }
}
