//! Numbers and times as BSON has them.

use bson::DateTime;
use jiff::Timestamp;

/// A number in BSON. Larger ones saturate; offsets are checked before.
pub(crate) fn int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A number from BSON.
pub(crate) fn uint(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

/// A time in nanoseconds since 1970, saturating in 1677 and 2262.
pub(crate) fn nanos(time: Timestamp) -> i64 {
    let nanos = time.as_nanosecond();
    i64::try_from(nanos).unwrap_or(if nanos < 0 { i64::MIN } else { i64::MAX })
}

/// A time from nanoseconds.
pub(crate) fn time(nanos: i64) -> Timestamp {
    Timestamp::from_nanosecond(nanos.into()).unwrap_or(Timestamp::MAX)
}

/// A time as people and other tools read it, in milliseconds.
pub(crate) fn date(time: Timestamp) -> DateTime {
    DateTime::from_millis(time.as_millisecond())
}

/// A value as its text.
pub(crate) mod text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(crate) fn serialize<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(crate) fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
    where
        T: FromStr,
        T::Err: Display,
        D: Deserializer<'de>,
    {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_keep_their_nanoseconds_and_saturate() {
        for moment in [Timestamp::UNIX_EPOCH, time(1), time(-1), time(i64::MAX)] {
            assert_eq!(time(nanos(moment)), moment);
        }
        assert_eq!(nanos(Timestamp::MAX), i64::MAX);
        assert_eq!(nanos(Timestamp::MIN), i64::MIN);
    }
}
