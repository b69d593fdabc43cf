//! Numbers of JSON, compared exactly.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

/// The largest exponent that is told apart; beyond it, numbers of the same digits are equal.
const MAX_EXPONENT: i64 = 1 << 60;

/// A number as JSON writes it, of any length. Two numbers are equal when they have the same value, however they are written.
///
/// No digit is rounded: `0.1` and `0.10000000000000000001` differ, and so do two numbers above 2⁵³.
///
/// ```
/// use lazaret_core::query::Decimal;
/// let number = |text: &str| text.parse::<Decimal>().unwrap();
/// assert_eq!(number("50"), number("5.0e1"));
/// assert!(number("9007199254740993") > number("9007199254740992"));
/// assert!("0x1f".parse::<Decimal>().is_err() && "1,5".parse::<Decimal>().is_err());
/// ```
#[derive(Clone, Debug)]
pub struct Decimal {
    text: String,
    /// `false` for zero.
    negative: bool,
    /// The digits without zeros at either end; none for zero.
    digits: Vec<u8>,
    /// The value is `0.digits × 10^exponent`.
    exponent: i64,
}

/// A text that is not a number of JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid number, expected one such as 50, -1.5 or 1e3")]
pub struct InvalidDecimal;

impl FromStr for Decimal {
    type Err = InvalidDecimal;

    fn from_str(text: &str) -> Result<Self, InvalidDecimal> {
        let (negative, rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (mantissa, exponent) = match rest.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, read_exponent(exponent)?),
            None => (rest, 0),
        };
        let (whole, fraction) = match mantissa.split_once('.') {
            Some((whole, fraction)) if !fraction.is_empty() => (whole, fraction),
            Some(_) => return Err(InvalidDecimal),
            None => (mantissa, ""),
        };
        let is_digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
        let padded = whole.len() > 1 && whole.starts_with('0');
        if whole.is_empty() || padded || !is_digits(whole) || !is_digits(fraction) {
            return Err(InvalidDecimal);
        }
        let all = [whole.as_bytes(), fraction.as_bytes()].concat();
        let Some(first) = all.iter().position(|digit| *digit != b'0') else {
            return Ok(Self { text: text.to_owned(), negative: false, digits: Vec::new(), exponent: 0 });
        };
        let last = all.iter().rposition(|digit| *digit != b'0').unwrap_or(first);
        // Both are lengths in memory, far below the bound of the exponent.
        let point = i64::try_from(whole.len()).unwrap_or(MAX_EXPONENT);
        let leading = i64::try_from(first).unwrap_or(MAX_EXPONENT);
        let exponent = exponent.saturating_add(point).saturating_sub(leading);
        Ok(Self { text: text.to_owned(), negative, digits: all[first..=last].to_vec(), exponent })
    }
}

fn read_exponent(text: &str) -> Result<i64, InvalidDecimal> {
    let (sign, digits) = match text.strip_prefix(['+', '-']) {
        Some(digits) if text.starts_with('-') => (-1, digits),
        Some(digits) => (1, digits),
        None => (1, text),
    };
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(InvalidDecimal);
    }
    Ok(sign * digits.parse::<i64>().map_or(MAX_EXPONENT, |exponent| exponent.min(MAX_EXPONENT)))
}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> Ordering {
        let sign = |number: &Self| match (number.digits.is_empty(), number.negative) {
            (true, _) => 0,
            (false, true) => -1,
            (false, false) => 1,
        };
        // Digits have no zeros at the end, so their order as bytes is that of the fractions.
        let size = || self.exponent.cmp(&other.exponent).then_with(|| self.digits.cmp(&other.digits));
        sign(self).cmp(&sign(other)).then_with(|| if self.negative { size().reverse() } else { size() })
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Decimal {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Decimal {}

impl fmt::Display for Decimal {
    /// The number as it was written.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn number(text: &str) -> Decimal {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn numbers_are_ordered_by_their_value() {
        let ascending = [
            "-1e400",
            "-9007199254740993",
            "-9007199254740992",
            "-10",
            "-9.5",
            "-0.1",
            "0",
            "1e-400",
            "0.1",
            "0.10000000000000000001",
            "0.9",
            "1",
            "9",
            "10",
            "10.01",
            "9007199254740992",
            "9007199254740993",
            "1e400",
        ];
        for (n, low) in ascending.iter().enumerate() {
            for high in &ascending[n + 1..] {
                assert!(number(low) < number(high) && number(high) > number(low), "{low} {high}");
            }
        }
    }

    #[test]
    fn one_value_has_many_spellings() {
        for (one, other) in
            [("0", "-0"), ("0", "0.00e9"), ("50", "5e1"), ("50", "50.0"), ("-0.05", "-5E-2"), ("1e2", "1e+2")]
        {
            assert_eq!(number(one), number(other), "{one} {other}");
        }
        assert_eq!(number("5e01").to_string(), "5e01", "a number is written as it was read");
    }

    #[test]
    fn only_what_json_calls_a_number_is_one() {
        for wrong in
            ["", "-", "+1", "01", ".5", "5.", "1e", "1e+", "1.2.3", "1 ", " 1", "1_000", "NaN", "١", "1e1.5"]
        {
            assert!(wrong.parse::<Decimal>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn an_exponent_beyond_all_bounds_does_not_overflow() {
        let huge = number("1e99999999999999999999999999");
        let tiny = number("1e-99999999999999999999999999");
        assert!(tiny < number("1") && number("1e999") < huge && number("0") < tiny);
    }

    proptest! {
        #[test]
        fn whole_numbers_compare_as_integers(a: i64, b: i64) {
            prop_assert_eq!(number(&a.to_string()).cmp(&number(&b.to_string())), a.cmp(&b));
        }

        #[test]
        fn moving_the_point_keeps_the_value(n: i64, by in 0_u32..30) {
            let zeros = "0".repeat(by as usize);
            prop_assert_eq!(number(&format!("{n}{}", if n == 0 { "" } else { &zeros })), number(&format!("{n}e{by}")));
        }
    }
}
