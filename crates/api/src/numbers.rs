//! Formats numbers, durations and times for display, for both the command line and the console.

use jiff::Timestamp;

/// Formats a number with commas: `1,284`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut written = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            written.push(',');
        }
        written.push(digit);
    }
    written
}

/// Formats a duration in its two largest units: `6h12m`.
pub fn span(seconds: f64) -> String {
    // Negative durations come from clock skew.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let seconds = seconds.max(0.0) as u64;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, minutes) => format!("{minutes}m{:02}s", seconds % 60),
        (0, hours, minutes) => format!("{hours}h{minutes:02}m"),
        (days, hours, _) if days < 100 => format!("{days}d{hours:02}h"),
        (days, ..) => format!("{days}d"),
    }
}

/// Formats the age of a time, or `in 5m00s` for a time in the future.
pub fn age(at: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(at).as_secs_f64();
    if seconds < 0.0 { format!("in {}", span(-seconds)) } else { span(seconds) }
}

/// Formats a time to the second, with its age.
pub fn time_with_age(at: Timestamp, now: Timestamp) -> String {
    let seconds = Timestamp::from_second(at.as_second()).unwrap_or(at);
    let (age, ago) = (age(at, now), if at > now { "" } else { " ago" });
    format!("{seconds} ({age}{ago})")
}

/// Formats a count with its noun: `1 letter`, `2 letters`.
pub fn plural(number: u64, word: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    format!("{} {word}{s}", count(number))
}

/// Renders numbers as a sparkline, scaled to the largest number.
pub fn sparkline(numbers: &[u64]) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = numbers.iter().copied().max().unwrap_or(0).max(1);
    let bar = |number: &u64| {
        // Only 0 gets the lowest bar.
        let height = (u128::from(*number) * 7).div_ceil(u128::from(most));
        BARS[usize::try_from(height).unwrap_or(7).min(7)]
    };
    numbers.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_commas() {
        for (number, written) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_284_567, "1,284,567")] {
            assert_eq!(count(number), written);
        }
    }

    #[test]
    fn durations_have_two_units() {
        for (seconds, written) in [
            (-5.0, "0s"),
            (0.9, "0s"),
            (59.0, "59s"),
            (64.0, "1m04s"),
            (3600.0, "1h00m"),
            (22_320.0, "6h12m"),
            (90_000.0, "1d01h"),
            (86_400.0 * 400.0, "400d"),
        ] {
            assert_eq!(span(seconds), written);
        }
    }

    #[test]
    fn ages_are_relative_to_the_given_time() {
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!(age(at(0), at(64)), "1m04s");
        assert_eq!(age(at(64), at(0)), "in 1m04s");
        assert_eq!(time_with_age(Timestamp::new(0, 5).unwrap(), at(64)), "1970-01-01T00:00:00Z (1m03s ago)");
        assert_eq!(time_with_age(at(64), at(0)), "1970-01-01T00:01:04Z (in 1m04s)");
    }

    #[test]
    fn a_sparkline_is_scaled_and_shows_small_values() {
        assert_eq!(sparkline(&[0, 1, 50, 100]), "▁▂▅█");
        assert_eq!(sparkline(&[0, 0]), "▁▁");
        assert_eq!(sparkline(&[u64::MAX, 0]), "█▁");
        assert_eq!(sparkline(&[]), "");
    }

    #[test]
    fn a_letter_and_many() {
        assert_eq!(
            (plural(1, "letter"), plural(1284, "letter")),
            ("1 letter".into(), "1,284 letters".into())
        );
    }
}
