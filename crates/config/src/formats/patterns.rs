//! Parses reason codes, regular expressions and cron schedules.

use croner::Cron;
use croner::parser::{CronParser, Seconds};
use jiff::civil::date;
use jiff::tz::TimeZone;
use lazaret_core::Reason;
use lazaret_core::fingerprint::{GroupPattern, InvalidGroupPattern};
use lazaret_core::policy::ErrorTypePattern;
use regex::Regex;

use super::error::{FormatError, bad};
use crate::code::Code;

/// The hint for text that is not a regular expression.
const LITERAL_HINT: &str = "escape a literal character with a backslash";

/// Parses a reason code.
pub(crate) fn reason(text: &str) -> Result<Reason, FormatError> {
    Reason::new(text).map_err(|_| {
        if text == "*" {
            let hint = "`*` is not supported: an empty list, or no key, matches every reason";
            return bad(Code::InvalidReason, "is not a reason code", hint);
        }
        let meant = Reason::from_words(text);
        let hint =
            if meant == Reason::HANDLER_ERROR { String::new() } else { format!("; did you mean `{meant}`?") };
        bad(
            Code::InvalidReason,
            "is not a reason code",
            &format!("use upper-case letters, digits and underscores, a letter first{hint}"),
        )
    })
}

/// Parses the type of an error, for keys that also accept a reason code. Returns `None` for a reason
/// code, valid or not. A type has a package, a wildcard, or letters of both cases, and does not spell a
/// known reason.
pub(crate) fn error_type(text: &str) -> Option<ErrorTypePattern> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_.:$*\\<>".contains(c);
    if !text.chars().all(is_part) || !text.contains(|c: char| c.is_ascii_alphabetic()) {
        return None;
    }
    let is_mixed =
        text.starts_with(|c: char| c.is_ascii_uppercase()) && text.contains(|c: char| c.is_ascii_lowercase());
    let is_reason = || Reason::KNOWN.contains(&Reason::from_words(text));
    let is_qualified = text.contains(['.', ':', '$', '*', '\\']);
    (is_qualified || (is_mixed && !is_reason())).then(|| text.parse().ok()).flatten()
}

/// Parses a regular expression.
pub(crate) fn regex(text: &str) -> Result<Regex, FormatError> {
    Regex::new(text).map_err(|error| regex_error(&error))
}

/// Parses a pattern of a grouping rule.
pub(crate) fn group_pattern(text: &str) -> Result<GroupPattern, FormatError> {
    text.parse().map_err(|error: InvalidGroupPattern| {
        let hint = match &error {
            InvalidGroupPattern::TooLong => "split it into several patterns",
            InvalidGroupPattern::TooComplex => "use fewer or smaller repetitions: `+` instead of `{1000}`",
            InvalidGroupPattern::Syntax(why) if why.starts_with("look-around") => {
                "put what varies in parentheses: `tenant ([a-z]+)`"
            }
            _ => LITERAL_HINT,
        };
        bad(Code::InvalidPattern, error.to_string(), hint)
    })
}

/// Extracts the error from the multi-line message of the regex crate, which is the last line.
fn regex_error(error: &regex::Error) -> FormatError {
    let text = error.to_string();
    let last = text.lines().last().unwrap_or_default().trim();
    let why = last.strip_prefix("error: ").unwrap_or(last);
    bad(Code::InvalidPattern, format!("is not a regular expression: {why}"), LITERAL_HINT)
}

/// Checks a cron schedule.
pub(crate) fn cron(text: &str) -> Result<(), FormatError> {
    let parsed = CronParser::builder().seconds(Seconds::Optional).build().parse(text);
    let parsed = parsed.map_err(|error| {
        let why = match text.split_whitespace().count() {
            5 | 6 => format!("is not a schedule: {}", error.to_string().trim_end_matches('.').to_lowercase()),
            count => format!("is not a schedule: it has {count} fields instead of five or six"),
        };
        bad(
            Code::InvalidSchedule,
            why,
            "write five or six fields, for example `0 */15 * * * *`: second, minute, hour, day, month, weekday",
        )
    })?;
    if fires(&parsed) {
        return Ok(());
    }
    let hint = "check the day and the month: there is no 30th of February";
    Err(bad(Code::InvalidSchedule, "is a schedule that never fires", hint))
}

/// Returns `true` if a schedule fires after the beginning of 2026. The start is fixed, so that no clock
/// is needed.
fn fires(schedule: &Cron) -> bool {
    let from = date(2026, 1, 1).to_zoned(TimeZone::UTC);
    from.is_ok_and(|from| schedule.find_next_occurrence(&from, true).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_type_is_told_from_a_reason_code_and_from_a_mistake_in_one() {
        for text in [
            "NullPointerException",
            "java.lang.NullPointerException",
            "shop::Declined",
            "*Exception",
            "KeyError",
        ] {
            assert_eq!(error_type(text).map(|pattern| pattern.to_string()).as_deref(), Some(text));
        }
        // A type that is spelled like a reason needs a package or a wildcard.
        for text in [
            "TIMEOUT",
            "CARD_DECLINED",
            "timeout",
            "Timeout",
            "card-declined",
            "card declined",
            "*",
            "404",
            "1.5",
            "",
        ] {
            assert!(error_type(text).is_none(), "{text}");
        }
        assert!(error_type("*.Timeout").is_some());
    }
}
