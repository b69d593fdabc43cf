//! The small languages of classification rules: a glob for names, a comparison for counts.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::PolicyError;

/// A pattern for a whole name, in which `*` stands for any text. Case-sensitive.
///
/// Matching takes time linear in the text, whatever the pattern.
///
/// ```
/// use lazaret_core::policy::Glob;
/// let glob: Glob = "Case*ed".parse().unwrap();
/// assert!(glob.matches("CaseClosed"));
/// assert!(!glob.matches("CaseClosedAgain"));
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Glob(Arc<str>);

impl Glob {
    /// Returns whether the whole text matches the pattern.
    pub fn matches(&self, text: &str) -> bool {
        let Some((prefix, rest)) = self.0.split_once('*') else {
            return *self.0 == *text;
        };
        let (middle, suffix) = rest.rsplit_once('*').unwrap_or(("", rest));
        let Some(text) = text.strip_prefix(prefix).and_then(|text| text.strip_suffix(suffix)) else {
            return false;
        };
        // The leftmost place of each piece leaves the most room for those that follow.
        let mut left = text;
        middle.split('*').all(|piece| match left.find(piece) {
            Some(found) => {
                left = &left[found + piece.len()..];
                true
            }
            None => false,
        })
    }

    /// The pattern as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Glob {
    type Err = PolicyError;

    fn from_str(pattern: &str) -> Result<Self, PolicyError> {
        if pattern.is_empty() {
            return Err(PolicyError::Invalid {
                field: "pattern",
                why: "must not be empty: use * for any name",
            });
        }
        Ok(Self(pattern.into()))
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// A pattern for the type of an error, by its name: with its package or module (`java.lang.NullPointerException`), or without it
/// (`NullPointerException`). `*` stands for any text. Types are known by name only, so a pattern does not match subclasses.
///
/// ```
/// use lazaret_core::policy::ErrorTypePattern;
/// let pattern: ErrorTypePattern = "NullPointerException".parse().unwrap();
/// assert!(pattern.matches("NullPointerException") && pattern.matches("java.lang.NullPointerException"));
/// assert!(!pattern.matches("shop.MyNullPointerException"));
/// let package: ErrorTypePattern = "java.lang.*".parse().unwrap();
/// assert!(package.matches("java.lang.NullPointerException"));
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ErrorTypePattern(Glob);

impl ErrorTypePattern {
    /// Returns whether the pattern matches the name of a type, with or without what stands before its last part.
    pub fn matches(&self, error_type: &str) -> bool {
        let last = error_type.rsplit(['.', ':', '$', '\\']).next().unwrap_or(error_type);
        self.0.matches(error_type) || self.0.matches(last)
    }

    /// The pattern as text.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl FromStr for ErrorTypePattern {
    type Err = PolicyError;

    fn from_str(pattern: &str) -> Result<Self, PolicyError> {
        pattern.parse().map(Self)
    }
}

impl fmt::Display for ErrorTypePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for ErrorTypePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// A condition on a count, such as the number of the attempt: `>=3`, `>3`, `<2`, `<=2`, `=1` or `3`.
///
/// ```
/// use lazaret_core::policy::Comparison;
/// let late: Comparison = ">=3".parse().unwrap();
/// assert!(late.holds(3) && !late.holds(2));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Comparison {
    operator: Operator,
    bound: u32,
}

/// A comparison operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operator {
    /// `>=`
    AtLeast,
    /// `>`
    Above,
    /// `<=`
    AtMost,
    /// `<`
    Below,
    /// `=`
    Equal,
}

impl Operator {
    /// Those with two characters come before those with one, for the parser.
    const ALL: [Self; 5] = [Self::AtLeast, Self::AtMost, Self::Above, Self::Below, Self::Equal];

    /// The operator that a text begins with, and the rest of the text.
    pub fn split(text: &str) -> Option<(Self, &str)> {
        Self::ALL.into_iter().find_map(|operator| Some((operator, text.strip_prefix(operator.as_str())?)))
    }

