//! Parses scalars: numbers, durations, sizes, rates, enums and formatted strings.

use std::time::Duration;

use lazaret_core::policy::Rate;

use crate::code::Code;
use crate::quantity;
use crate::suggest::{nearest, synonym};
use crate::table::{EnumValue, Kind};
use crate::text;
use crate::value::Value;

/// Describes why a scalar is invalid.
pub(crate) struct ScalarError {
    pub(crate) code: Code,
    /// The message, in which `{}` stands for the value.
    pub(crate) why: String,
    pub(crate) hint: Option<String>,
}

impl ScalarError {
    fn new(code: Code, why: String) -> Self {
        Self { code, why, hint: None }
    }
}

/// Parses a scalar of the given kind.
pub(crate) fn typed(kind: &'static Kind, text: &str, name: &str) -> Result<Value, ScalarError> {
    match kind {
        Kind::Flag => flag(text, name).map(Value::Flag),
        Kind::Count { min, max } => count(text, name, *min, *max).map(Value::Count),
        Kind::Number { min, max, exclusive } => number(text, name, *min, *max, *exclusive).map(Value::Number),
        Kind::Jitter => jitter(text, name).map(Value::Number),
        Kind::Duration { zero } => duration(text, name, *zero),
        Kind::Size { min } => size(text, name, *min),
        Kind::Rate => rate(text, name),
        Kind::Enum(words) => choice(text, name, words),
        Kind::Text(format) => text::parse(*format, text).map_err(|bad| {
            let why = if bad.code == Code::EmptyValue {
                format!("`{name}` {}", bad.why)
            } else {
                format!("`{name}`: {{}} {}", bad.why)
            };
            ScalarError { code: bad.code, why, hint: bad.hint }
        }),
        _ => Ok(Value::Text(text.to_owned())),
    }
}

fn flag(text: &str, name: &str) -> Result<bool, ScalarError> {
    match text {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => {
            let hint = match text.to_ascii_lowercase().as_str() {
                "yes" | "on" | "y" | "1" | "true" => Some("write `true`".to_owned()),
                "no" | "off" | "n" | "0" | "false" => Some("write `false`".to_owned()),
                _ => None,
            };
            Err(ScalarError {
                code: Code::WrongType,
                why: format!("`{name}` must be true or false, not {{}}"),
                hint,
            })
        }
    }
}

fn count(text: &str, name: &str, min: u64, max: u64) -> Result<u64, ScalarError> {
    let is_negative = text.starts_with('-');
    let range = |is_low: bool| {
        let limits = between(min, max, is_low);
        let why = format!("`{name}` must be {limits}, not {{}}");
        ScalarError { code: Code::OutOfRange, why, hint: (!is_low).then(|| format!("write `{max}` or less")) }
    };
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        let plain: String = text.chars().filter(|c| !"_,' ".contains(*c)).collect();
        let hint =
            (plain != text && plain.bytes().all(|b| b.is_ascii_digit())).then(|| format!("write `{plain}`"));
        return Err(ScalarError {
            code: Code::WrongType,
            why: format!("`{name}` must be a whole number, not {{}}"),
            hint,
        });
    }
    // If digits do not parse, there are too many.
    let value = text.parse::<u64>().map_err(|_| range(is_negative))?;
    if (min..=max).contains(&value) { Ok(value) } else { Err(range(value < min)) }
}

/// Returns a text such as "at least 1", "at most 9" or "between 1 and 9". Omits a maximum beyond
/// practical values.
fn between(min: u64, max: u64, is_low: bool) -> String {
    match (min, max) {
        (min, max) if max >= u64::from(u32::MAX) && is_low => format!("at least {min}"),
        (_, max) if max >= u64::from(u32::MAX) => format!("at most {max}"),
        (0, max) => format!("at most {max}"),
        (min, max) => format!("between {min} and {max}"),
    }
}

