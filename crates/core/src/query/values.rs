//! Parses the value after the colon, for each kind of field.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use jiff::Timestamp;

use super::ast::{
    GroupPattern, Moment, Needle, NumberBound, PayloadValue, Term, Text, TextField, TimeBound, TimeField,
    lower,
};
use super::error::QueryError;
use super::fields::{Field, name, nearest_of};
use super::parse::{Parser, Value};
use crate::failure::Phase;
use crate::letter::LetterState;
use crate::message::QueueName;
use crate::policy::{Glob, Operator};

type Result<T> = std::result::Result<T, QueryError>;

const DURATION_HINT: &str = "durations look like 90s, 15m, 1h30m, 2d or 1w";

/// A field with its values.
pub(super) fn term(parser: &Parser<'_>, field: Field, values: Vec<Value>) -> Result<Term> {
    Ok(match field {
        Field::Text(field) => Term::Text(field, each(values, |value| text_of(parser, field, value))?),
        Field::Error => {
            let mut needles = Vec::new();
            for value in values {
                if value.text.is_empty() {
                    return parser.fail(value.range, "there is nothing to look for", "");
                }
                needles.push(needle(&value));
            }
            Term::Error(needles)
        }
        Field::State => {
            Term::State(each(values, |value| states(parser, &value))?.into_iter().flatten().collect())
        }
        Field::Count(field) => {
            let read = |value: Value| match value.text.parse() {
                Ok(comparison) => Ok(comparison),
                Err(_) => {
                    let message = format!("{} is not a number with an operator", value.text);
                    let name = name(Field::Count(field));
                    parser.fail(value.range, message, format!("write {name}:3, {name}:>=3 or {name}:<3"))
                }
            };
            Term::Count(field, each(values, read)?)
        }
        Field::Time(field) => Term::Time(field, each(values, |value| time_bound(parser, field, &value))?),
        Field::Group => Term::Group(each(values, |value| group(parser, &value))?),
        Field::Poison => {
            let read = |value: Value| match lower(&value.text).as_str() {
                "true" => Ok(true),
                "false" => Ok(false),
                _ => parser.fail(value.range, "poison is true or false", ""),
            };
            Term::Poison(each(values, read)?.into_iter().collect::<BTreeSet<bool>>())
        }
    })
}

fn each<T>(values: Vec<Value>, read: impl FnMut(Value) -> Result<T>) -> Result<Vec<T>> {
    values.into_iter().map(read).collect()
}

/// A value of the payload.
pub(super) fn payload(
    parser: &Parser<'_>,
    range: Range<usize>,
    pointer: String,
    values: Vec<Value>,
) -> Result<Term> {
    if !pointer.is_empty() && !pointer.starts_with('/') {
        let hint = format!("write payload./{}:value", pointer.replace('.', "/"));
        return parser.fail(range, "a JSON pointer begins with /", hint);
    }
    let escaped = pointer.split('~').skip(1).all(|after| after.starts_with(['0', '1']));
    if !escaped {
        let hint = "in a JSON pointer, write ~0 for ~ and ~1 for / in a name";
        return parser.fail(range, "a ~ stands alone in this JSON pointer", hint);
    }
    let any = each(values, |value| match Operator::split(&value.text).filter(|_| !value.quoted) {
        Some((operator, number)) => {
            number_bound(parser, &value, operator, number.trim()).map(PayloadValue::Number)
        }
        None => Ok(PayloadValue::Text(text(&value))),
    })?;
    Ok(Term::Payload { pointer, any })
}

fn number_bound(parser: &Parser<'_>, value: &Value, operator: Operator, number: &str) -> Result<NumberBound> {
    let (message, hint) = match number.parse() {
        Ok(bound) => return Ok(NumberBound { operator, bound }),
        Err(_) if number.is_empty() => {
            ("a number is missing here".to_owned(), "write it directly after the operator".to_owned())
        }
        Err(_) => {
            let quoted = format!("put text into quotes: \"{}\"", value.text);
            (format!("{number} is not a number"), format!("numbers look like 50, -1.5 or 1e3; {quoted}"))
        }
    };
    parser.fail(value.range.clone(), message, hint)
}

