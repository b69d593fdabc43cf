//! Reads the scalars of a file: numbers, durations, words and texts of some form.

use std::time::Duration;

use lazaret_core::policy::Rate;

use crate::code::Code;
use crate::forms;
use crate::quantity;
use crate::suggest::{nearest, synonym};
use crate::table::{Kind, Word};
use crate::value::Value;

/// Why a scalar cannot be what it should be.
pub(crate) struct BadScalar {
    pub(crate) code: Code,
    /// What is wrong; `{}` stands for the value.
    pub(crate) why: String,
    pub(crate) hint: Option<String>,
}

impl BadScalar {
    fn new(code: Code, why: String) -> Self {
        Self { code, why, hint: None }
    }
}

/// Reads a scalar of some kind.
pub(crate) fn typed(kind: &'static Kind, text: &str, name: &str) -> Result<Value, BadScalar> {
    match kind {
        Kind::Flag => flag(text, name).map(Value::Flag),
        Kind::Count { least, most } => count(text, name, *least, *most).map(Value::Count),
        Kind::Number { least, most, above } => number(text, name, *least, *most, *above).map(Value::Number),
        Kind::Jitter => jitter(text, name).map(Value::Number),
        Kind::Duration { zero } => duration(text, name, *zero),
        Kind::Size { least } => size(text, name, *least),
        Kind::Rate => rate(text, name),
        Kind::Choice(words) => choice(text, name, words),
        Kind::Text(form) => forms::read(*form, text).map_err(|bad| {
            let why = if bad.code == Code::EmptyValue {
                format!("`{name}` {}", bad.why)
            } else {
                format!("`{name}`: {{}} {}", bad.why)
            };
            BadScalar { code: bad.code, why, hint: bad.hint }
        }),
        _ => Ok(Value::Text(text.to_owned())),
    }
}

fn flag(text: &str, name: &str) -> Result<bool, BadScalar> {
    match text {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => {
            let hint = match text.to_ascii_lowercase().as_str() {
                "yes" | "on" | "y" | "1" | "true" => Some("write `true`".to_owned()),
                "no" | "off" | "n" | "0" | "false" => Some("write `false`".to_owned()),
                _ => None,
            };
            Err(BadScalar {
                code: Code::WrongType,
                why: format!("`{name}` must be true or false, not {{}}"),
                hint,
            })
        }
    }
}

fn count(text: &str, name: &str, least: u64, most: u64) -> Result<u64, BadScalar> {
    let is_negative = text.starts_with('-');
    let range = |is_low: bool| {
        let limits = between(least, most, is_low);
        let why = format!("`{name}` must be {limits}, not {{}}");
        BadScalar { code: Code::OutOfRange, why, hint: (!is_low).then(|| format!("write `{most}` or less")) }
    };
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        let plain: String = text.chars().filter(|c| !"_,' ".contains(*c)).collect();
        let hint =
            (plain != text && plain.bytes().all(|b| b.is_ascii_digit())).then(|| format!("write `{plain}`"));
        return Err(BadScalar {
            code: Code::WrongType,
            why: format!("`{name}` must be a whole number, not {{}}"),
            hint,
        });
    }
    // Digits alone that are no number are too many.
    let value = text.parse::<u64>().map_err(|_| range(is_negative))?;
    if (least..=most).contains(&value) { Ok(value) } else { Err(range(value < least)) }
}

/// "at least 1", "at most 9", "between 1 and 9". Where the most is more than anybody needs, only the limit that was broken.
fn between(least: u64, most: u64, is_low: bool) -> String {
    match (least, most) {
        (least, most) if most >= u64::from(u32::MAX) && is_low => format!("at least {least}"),
        (_, most) if most >= u64::from(u32::MAX) => format!("at most {most}"),
        (0, most) => format!("at most {most}"),
        (least, most) => format!("between {least} and {most}"),
    }
}