    /// Compares a value with a bound.
    pub fn holds<T: Ord>(self, value: &T, bound: &T) -> bool {
        match self {
            Self::AtLeast => value >= bound,
            Self::Above => value > bound,
            Self::AtMost => value <= bound,
            Self::Below => value < bound,
            Self::Equal => value == bound,
        }
    }

    /// The operator as it is written, here and in SQL.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AtLeast => ">=",
            Self::Above => ">",
            Self::AtMost => "<=",
            Self::Below => "<",
            Self::Equal => "=",
        }
    }
}

impl Comparison {
    /// Returns whether this count meets the condition.
    pub fn holds(self, count: u32) -> bool {
        self.operator.holds(&count, &self.bound)
    }

    /// The operator.
    pub const fn operator(self) -> Operator {
        self.operator
    }

    /// The bound.
    pub const fn bound(self) -> u32 {
        self.bound
    }
}

impl FromStr for Comparison {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let text = text.trim();
        let (operator, bound) = Operator::split(text).unwrap_or((Operator::Equal, text));
        let bound = bound.trim_start();
        // `u32::from_str` would take a plus sign.
        let digits = bound.bytes().all(|b| b.is_ascii_digit());
        match bound.parse() {
            Ok(bound) if digits => Ok(Self { operator, bound }),
            _ => Err(PolicyError::Invalid {
                field: "comparison",
                why: "must look like >=3, >3, <2, <=2, =1 or 3",
            }),
        }
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.operator.as_str(), self.bound)
    }
}

/// A condition on a status or exit code: one code (`418`), a class of HTTP (`4xx`), or a range (`500-504`).
///
/// ```
/// use lazaret_core::policy::StatusPattern;
/// let client: StatusPattern = "4xx".parse().unwrap();
/// assert!(client.matches(404) && !client.matches(500));
/// assert!(StatusPattern::from(418).matches(418));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct StatusPattern {
    from: u16,
    to: u16,
}

impl StatusPattern {
    /// Returns whether a code meets the condition.
    pub const fn matches(self, status: u16) -> bool {
        self.from <= status && status <= self.to
    }
}

impl From<u16> for StatusPattern {
    fn from(status: u16) -> Self {
        Self { from: status, to: status }
    }
}

impl FromStr for StatusPattern {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let wrong = PolicyError::Invalid { field: "status", why: "must look like 418, 4xx or 500-504" };
        // `u16::from_str` would take a plus sign.
        let number = |text: &str| {
            let is_number = text.bytes().all(|b| b.is_ascii_digit());
            text.parse::<u16>().ok().filter(|_| is_number)
        };
        let class = |digit: &str| number(digit).filter(|digit| (1..=5).contains(digit) && text.len() == 3);
        let range = match (text.strip_suffix("xx").or_else(|| text.strip_suffix("XX")), text.split_once('-'))
        {
            (Some(digit), _) => class(digit).map(|class| (class * 100, class * 100 + 99)),
            (None, Some((from, to))) => number(from.trim()).zip(number(to.trim())),
            (None, None) => number(text).map(|status| (status, status)),
        };
        match range {
            Some((from, to)) if from <= to => Ok(Self { from, to }),
            _ => Err(wrong),
        }
    }
}

impl fmt::Display for StatusPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.from, self.to) {
            (from, to) if from == to => write!(f, "{from}"),
            (from, to) if (1..=5).contains(&(from / 100)) && from % 100 == 0 && to == from + 99 => {
                write!(f, "{}xx", from / 100)
            }
            (from, to) => write!(f, "{from}-{to}"),
        }
    }
}