/// Refuses an operator before text, which has no order.
fn check_no_operator(parser: &Parser<'_>, field: &str, value: &Value) -> Result<()> {
    let Some((operator, rest)) = Operator::split(&value.text).filter(|_| !value.quoted) else {
        return Ok(());
    };
    let message = format!("{field} is text, and {} does not apply to it", operator.as_str());
    let quoted = format!("put it into quotes to look for it as it is: {field}:\"{}\"", value.text);
    let hint = if operator == Operator::Equal && !rest.is_empty() {
        format!("write {field}:{rest}, or {quoted}")
    } else {
        quoted
    };
    parser.fail(value.range.clone(), message, hint)
}

/// A header.
pub(super) fn header(
    parser: &Parser<'_>,
    range: Range<usize>,
    name: &str,
    values: Vec<Value>,
) -> Result<Term> {
    if name.is_empty() {
        return parser.fail(range, "the name of the header is missing here", "write header.NAME:value");
    }
    let any = each(values, |value| {
        check_no_operator(parser, &format!("header.{name}"), &value)?;
        Ok(text(&value))
    })?;
    Ok(Term::Header { name: name.to_ascii_lowercase(), any })
}

/// A pattern, unless the value is quoted or has no star.
fn glob(value: &Value, text: &str) -> Option<Glob> {
    // A glob refuses only the empty text.
    if !value.quoted && text.contains('*') { text.parse().ok() } else { None }
}

fn text(value: &Value) -> Text {
    glob(value, &value.text).map_or_else(|| Text::Exact(value.text.clone()), Text::Glob)
}

/// Parses the substring to search for.
pub(super) fn needle(value: &Value) -> Needle {
    let lowered = lower(&value.text);
    glob(value, &lowered).map_or(Needle::Within(lowered), Needle::Glob)
}

/// Normalises the case of a value to that of the field.
fn text_of(parser: &Parser<'_>, field: TextField, mut value: Value) -> Result<Text> {
    check_no_operator(parser, name(Field::Text(field)), &value)?;
    match field {
        TextField::Id | TextField::Phase => value.text.make_ascii_lowercase(),
        TextField::Reason => value.text.make_ascii_uppercase(),
        _ => {}
    }
    let text = text(&value);
    if let (TextField::Phase, Text::Exact(phase)) = (field, &text)
        && !Phase::ALL.iter().any(|known| known.as_str() == phase)
    {
        let message = format!("there is no phase {phase}");
        let hint = meant(phase, Phase::ALL.iter().map(|known| known.as_str()));
        return parser.fail(value.range, message, hint);
    }
    Ok(text)
}

/// A hint: the most similar value, or all possible ones.
fn meant<'w>(wrong: &str, words: impl Iterator<Item = &'w str> + Clone) -> String {
    match nearest_of(wrong, words.clone()) {
        Some(near) => format!("did you mean {near}?"),
        None => format!("there are {}", words.collect::<Vec<_>>().join(", ")),
    }
}

fn states(parser: &Parser<'_>, value: &Value) -> Result<Vec<LetterState>> {
    let wanted = lower(&value.text);
    let all = LetterState::ALL.into_iter();
    let found: Vec<LetterState> = match wanted.as_str() {
        "open" => all.filter(|state| state.is_open()).collect(),
        "closed" => all.filter(|state| !state.is_open()).collect(),
        _ => all.filter(|state| state.as_str() == wanted).collect(),
    };
    if found.is_empty() {
        let words = LetterState::ALL.iter().map(|state| state.as_str()).chain(["open", "closed"]);
        let hint = meant(&wanted, words);
        return parser.fail(value.range.clone(), format!("there is no state {}", value.text), hint);
    }
    Ok(found)
}

fn time_bound(parser: &Parser<'_>, field: TimeField, value: &Value) -> Result<TimeBound> {
    let name = name(Field::Time(field));
    let Some((operator, rest)) = Operator::split(&value.text).filter(|(op, _)| *op != Operator::Equal) else {
        let hint = format!("write {name}:>1h or {name}:<1h");
        return parser.fail(value.range.clone(), format!("{name} needs one of >, >=, < and <="), hint);
    };
    let rest = rest.trim_start();
    let moment = match (field, rest.strip_prefix('+')) {
        (TimeField::Age, _) => duration(rest).map(Moment::Ago),
        (_, Some(ahead)) => duration(ahead).map(Moment::Ahead),
        _ => duration(rest).map(Moment::Ago).or_else(|| timestamp(rest).map(Moment::At)),
    };
    match (moment, field) {
        (Some(moment), _) => Ok(TimeBound { operator, moment }),
        (None, TimeField::Age) => {
            parser.fail(value.range.clone(), format!("{rest} is not a duration"), DURATION_HINT)
        }
        (None, _) => {
            let hint = format!("times look like 2026-01-31T12:00:00Z or 2026-01-31; {DURATION_HINT}");
            parser.fail(value.range.clone(), format!("{rest} is neither a time nor a duration"), hint)
        }
    }
}

