//! Parses values from the command line and from the console's forms: rates, ramps, shares, times and
//! durations.

use jiff::{SignedDuration, Timestamp};

/// The shortest lifetime of a token.
const MIN_LIFETIME: SignedDuration = SignedDuration::from_secs(1);

/// The error for an invalid value. The command line prints it after the value and the option.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ValueError {
    /// The text is not a rate.
    #[error("expected a rate such as 50/s, 100/m or 3600/h, or unlimited")]
    Rate,
    /// The rate is zero or less.
    #[error("a rate must be greater than 0")]
    RateNotPositive,
    /// The text is not a number of letters.
    #[error("{0:?} is not a number of letters: expected stages such as 1,5,25,100, or none")]
    Ramp(String),
    /// The text is not a share.
    #[error("expected a share such as 5% or 0.05, or never")]
    Share,
    /// The text is not a time.
    #[error("expected a time such as 2026-01-31T22:00:00Z, or an offset such as +90m")]
    Time,
    /// The time cannot be represented.
    #[error("the time is out of range")]
    TimeOutOfRange,
    /// The text is not a duration.
    #[error("{0:?} is not a duration: expected 90s, 15m, 1h 30m or 30d")]
    Duration(String),
    /// The lifetime of a token is too short.
    #[error("a token must be valid for at least 1s: expected a lifetime such as 12h or 90d")]
    Lifetime,
}

/// The stages of an operation. A separate type, because the command line parses them as one value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ramp(pub Vec<u64>);

/// Parses a rate per second: `50/s`, `100/m`, `3600/h`, `unlimited`. In the API, 0 means unlimited.
///
/// # Errors
/// When the text is not a positive rate.
pub fn rate(text: &str) -> Result<f64, ValueError> {
    if text == "unlimited" {
        return Ok(0.0);
    }
    let (number, unit) = text.split_once('/').ok_or(ValueError::Rate)?;
    let number: f64 = number.trim().parse().map_err(|_| ValueError::Rate)?;
    let seconds = match unit.trim() {
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(ValueError::Rate),
    };
    let rate = number / seconds;
    if !rate.is_finite() || rate <= 0.0 {
        return Err(ValueError::RateNotPositive);
    }
    Ok(rate)
}

/// Parses stages: `1,5,25,100`, or `none`.
///
/// # Errors
/// When a stage is not a positive number.
pub fn ramp(text: &str) -> Result<Ramp, ValueError> {
    if text == "none" {
        return Ok(Ramp::default());
    }
    let stage = |text: &str| match text.trim().parse::<u64>() {
        Ok(letters) if letters > 0 => Ok(letters),
        _ => Err(ValueError::Ramp(text.to_owned())),
    };
    text.split(',').map(stage).collect::<Result<_, _>>().map(Ramp)
}

/// Parses a share: `5%`, `0.05`, `never`.
///
/// # Errors
/// When the text is not a share between 0 and 1.
pub fn share(text: &str) -> Result<f64, ValueError> {
    if text == "never" {
        return Ok(1.0);
    }
    let (number, divisor) = text.strip_suffix('%').map_or((text, 1.0), |percent| (percent, 100.0));
    let share = number.trim().parse::<f64>().map(|number| number / divisor);
    match share {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err(ValueError::Share),
    }
}

/// Parses a point in time, or an offset from now.
///
/// # Errors
/// When the text is neither a time nor an offset.
pub fn time(text: &str) -> Result<Timestamp, ValueError> {
    let Some(offset) = text.strip_prefix('+') else { return text.parse().map_err(|_| ValueError::Time) };
    let offset = duration(offset).map_err(|_| ValueError::Time)?;
    Timestamp::now().checked_add(offset).map_err(|_| ValueError::TimeOutOfRange)
}

/// Parses a duration: `90m`, `1h 30m`, `30d`.
///
/// # Errors
/// When the text is not a duration.
pub fn duration(text: &str) -> Result<SignedDuration, ValueError> {
    let invalid = || ValueError::Duration(text.to_owned());
    let mut total = SignedDuration::ZERO;
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(invalid());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(invalid)?;
        let number: i64 = rest[..digits].parse().map_err(|_| invalid())?;
        let letters = rest[digits..].find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len() - digits);
        let (unit, after) = rest[digits..].split_at(letters);
        let milliseconds = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "w" => 604_800_000,
            _ => return Err(invalid()),
        };
        let part = number.checked_mul(milliseconds).map(SignedDuration::from_millis);
        total = part.and_then(|part| total.checked_add(part)).ok_or_else(invalid)?;
        rest = after.trim_start();
    }
    Ok(total)
}

/// Parses the lifetime of a token. It is at least one second, because a token that expires at once
/// cannot be used.
///
/// # Errors
/// When the text is not a duration, or the lifetime is too short.
pub fn lifetime(text: &str) -> Result<SignedDuration, ValueError> {
    let lifetime = duration(text)?;
    if lifetime < MIN_LIFETIME {
        return Err(ValueError::Lifetime);
    }
    Ok(lifetime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_per_second() {
        assert_eq!(rate("50/s"), Ok(50.0));
        assert_eq!(rate("90/m"), Ok(1.5));
        assert_eq!(rate("0.5/s"), Ok(0.5));
        assert_eq!(rate("unlimited"), Ok(0.0));
        for invalid in ["", "50", "0/s", "-1/s", "x/s", "5/d", "NaN/s", "inf/s"] {
            assert!(rate(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn stages_are_numbers_of_letters() {
        assert_eq!(ramp("1,5, 25,100"), Ok(Ramp(vec![1, 5, 25, 100])));
        assert_eq!(ramp("none"), Ok(Ramp(vec![])));
        for invalid in ["", "0", "1,,2", "-1", "a"] {
            assert!(ramp(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn shares_are_percentages_or_fractions() {
        assert_eq!((share("5%"), share("0.05"), share("never")), (Ok(0.05), Ok(0.05), Ok(1.0)));
        for invalid in ["", "5", "101%", "-1%", "x%", "NaN"] {
            assert!(share(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn durations_are_written_as_in_the_configuration() {
        for (text, seconds) in [("90s", 90), ("1h 30m", 5400), ("1h30m", 5400), ("30d", 2_592_000), ("0s", 0)]
        {
            assert_eq!(duration(text), Ok(SignedDuration::from_secs(seconds)), "{text}");
        }
        for invalid in ["", "90", "h", "5y", "1h-5m", "99999999999999999999s", "ü"] {
            assert!(duration(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn a_time_may_be_an_offset_from_now() {
        assert_eq!(time("2026-01-31T22:00:00+01:00"), Ok("2026-01-31T21:00:00Z".parse().unwrap()));
        let ahead = time("+1h").unwrap().duration_since(Timestamp::now());
        assert!(ahead > SignedDuration::from_mins(59) && ahead <= SignedDuration::from_hours(1), "{ahead}");
        for invalid in ["", "tomorrow", "+", "22:00"] {
            assert!(time(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn a_token_lives_for_at_least_a_second() {
        assert_eq!(lifetime("12h"), Ok(SignedDuration::from_hours(12)));
        assert_eq!(lifetime("0s"), Err(ValueError::Lifetime));
    }
}