impl fmt::Debug for StatusPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_status_is_one_code_a_class_or_a_range() {
        let table =
            [("418", 418, 418), ("4xx", 400, 499), ("5XX", 500, 599), ("500-504", 500, 504), ("0", 0, 0)];
        for (text, from, to) in table {
            let pattern: StatusPattern = text.parse().unwrap();
            assert!(pattern.matches(from) && pattern.matches(to), "{text}");
            assert!(!pattern.matches(to + 1) && (from == 0 || !pattern.matches(from - 1)), "{text}");
            assert_eq!(pattern.to_string().parse::<StatusPattern>().unwrap(), pattern);
        }
        for wrong in
            ["", "x", "xx", "6xx", "0xx", "44xx", "4xy", "500-", "-500", "504-500", "+5", "70000", "4x"]
        {
            assert!(wrong.parse::<StatusPattern>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_glob_fits_the_whole_name() {
        let table = [
            ("Case", "Case", true),
            ("Case", "CaseClosed", false),
            ("Case*", "Case", true),
            ("Case*", "case", false),
            ("*Closed", "CaseClosed", true),
            ("*Closed", "CaseClosedAgain", false),
            ("C*e*d", "CaseClosed", true),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("ab*ba", "aba", false),
            ("*a*b*", "xbxa", false),
            ("*a*b*", "xaxb", true),
            ("**", "", true),
            ("*é*", "café au lait", true),
        ];
        for (pattern, text, expected) in table {
            assert_eq!(pattern.parse::<Glob>().unwrap().matches(text), expected, "{pattern} {text}");
        }
        assert!("".parse::<Glob>().is_err());
    }

    #[test]
    fn an_error_type_is_found_with_and_without_its_package() {
        let table = [
            ("NullPointerException", "java.lang.NullPointerException", true),
            ("NullPointerException", "NullPointerException", true),
            ("java.lang.NullPointerException", "java.lang.NullPointerException", true),
            ("java.lang.NullPointerException", "NullPointerException", false),
            ("NullPointerException", "com.shop.MyNullPointerException", false),
            ("PaymentError", "shop::PaymentError", true),
            ("Declined", "com.shop.Pay$Declined", true),
            ("Declined", "Shop\\Declined", true),
            ("*Exception", "java.lang.Error", false),
        ];
        for (pattern, error_type, expected) in table {
            let pattern: ErrorTypePattern = pattern.parse().unwrap();
            assert_eq!(pattern.matches(error_type), expected, "{pattern} {error_type}");
        }
        assert!("".parse::<ErrorTypePattern>().is_err());
    }

    #[test]
    fn a_hostile_glob_stays_fast() {
        let glob: Glob = "*a".repeat(2_000).parse().unwrap();
        assert!(!glob.matches(&"a".repeat(1_999)));
        assert!(glob.matches(&"a".repeat(100_000)));
    }

    #[test]
    fn a_comparison_holds_on_the_right_side_of_its_bound() {
        let table = [
            (">=3", [false, true, true]),
            (">3", [false, false, true]),
            ("<3", [true, false, false]),
            ("<=3", [true, true, false]),
            ("=3", [false, true, false]),
            ("3", [false, true, false]),
            (" >= 3 ", [false, true, true]),
        ];
        for (text, expected) in table {
            let comparison: Comparison = text.parse().unwrap();
            assert_eq!([2, 3, 4].map(|n| comparison.holds(n)), expected, "{text}");
            assert_eq!(comparison.to_string().parse(), Ok(comparison));
        }
        for wrong in ["", ">", "=>3", "==3", "+3", "-1", "3.0", "many", "4294967296", ">= 3 4"] {
            assert!(wrong.parse::<Comparison>().is_err(), "{wrong}");
        }
    }

    /// The definition of a glob, in exponential time.
    fn slow(pattern: &[u8], text: &[u8]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some((b'*', rest)) => (0..=text.len()).any(|n| slow(rest, &text[n..])),
            Some((c, rest)) => text.split_first().is_some_and(|(t, left)| t == c && slow(rest, left)),
        }
    }

    proptest! {
        #[test]
        fn a_glob_matches_what_its_definition_says(pattern in "[ab*]{1,7}", text in "[ab]{0,8}") {
            let fast = pattern.parse::<Glob>().unwrap().matches(&text);
            prop_assert_eq!(fast, slow(pattern.as_bytes(), text.as_bytes()));
        }
    }
}
