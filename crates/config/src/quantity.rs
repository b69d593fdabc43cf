//! Parses durations and sizes with units: `1h 30m`, `64KiB`.

use std::time::Duration;

/// The units of a duration, longest first, in nanoseconds.
const DURATION_UNITS: [(&str, u128); 8] = [
    ("w", 7 * 24 * 3600 * 1_000_000_000),
    ("d", 24 * 3600 * 1_000_000_000),
    ("h", 3600 * 1_000_000_000),
    ("m", 60 * 1_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// The units of a size.
const SIZE_UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

/// The maximum duration: a hundred years. Longer durations are typos and would overflow timestamps.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Describes why a text is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QuantityError {
    pub(crate) why: &'static str,
    pub(crate) hint: Option<String>,
}

fn bad(why: &'static str) -> QuantityError {
    QuantityError { why, hint: None }
}

/// Parses a duration: numbers with units, from the longest unit to the shortest, or 0.
pub(crate) fn duration(text: &str) -> Result<Duration, QuantityError> {
    let text = text.trim();
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    if text.starts_with('-') {
        return Err(bad("a duration cannot be negative"));
    }
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        let hint = Some(format!("write `{text}s`, `{text}ms` or `{text}m`"));
        return Err(QuantityError { why: "a duration needs a unit", hint });
    }
    let mut nanos: u128 = 0;
    let mut rest = text;
    let mut last = 0;
    while !rest.is_empty() {
        let (number, unit, after) = part(rest).ok_or_else(|| no_duration(text))?;
        let at = DURATION_UNITS.iter().position(|(name, _)| *name == unit);
        let at = at.ok_or_else(|| unknown_unit(number, unit))?;
        if nanos > 0 && at < last {
            return Err(bad("units go from the longest to the shortest, for example `1h 30m`"));
        }
        (last, rest) = (at + 1, after.trim_start());
        let part = scaled(number, DURATION_UNITS[at].1).ok_or_else(|| no_duration(text))?;
        nanos = nanos.checked_add(part).ok_or_else(|| bad("a duration is limited to 100 years"))?;
    }
    if text.is_empty() {
        return Err(no_duration(text));
    }
    let total = u64::try_from(nanos).map(Duration::from_nanos).ok().filter(|total| *total <= LONGEST);
    total.ok_or_else(|| bad("a duration is limited to 100 years"))
}

fn no_duration(text: &str) -> QuantityError {
    // If the key has a value for "none", its hint names it.
    if matches!(text, "forever" | "never" | "infinite" | "none" | "off" | "unlimited") {
        return bad("not a duration");
    }
    let iso = text.starts_with('P') && text.chars().any(|c| c.is_ascii_digit());
    let hint =
        if iso { "not ISO 8601; write `1h 30m`" } else { "write `500ms`, `1s`, `5m`, `1h 30m` or `30d`" };
    QuantityError { why: "not a duration", hint: Some(hint.to_owned()) }
}

fn unknown_unit(number: &str, unit: &str) -> QuantityError {
    let meant = match unit.to_ascii_lowercase().as_str() {
        "sec" | "secs" | "second" | "seconds" | "s" => "s",
        "min" | "mins" | "minute" | "minutes" | "m" => "m",
        "hour" | "hours" | "hr" | "hrs" | "h" => "h",
        "day" | "days" | "d" => "d",
        "week" | "weeks" | "w" => "w",
        "milli" | "millis" | "msec" | "milliseconds" | "millisecond" | "ms" => "ms",
        "month" | "months" | "mo" => {
            return QuantityError {
                why: "a month has no fixed length",
                hint: Some("write days, for example `30d`".to_owned()),
            };
        }
        "year" | "years" | "y" => {
            return QuantityError {
                why: "a year has no fixed length",
                hint: Some("write days, for example `365d`".to_owned()),
            };
        }
        _ => "",
    };
    let hint = if meant.is_empty() {
        "the units are ms, s, m, h, d and w".to_owned()
    } else {
        format!("write `{number}{meant}`")
    };
    QuantityError { why: "unknown unit of time", hint: Some(hint) }
}

/// Splits off the first number and its unit.
fn part(text: &str) -> Option<(&str, &str, &str)> {
    let unit_at = text.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
    let (number, rest) = text.split_at(unit_at);
    let rest = rest.trim_start();
    let end = rest.find(|c: char| !c.is_alphabetic()).unwrap_or(rest.len());
    (!number.is_empty() && end > 0).then(|| (number, &rest[..end], &rest[end..]))
}

/// Multiplies a decimal number by a unit and rounds down. Returns `None` if the number is invalid or too
/// large.
fn scaled(number: &str, unit: u128) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || whole.len() > 20 || fraction.contains('.') {
        return None;
    }
    if number.ends_with('.') || number.starts_with('.') {
        return None;
    }
    let whole: u128 = whole.parse().ok()?;
    // Further digits are below a nanosecond or a byte, and would overflow.
    let digits = &fraction[..fraction.len().min(15)];
    let tenths = digits.parse::<u128>().unwrap_or(0).checked_mul(unit)?
        / 10_u128.pow(u32::try_from(digits.len()).ok()?);
    whole.checked_mul(unit)?.checked_add(tenths)
}

