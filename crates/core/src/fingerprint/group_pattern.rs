//! Patterns of grouping rules: regular expressions for text that varies, of limited size and time.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::fmt;
use std::str::FromStr;

use regex::{Captures, Regex, RegexBuilder};

/// The placeholder of what a pattern matches. It is also that of a number.
const PLACEHOLDER: &str = "#";
/// The longest pattern, in bytes.
const PATTERN_BYTES: usize = 512;
/// The largest compiled pattern, in bytes.
const COMPILED_BYTES: usize = 512 << 10;
/// The matches of one pattern that are replaced in one text. The time for a text is linear because of this limit.
const MATCHES: usize = 64;

/// A regular expression for text that varies between failures with the same cause. Its matches are replaced by `#`; if it has
/// capture groups, only what they match is.
///
/// It takes linear time, and its size is limited.
#[derive(Clone)]
pub struct GroupPattern(Regex);

/// A text that cannot be a pattern of a grouping rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidGroupPattern {
    /// It has no characters, and would match everywhere.
    #[error("is empty")]
    Empty,
    /// The text is too long.
    #[error("is longer than 512 bytes")]
    TooLong,
    /// It needs too much memory.
    #[error("is too complex")]
    TooComplex,
    /// It is not a regular expression.
    #[error("is not a regular expression: {0}")]
    Syntax(String),
}

impl GroupPattern {
    /// The text of the pattern.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// The compiled pattern.
    pub(crate) const fn regex(&self) -> &Regex {
        &self.0
    }

    /// Replaces the matches in a text.
    pub(super) fn replace<'t>(&self, text: Cow<'t, str>) -> Cow<'t, str> {
        let mut result = String::new();
        let mut end = 0;
        for found in self.0.captures_iter(&text).take(MATCHES) {
            for (start, stop) in varying(&found) {
                // A group within another one, and a match without characters, add nothing.
                if start >= end && stop > start {
                    result.push_str(&text[end..start]);
                    result.push_str(PLACEHOLDER);
                    end = stop;
                }
            }
        }
        if end == 0 {
            return text;
        }
        result.push_str(&text[end..]);
        Cow::Owned(result)
    }
}

/// The ranges of a match that vary, in order: its groups, each before those within it, or all of it.
fn varying(found: &Captures<'_>) -> Vec<(usize, usize)> {
    let first = usize::from(found.len() > 1);
    let groups = (first..found.len()).filter_map(|group| found.get(group));
    let mut ranges: Vec<(usize, usize)> = groups.map(|range| (range.start(), range.end())).collect();
    ranges.sort_unstable_by_key(|&(start, end)| (start, Reverse(end)));
    ranges
}

impl FromStr for GroupPattern {
    type Err = InvalidGroupPattern;

    fn from_str(text: &str) -> Result<Self, InvalidGroupPattern> {
        match text.len() {
            0 => return Err(InvalidGroupPattern::Empty),
            1..=PATTERN_BYTES => {}
            _ => return Err(InvalidGroupPattern::TooLong),
        }
        let built = RegexBuilder::new(text).size_limit(COMPILED_BYTES).build();
        built.map(Self).map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => InvalidGroupPattern::TooComplex,
            // The last line of the message says what is wrong; those before it show where.
            error => {
                let text = error.to_string();
                let last = text.lines().last().unwrap_or_default().trim();
                InvalidGroupPattern::Syntax(last.strip_prefix("error: ").unwrap_or(last).to_owned())
            }
        })
    }
}

impl fmt::Debug for GroupPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl PartialEq for GroupPattern {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for GroupPattern {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_patterns_are_refused() {
        let refused = |text: &str| text.parse::<GroupPattern>().unwrap_err();
        assert_eq!(refused(""), InvalidGroupPattern::Empty);
        assert_eq!(refused(&"a".repeat(PATTERN_BYTES + 1)), InvalidGroupPattern::TooLong);
        assert_eq!(refused("(a{1000}){1000}"), InvalidGroupPattern::TooComplex);
        for text in ["(acme", "(a)\\1", "(?<=tenant )a", "a{2,1}"] {
            assert!(matches!(refused(text), InvalidGroupPattern::Syntax(_)), "{text}");
        }
        assert_eq!(refused("(acme").to_string(), "is not a regular expression: unclosed group");
    }

    #[test]
    fn patterns_that_would_backtrack_come_to_an_end() {
        let text = format!("{}!", "a".repeat(1000));
        for pattern in ["(?:a+)+$", "(?:a|aa)+$", "(?:.*a){20}b"] {
            let pattern: GroupPattern = pattern.parse().unwrap();
            assert_eq!(pattern.replace(Cow::Borrowed(&text)), text, "{pattern:?}");
        }
        // Each of its matches is found by looking at all of the text, so their number is limited.
        let pattern: GroupPattern = "a(?:.*x|)".parse().unwrap();
        let replaced = pattern.replace(Cow::Borrowed(&text));
        assert_eq!(replaced.matches(PLACEHOLDER).count(), MATCHES);
        assert_eq!(replaced.len(), text.len());
    }
}
