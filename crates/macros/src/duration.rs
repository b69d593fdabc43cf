//! Parses durations like the configuration file: `500ms`, `1s`, `1h 30m`, `30d`.

use std::time::Duration;

/// The units in nanoseconds, longest first.
const UNITS: [(&str, u128); 8] = [
    ("w", 7 * 24 * 3600 * 1_000_000_000),
    ("d", 24 * 3600 * 1_000_000_000),
    ("h", 3600 * 1_000_000_000),
    ("m", 60 * 1_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// The longest duration that the configuration accepts.
const LONGEST_SECONDS: u64 = 100 * 365 * 24 * 3600;

/// Parses a duration, or explains why the text is invalid.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let trimmed = text.trim();
    if trimmed == "0" {
        return Ok(Duration::ZERO);
    }
    if !trimmed.is_empty() && trimmed.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return Err(format!("a duration needs a unit: write `{trimmed}ms`, `{trimmed}s` or `{trimmed}m`"));
    }
    let no_duration = || format!("`{text}` is not a duration: write `500ms`, `1s`, `5m`, `1h 30m` or `30d`");
    let (mut rest, mut last, mut nanos) = (trimmed, 0, 0_u128);
    while !rest.is_empty() {
        let (number, unit, after) = part(rest).ok_or_else(no_duration)?;
        let at = UNITS.iter().position(|(name, _)| *name == unit);
        let at =
            at.ok_or_else(|| format!("unknown unit of time `{unit}`: the units are ms, s, m, h, d and w"))?;
        if nanos > 0 && at < last {
            return Err("units go from the longest to the shortest, for example `1h 30m`".to_owned());
        }
        (last, rest) = (at + 1, after.trim_start());
        nanos =
            scaled(number, UNITS[at].1).and_then(|part| nanos.checked_add(part)).ok_or_else(no_duration)?;
    }
    if trimmed.is_empty() {
        return Err(no_duration());
    }
    let total = u64::try_from(nanos).map(Duration::from_nanos).ok();
    total
        .filter(|total| total.as_secs() <= LONGEST_SECONDS)
        .ok_or_else(|| "a duration is limited to 100 years".to_owned())
}

/// Splits off the first number and its unit.
fn part(text: &str) -> Option<(&str, &str, &str)> {
    let (number, rest) = text.split_at(text.find(|c: char| !(c.is_ascii_digit() || c == '.'))?);
    let rest = rest.trim_start();
    let end = rest.find(|c: char| !c.is_alphabetic()).unwrap_or(rest.len());
    (!number.is_empty() && end > 0).then(|| (number, &rest[..end], &rest[end..]))
}

/// Multiplies a decimal number by a unit, and rounds down.
fn scaled(number: &str, unit: u128) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if whole.is_empty() || whole.len() > 20 || fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let digits = &fraction[..fraction.len().min(15)];
    let tenths =
        digits.parse::<u128>().ok()?.checked_mul(unit)? / 10_u128.pow(u32::try_from(digits.len()).ok()?);
    whole.parse::<u128>().ok()?.checked_mul(unit)?.checked_add(tenths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_numbers_and_units() {
        let table = [
            ("500ms", 500),
            ("1s", 1_000),
            ("1m", 60_000),
            ("1.5s", 1_500),
            ("1h 30m", 5_400_000),
            ("30d", 30 * 86_400_000),
            ("0", 0),
        ];
        for (text, millis) in table {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "soon", "500", "5 fortnights", "30m 1h", "-1s", "1..5s", "99999d", "1s!"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    /// Returns the duration that the configuration file reads from the text, if it accepts the text.
    fn configured(text: &str) -> Option<Duration> {
        let value = serde_json::Value::from(text).to_string();
        let settings = [lazaret_config::Setting::new("test", "advanced.drain-deadline", value)];
        let consumer = lazaret_config::Declared { name: "c", settings: &settings, defaults: &[] };
        let loaded = lazaret_config::declared(None, &lazaret_config::NoEnv, &[consumer]).ok()?;
        Some(loaded.config.consumers[0].advanced.drain_deadline)
    }

    #[test]
    fn an_attribute_accepts_what_the_configuration_file_accepts_and_nothing_else() {
        let texts = [
            "500ms",
            "1s",
            "1.5s",
            "1.",
            ".5s",
            "0",
            "0s",
            "1h 30m",
            "1h30m",
            "30m 1h",
            "1s 1s",
            "2w",
            "100us",
            "7ns",
            "soon",
            "",
            " ",
            "-1s",
            "1..5s",
            "500",
            "5S",
            "5 min",
            "36500d",
            "36501d",
            "99999999999999999999w",
            "0.0000000000000001s",
            "1 h",
            "1s!",
            "é",
            "1é",
        ];
        for text in texts {
            assert_eq!(parse(text).ok(), configured(text), "{text:?}");
        }
    }
}