/// A time as in RFC 3339, or the beginning of a day in UTC.
fn timestamp(text: &str) -> Option<Timestamp> {
    let day = text.len() == 10 && text.bytes().all(|b| b.is_ascii_digit() || b == b'-');
    if day { format!("{text}T00:00:00Z").parse().ok() } else { text.parse().ok() }
}

/// The units of durations, in milliseconds, the longest first.
const UNITS: [(&str, u64); 6] =
    [("w", 604_800_000), ("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// A duration such as `1h30m`. Spaces between its parts are allowed.
fn duration(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    let mut total: u64 = 0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, after) = rest.split_at(digits);
        let letters = after.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, after) = after.split_at(letters);
        let (_, millis) = UNITS.iter().find(|(name, _)| *name == unit)?;
        total = total.checked_add(number.parse::<u64>().ok()?.checked_mul(*millis)?)?;
        rest = after.trim_start();
    }
    Some(Duration::from_millis(total))
}

/// A duration as the parser reads it.
pub(super) fn write_duration(duration: Duration) -> String {
    let mut rest = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let mut text = String::new();
    for (name, millis) in UNITS {
        if rest >= millis {
            text += &format!("{}{name}", rest / millis);
            rest %= millis;
        }
    }
    if text.is_empty() { "0s".into() } else { text }
}

/// `g1_4f1c…`, any beginning of it that is longer than `g1_`, `g_4f1c` for every version, each with or without `@queue`.
fn group(parser: &Parser<'_>, value: &Value) -> Result<GroupPattern> {
    let (fingerprint, queue) = match value.text.split_once('@') {
        Some((fingerprint, queue)) => (fingerprint, Some(queue)),
        None => (value.text.as_str(), None),
    };
    let fingerprint = fingerprint.trim_end_matches('*').to_ascii_lowercase();
    let parts = fingerprint.strip_prefix('g').and_then(|rest| rest.split_once('_'));
    let read = parts.and_then(|(version, digits)| {
        let plain = version.bytes().all(|b| b.is_ascii_digit());
        let version = if version.is_empty() { None } else { Some(version.parse().ok()?) };
        let fits = digits.len() <= 16 && digits.bytes().all(|b| b.is_ascii_hexdigit());
        let named = queue.is_none_or(|queue| !queue.is_empty());
        (plain && fits && named).then(|| (version, digits.to_owned()))
    });
    match read {
        Some((version, digits)) => Ok(GroupPattern { version, digits, queue: queue.map(QueueName::from) }),
        None => {
            let message = format!("{} is not the name of a group", value.text);
            let hint = "groups look like g1_4f1c0a9b; the first digits are enough";
            parser.fail(value.range.clone(), message, hint)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written() {
        let table = [
            ("90s", 90_000, "1m30s"),
            ("1h", 3_600_000, "1h"),
            ("2d", 172_800_000, "2d"),
            ("1h30m", 5_400_000, "1h30m"),
            ("1h 30m", 5_400_000, "1h30m"),
            ("250ms", 250, "250ms"),
            ("0s", 0, "0s"),
            ("2w", 1_209_600_000, "2w"),
        ];
        for (text, millis, written) in table {
            let read = duration(text).unwrap();
            assert_eq!(read, Duration::from_millis(millis), "{text}");
            assert_eq!(write_duration(read), written);
            assert_eq!(duration(written), Some(read));
        }
        for wrong in ["", "1", "h", "1x", "1.5h", "-1h", "1h-", "99999999999999999999s", "99999999999999999w"]
        {
            assert_eq!(duration(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn times_are_read() {
        let noon: Timestamp = "2026-01-31T12:00:00Z".parse().unwrap();
        assert_eq!(timestamp("2026-01-31T12:00:00Z"), Some(noon));
        assert_eq!(timestamp("2026-01-31T14:00:00+02:00"), Some(noon));
        assert_eq!(timestamp("2026-01-31"), Some("2026-01-31T00:00:00Z".parse().unwrap()));
        for wrong in ["", "yesterday", "2026-13-01", "2026-01-31T12:00:00"] {
            assert_eq!(timestamp(wrong), None, "{wrong}");
        }
    }
}
