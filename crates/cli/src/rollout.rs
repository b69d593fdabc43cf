//! How an operation shall go about its letters, as it stands on the command line.

use clap::Args;
use jiff::{SignedDuration, Timestamp};
use lazaret_api::BeginRequest;

/// How an operation goes about its letters.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "How to go about it")]
pub(crate) struct RolloutPolicy {
    /// How many letters in a time: 50/s, 100/m, unlimited; 50/s unless said otherwise
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub rate: Option<f64>,

    /// How many letters in each stage, or none; 1,5,25,100 and the rest unless said otherwise. Each stage waits for the outcome of
    /// the one before
    #[arg(long, value_name = "STAGES", value_parser = ramp)]
    pub ramp: Option<Ramp>,

    /// Pause when more than this share fails again: 5%, 0.05 or never; 5% unless said otherwise
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub stop_at: Option<f64>,

    /// Begin at this time: 2026-01-31T22:00:00Z, or in a while: +90m
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub at: Option<Timestamp>,
}

/// The stages of an operation. A type of its own, because the command line takes them as one value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ramp(pub Vec<u64>);

impl RolloutPolicy {
    /// Writes it into a request.
    pub(crate) fn apply(&self, request: &mut BeginRequest) {
        request.rate = self.rate;
        request.ramp = self.ramp.clone().map(|Ramp(stages)| stages);
        request.stop_at = self.stop_at;
        request.at = self.at;
    }
}

/// `50/s`, `100/m`, `3600/h`, `unlimited`; per second. As the API has it, 0 is no limit.
fn rate(text: &str) -> Result<f64, String> {
    if text == "unlimited" {
        return Ok(0.0);
    }
    let wrong = || "write it as 50/s, 100/m, 3600/h, or unlimited".to_owned();
    let (number, unit) = text.split_once('/').ok_or_else(wrong)?;
    let number: f64 = number.trim().parse().map_err(|_| wrong())?;
    let seconds = match unit.trim() {
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(wrong()),
    };
    let rate = number / seconds;
    if !rate.is_finite() || rate <= 0.0 {
        return Err("a rate is more than 0".to_owned());
    }
    Ok(rate)
}

fn ramp(text: &str) -> Result<Ramp, String> {
    if text == "none" {
        return Ok(Ramp::default());
    }
    let stage = |text: &str| match text.trim().parse::<u64>() {
        Ok(letters) if letters > 0 => Ok(letters),
        _ => Err(format!("{text:?} is no number of letters: write it as 1,5,25,100, or none")),
    };
    text.split(',').map(stage).collect::<Result<_, _>>().map(Ramp)
}

/// `5%`, `0.05`, `never`.
fn share(text: &str) -> Result<f64, String> {
    if text == "never" {
        return Ok(1.0);
    }
    let (number, divisor) = text.strip_suffix('%').map_or((text, 1.0), |percent| (percent, 100.0));
    let share = number.trim().parse::<f64>().map(|number| number / divisor);
    match share {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("write it as 5%, 0.05, or never".to_owned()),
    }
}

/// A time, or how long from now.
fn time(text: &str) -> Result<Timestamp, String> {
    let wrong = || "write it as 2026-01-31T22:00:00Z, or as +90m".to_owned();
    let Some(wait) = text.strip_prefix('+') else { return text.parse().map_err(|_| wrong()) };
    let wait = duration(wait).map_err(|_| wrong())?;
    Timestamp::now().checked_add(wait).map_err(|error| error.to_string())
}

/// `90m`, `1h 30m`, `30d`.
///
/// # Errors
/// When it is no duration.
pub(crate) fn duration(text: &str) -> Result<SignedDuration, String> {
    let wrong = || format!("{text:?} is no duration: write it as 90s, 15m, 1h 30m or 30d");
    let mut total = SignedDuration::ZERO;
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let number: i64 = rest[..digits].parse().map_err(|_| wrong())?;
        let letters = rest[digits..].find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len() - digits);
        let (unit, after) = rest[digits..].split_at(letters);
        let milliseconds = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "w" => 604_800_000,
            _ => return Err(wrong()),
        };
        let part = number.checked_mul(milliseconds).map(SignedDuration::from_millis);
        total = part.and_then(|part| total.checked_add(part)).ok_or_else(wrong)?;
        rest = after.trim_start();
    }
    Ok(total)
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
        for wrong in ["", "50", "0/s", "-1/s", "x/s", "5/d", "NaN/s", "inf/s"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn stages_are_numbers_of_letters() {
        assert_eq!(ramp("1,5, 25,100"), Ok(Ramp(vec![1, 5, 25, 100])));
        assert_eq!(ramp("none"), Ok(Ramp(vec![])));
        for wrong in ["", "0", "1,,2", "-1", "a"] {
            assert!(ramp(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn shares_are_told_in_two_ways() {
        assert_eq!((share("5%"), share("0.05"), share("never")), (Ok(0.05), Ok(0.05), Ok(1.0)));
        for wrong in ["", "5", "101%", "-1%", "x%", "NaN"] {
            assert!(share(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations_are_written_as_in_the_configuration() {
        for (text, seconds) in [("90s", 90), ("1h 30m", 5400), ("1h30m", 5400), ("30d", 2_592_000), ("0s", 0)]
        {
            assert_eq!(duration(text), Ok(SignedDuration::from_secs(seconds)), "{text}");
        }
        for wrong in ["", "90", "h", "5y", "1h-5m", "99999999999999999999s", "ü"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_time_may_be_from_now() {
        assert_eq!(time("2026-01-31T22:00:00+01:00"), Ok("2026-01-31T21:00:00Z".parse().unwrap()));
        let ahead = time("+1h").unwrap().duration_since(Timestamp::now());
        assert!(ahead > SignedDuration::from_mins(59) && ahead <= SignedDuration::from_hours(1), "{ahead}");
        for wrong in ["", "tomorrow", "+", "22:00"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }
}
