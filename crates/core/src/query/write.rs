//! From tree to text: the plain form of a query, which reads back as the same tree.

use std::fmt::{self, Display, Formatter, Write as _};

use super::ast::{Expr, GroupPattern, Moment, Needle, NumberBound, PayloadValue, Term, Text, TimeBound};
use super::fields::{Field, name};
use super::values::write_duration;
use crate::policy::Operator;

impl Display for Expr {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::All(parts) => list(f, parts, " ", |part| matches!(part, Self::Any(_))),
            Self::Any(parts) => list(f, parts, " or ", |_| false),
            Self::Not(inner) => match **inner {
                Self::All(_) | Self::Any(_) => write!(f, "-({inner})"),
                Self::Not(_) | Self::Term(_) => write!(f, "-{inner}"),
            },
            Self::Term(term) => term.fmt(f),
        }
    }
}

fn list<T: Display>(
    f: &mut Formatter<'_>,
    parts: &[T],
    between: &str,
    in_brackets: impl Fn(&T) -> bool,
) -> fmt::Result {
    for (n, part) in parts.iter().enumerate() {
        if n > 0 {
            f.write_str(between)?;
        }
        if in_brackets(part) { write!(f, "({part})")? } else { part.fmt(f)? }
    }
    Ok(())
}

fn values<T: Display>(f: &mut Formatter<'_>, field: Field, values: &[T]) -> fmt::Result {
    write!(f, "{}:", name(field))?;
    list(f, values, ",", |_| false)
}

impl Display for Term {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(field, any) => values(f, Field::Text(*field), any),
            Self::State(states) => values(f, Field::State, &Vec::from_iter(states)),
            Self::Error(needles) => values(f, Field::Error, needles),
            Self::Count(field, any) => values(f, Field::Count(*field), any),
            Self::Time(field, any) => values(f, Field::Time(*field), any),
            Self::Group(any) => values(f, Field::Group, any),
            Self::Poison(any) => values(f, Field::Poison, &Vec::from_iter(any)),
            Self::Payload { pointer, any } => named(f, "payload.", pointer, any),
            Self::Header { name, any } => named(f, "header.", name, any),
            Self::Free(Needle::Glob(glob)) => write!(f, "{glob}"),
            // Anything but a plain word might be read as a keyword, a field or a sign.
            Self::Free(Needle::Within(text)) => {
                let plain = text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.'));
                let keyword = ["or", "and", "not"].contains(&text.as_str());
                let prefix = text.starts_with("payload.") || text.starts_with("header.");
                if plain && !keyword && !prefix { f.write_str(text) } else { quoted(f, text) }
            }
        }
    }
}

fn named<T: Display>(f: &mut Formatter<'_>, prefix: &str, name: &str, any: &[T]) -> fmt::Result {
    f.write_str(prefix)?;
    if name.contains(':') {
        quoted(f, name)?;
    } else {
        plain_or_quoted(f, name)?;
    }
    f.write_str(":")?;
    list(f, any, ",", |_| false)
}

impl Display for Text {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Glob(glob) => write!(f, "{glob}"),
            // A star or an operator would be read as such.
            Self::Exact(text) if text.is_empty() || text.contains('*') || Operator::split(text).is_some() => {
                quoted(f, text)
            }
            Self::Exact(text) => plain_or_quoted(f, text),
        }
    }
}

impl Display for PayloadValue {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => text.fmt(f),
            Self::Number(bound) => bound.fmt(f),
        }
    }
}

impl Display for NumberBound {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.operator.as_str(), self.bound)
    }
}

impl Display for Needle {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Glob(glob) => write!(f, "{glob}"),
            Self::Within(text) if text.contains('*') => quoted(f, text),
            Self::Within(text) => plain_or_quoted(f, text),
        }
    }
}

impl Display for TimeBound {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.operator.as_str())?;
        match self.moment {
            Moment::At(time) => write!(f, "{time}"),
            Moment::Ago(by) => f.write_str(&write_duration(by)),
            Moment::Ahead(by) => write!(f, "+{}", write_duration(by)),
        }
    }
}

impl Display for GroupPattern {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut text = String::from("g");
        if let Some(version) = self.version {
            write!(text, "{version}")?;
        }
        write!(text, "_{}", self.digits)?;
        if let Some(queue) = &self.queue {
            write!(text, "@{queue}")?;
        }
        plain_or_quoted(f, &text)
    }
}

fn plain_or_quoted(f: &mut Formatter<'_>, text: &str) -> fmt::Result {
    let special = |c: char| c.is_whitespace() || matches!(c, '(' | ')' | '"' | ',');
    if text.contains(special) { quoted(f, text) } else { f.write_str(text) }
}

fn quoted(f: &mut Formatter<'_>, text: &str) -> fmt::Result {
    f.write_char('"')?;
    for c in text.chars() {
        if matches!(c, '"' | '\\') {
            f.write_char('\\')?;
        }
        f.write_char(c)?;
    }
    f.write_char('"')
}