fn number(text: &str, name: &str, min: f64, max: f64, exclusive: bool) -> Result<f64, ScalarError> {
    let value = float(text).ok_or_else(|| {
        let hint = text.contains(',').then(|| "write decimals with a point: `2.5`".to_owned());
        ScalarError { code: Code::WrongType, why: format!("`{name}` must be a number, not {{}}"), hint }
    })?;
    let fits = value <= max && if exclusive { value > min } else { value >= min };
    if fits {
        return Ok(value);
    }
    let low = if exclusive { format!("above {min}") } else { format!("at least {min}") };
    Err(ScalarError::new(Code::OutOfRange, format!("`{name}` must be {low} and at most {max}, not {{}}")))
}

fn jitter(text: &str, name: &str) -> Result<f64, ScalarError> {
    match text {
        "true" => return Ok(0.2),
        "false" => return Ok(0.0),
        _ => {}
    }
    let value = float(text).ok_or_else(|| {
        let percent = text.strip_suffix('%').and_then(|n| n.trim().parse::<f64>().ok());
        let hint = percent.map(|percent| format!("write `{}`", percent / 100.0));
        ScalarError {
            code: Code::WrongType,
            why: format!("`{name}` must be a number between 0 and 1, true or false, not {{}}"),
            hint,
        }
    })?;
    if (0.0..=1.0).contains(&value) {
        return Ok(value);
    }
    let hint = (1.0..=100.0).contains(&value).then(|| format!("±{value} % is `{}`", value / 100.0));
    Err(ScalarError {
        code: Code::OutOfRange,
        why: format!("`{name}` must be between 0 and 1, not {{}}"),
        hint,
    })
}

/// Parses a finite number that is written with digits.
fn float(text: &str) -> Option<f64> {
    let begins_well =
        text.trim_start_matches(['-', '+']).starts_with(|c: char| c.is_ascii_digit() || c == '.');
    text.parse::<f64>().ok().filter(|value| begins_well && value.is_finite())
}

fn duration(text: &str, name: &str, zero: bool) -> Result<Value, ScalarError> {
    let value = quantity::duration(text);
    let value = value.map_err(|bad| ScalarError {
        code: Code::InvalidDuration,
        why: format!("`{name}`: {}: {{}}", bad.why),
        hint: bad.hint,
    })?;
    if !zero && value < Duration::from_millis(1) {
        return Err(ScalarError::new(Code::OutOfRange, format!("`{name}` must be at least 1ms, not {{}}")));
    }
    Ok(Value::Duration(value))
}

fn size(text: &str, name: &str, min: u64) -> Result<Value, ScalarError> {
    let value = quantity::size(text);
    let value = value.map_err(|bad| ScalarError {
        code: Code::InvalidSize,
        why: format!("`{name}`: {}: {{}}", bad.why),
        hint: bad.hint,
    })?;
    if value < min {
        return Err(ScalarError::new(
            Code::OutOfRange,
            format!("`{name}` must be at least {}, not {{}}", quantity::size_text(min)),
        ));
    }
    Ok(Value::Size(value))
}

fn rate(text: &str, name: &str) -> Result<Value, ScalarError> {
    text.parse::<Rate>().map(Value::Rate).map_err(|error| {
        let why = error.to_string();
        let why = why.strip_prefix("rate ").unwrap_or(&why);
        let hint =
            text.trim().parse::<f64>().is_ok_and(|n| n > 0.0).then(|| format!("write `{}/s`", text.trim()));
        ScalarError { code: Code::InvalidRate, why: format!("`{name}` {why}, not {{}}"), hint }
    })
}

fn choice(text: &str, name: &str, words: &'static [EnumValue]) -> Result<Value, ScalarError> {
    if let Some(word) = words.iter().find(|word| word.0 == text) {
        return Ok(Value::Enum(word.0));
    }
    let candidates = || words.iter().map(|word| word.0);
    let hint = match synonym(text, candidates()).or_else(|| nearest(text, candidates())) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => format!("use {}", Kind::Enum(words).expected()),
    };
    Err(ScalarError {
        code: Code::UnknownValue,
        why: format!("`{name}`: unknown value: {{}}"),
        hint: Some(hint),
    })
}