fn number(text: &str, name: &str, least: f64, most: f64, above: bool) -> Result<f64, BadScalar> {
    let value = float(text).ok_or_else(|| {
        let hint = text.contains(',').then(|| "decimals stand behind a point: `2.5`".to_owned());
        BadScalar { code: Code::WrongType, why: format!("`{name}` must be a number, not {{}}"), hint }
    })?;
    let fits = value <= most && if above { value > least } else { value >= least };
    if fits {
        return Ok(value);
    }
    let low = if above { format!("above {least}") } else { format!("at least {least}") };
    Err(BadScalar::new(Code::OutOfRange, format!("`{name}` must be {low} and at most {most}, not {{}}")))
}

fn jitter(text: &str, name: &str) -> Result<f64, BadScalar> {
    match text {
        "true" => return Ok(0.2),
        "false" => return Ok(0.0),
        _ => {}
    }
    let value = float(text).ok_or_else(|| {
        let percent = text.strip_suffix('%').and_then(|n| n.trim().parse::<f64>().ok());
        let hint = percent.map(|percent| format!("write `{}`", percent / 100.0));
        BadScalar {
            code: Code::WrongType,
            why: format!("`{name}` must be a number between 0 and 1, true or false, not {{}}"),
            hint,
        }
    })?;
    if (0.0..=1.0).contains(&value) {
        return Ok(value);
    }
    let hint = (1.0..=100.0).contains(&value).then(|| format!("±{value} % is `{}`", value / 100.0));
    Err(BadScalar {
        code: Code::OutOfRange,
        why: format!("`{name}` must be between 0 and 1, not {{}}"),
        hint,
    })
}

/// A finite number, written with digits.
fn float(text: &str) -> Option<f64> {
    let begins_well =
        text.trim_start_matches(['-', '+']).starts_with(|c: char| c.is_ascii_digit() || c == '.');
    text.parse::<f64>().ok().filter(|value| begins_well && value.is_finite())
}

fn duration(text: &str, name: &str, zero: bool) -> Result<Value, BadScalar> {
    let value = quantity::duration(text);
    let value = value.map_err(|bad| BadScalar {
        code: Code::BadDuration,
        why: format!("`{name}`: {}: {{}}", bad.why),
        hint: bad.hint,
    })?;
    if !zero && value < Duration::from_millis(1) {
        return Err(BadScalar::new(Code::OutOfRange, format!("`{name}` must be at least 1ms, not {{}}")));
    }
    Ok(Value::Duration(value))
}

fn size(text: &str, name: &str, least: u64) -> Result<Value, BadScalar> {
    let value = quantity::size(text);
    let value = value.map_err(|bad| BadScalar {
        code: Code::BadSize,
        why: format!("`{name}`: {}: {{}}", bad.why),
        hint: bad.hint,
    })?;
    if value < least {
        return Err(BadScalar::new(
            Code::OutOfRange,
            format!("`{name}` must be at least {}, not {{}}", quantity::size_text(least)),
        ));
    }
    Ok(Value::Size(value))
}

fn rate(text: &str, name: &str) -> Result<Value, BadScalar> {
    text.parse::<Rate>().map(Value::Rate).map_err(|error| {
        let why = error.to_string();
        let why = why.strip_prefix("rate ").unwrap_or(&why);
        let hint =
            text.trim().parse::<f64>().is_ok_and(|n| n > 0.0).then(|| format!("write `{}/s`", text.trim()));
        BadScalar { code: Code::BadRate, why: format!("`{name}` {why}, not {{}}"), hint }
    })
}

fn choice(text: &str, name: &str, words: &'static [Word]) -> Result<Value, BadScalar> {
    if let Some(word) = words.iter().find(|word| word.0 == text) {
        return Ok(Value::Word(word.0));
    }
    let candidates = || words.iter().map(|word| word.0);
    let hint = match synonym(text, candidates()).or_else(|| nearest(text, candidates())) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => format!("use {}", Kind::Choice(words).expected()),
    };
    Err(BadScalar { code: Code::UnknownWord, why: format!("`{name}` cannot be {{}}"), hint: Some(hint) })
}
