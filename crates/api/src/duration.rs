//! Durations in JSON, as fractional seconds.

use std::time::Duration;

/// A number of seconds that is not a valid duration.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("{0} seconds is not a valid duration")]
pub struct InvalidDuration(pub f64);

/// Converts seconds to a duration.
pub(crate) fn from_seconds(seconds: f64) -> Result<Duration, InvalidDuration> {
    // Exact to the nanosecond for any realistic duration.
    Duration::try_from_secs_f64(seconds).map_err(|_| InvalidDuration(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_round_trip() {
        for duration in [
            Duration::ZERO,
            Duration::from_nanos(1),
            Duration::from_millis(1234),
            Duration::new(86_400, 999_999_999),
        ] {
            assert_eq!(from_seconds(duration.as_secs_f64()).unwrap(), duration);
        }
        for seconds in [-1.0, f64::NAN, f64::INFINITY, 1e300] {
            assert!(from_seconds(seconds).is_err(), "{seconds}");
        }
    }
}