/// Parses a size: a number with a unit.
pub(crate) fn size(text: &str) -> Result<u64, QuantityError> {
    let text = text.trim();
    let hint = |hint: &str| Some(hint.to_owned());
    let shape = || QuantityError { why: "not a size", hint: hint("write `512B`, `64KiB` or `16MiB`") };
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(QuantityError {
            why: "a size needs a unit",
            hint: Some(format!("write `{text}B`, `{text}KiB` or `{text}MiB`")),
        });
    }
    let (number, unit, after) = part(text).ok_or_else(shape)?;
    if !after.trim().is_empty() {
        return Err(shape());
    }
    let known = SIZE_UNITS.iter().find(|(name, _)| *name == unit);
    let (_, bytes) = known.ok_or_else(|| {
        let meant = match unit.to_ascii_lowercase().trim_end_matches('b') {
            "k" | "ki" => "KiB",
            "m" | "mi" => "MiB",
            "g" | "gi" => "GiB",
            _ => {
                return QuantityError {
                    why: "unknown unit of size",
                    hint: hint("the units are B, KiB, MiB, GiB and TiB"),
                };
            }
        };
        QuantityError { why: "unknown unit of size", hint: Some(format!("write `{number}{meant}`")) }
    })?;
    let total = scaled(number, u128::from(*bytes)).ok_or_else(shape)?;
    u64::try_from(total).map_err(|_| bad("a size is limited to 16 EiB"))
}

/// Formats a size as written in a file.
pub(crate) fn size_text(bytes: u64) -> String {
    let fits = SIZE_UNITS.iter().filter(|(name, _)| name.ends_with("iB") || *name == "B");
    let (unit, factor) = fits
        .clone()
        .find(|(_, factor)| bytes >= *factor && bytes.is_multiple_of(*factor))
        .unwrap_or(&("B", 1));
    format!("{}{unit}", bytes / factor)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert_eq, proptest};

    use super::*;

    #[test]
    fn durations_are_parsed() {
        let table = [
            ("500ms", 500),
            ("1s", 1000),
            ("5m", 300_000),
            ("1h 30m", 5_400_000),
            ("1h30m", 5_400_000),
            ("1.5s", 1500),
            ("30d", 2_592_000_000),
            ("2w", 1_209_600_000),
            ("0", 0),
            ("0s", 0),
            ("5 m", 300_000),
        ];
        for (text, millis) in table {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn invalid_durations_get_a_hint() {
        let table = [
            ("500", "a duration needs a unit", Some("write `500s`, `500ms` or `500m`")),
            ("5min", "unknown unit of time", Some("write `5m`")),
            ("5S", "unknown unit of time", Some("write `5s`")),
            ("3 fortnights", "unknown unit of time", Some("the units are ms, s, m, h, d and w")),
            ("1 month", "a month has no fixed length", Some("write days, for example `30d`")),
            ("PT5M", "not a duration", Some("not ISO 8601; write `1h 30m`")),
            ("soon", "not a duration", Some("write `500ms`, `1s`, `5m`, `1h 30m` or `30d`")),
            ("", "not a duration", Some("write `500ms`, `1s`, `5m`, `1h 30m` or `30d`")),
            ("1..5s", "not a duration", Some("write `500ms`, `1s`, `5m`, `1h 30m` or `30d`")),
            ("-1s", "a duration cannot be negative", None),
            ("30m 1h", "units go from the longest to the shortest, for example `1h 30m`", None),
            ("1s 1s", "units go from the longest to the shortest, for example `1h 30m`", None),
            ("99999d", "a duration is limited to 100 years", None),
            ("99999999999999999999w", "a duration is limited to 100 years", None),
        ];
        for (text, why, hint) in table {
            let error = duration(text).unwrap_err();
            assert_eq!((error.why, error.hint.as_deref()), (why, hint), "{text}");
        }
    }

    #[test]
    fn sizes_are_parsed() {
        let table = [
            ("512B", 512),
            ("64KiB", 65_536),
            ("1.5MiB", 1_572_864),
            ("16MB", 16_000_000),
            ("1 GiB", 1 << 30),
        ];
        for (text, bytes) in table {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for (text, hint) in [
            ("64", "`64B`"),
            ("64K", "`64KiB`"),
            ("64kb", "`64KiB`"),
            ("3 stone", "the units"),
            ("big", "`512B`"),
        ] {
            let error = size(text).unwrap_err();
            assert!(error.hint.as_ref().unwrap().contains(hint), "{text}: {error:?}");
        }
        assert!(size("99999999999TiB").is_err());
    }

    proptest! {
        #[test]
        fn a_formatted_size_is_parsed_back(bytes in 0..u64::MAX) {
            prop_assert_eq!(size(&size_text(bytes)), Ok(bytes));
        }

        #[test]
        fn parsing_never_panics(text in "\\PC{0,20}") {
            let _ = (duration(&text), size(&text));
        }
    }
}
