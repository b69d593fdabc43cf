//! Takes the conditions on content out of a query, for stores that cannot read it.

use super::Query;
use super::ast::{Expr, Term};

impl Term {
    /// Returns whether this is a condition on the payload, a header or the text of a failure. A word without a field is one, too.
    pub const fn reads_content(&self) -> bool {
        matches!(self, Self::Payload { .. } | Self::Header { .. } | Self::Error(_) | Self::Free(_))
    }
}

impl Query {
    /// The query without its conditions on content: every letter that matches this query matches that one, too. `None` if it has no such
    /// condition.
    ///
    /// ```
    /// use lazaret_core::query::Query;
    /// let weaker = |text| Query::parse(text).unwrap().without_content().map(|query| query.to_string());
    /// assert_eq!(weaker("state:dead error:boom").as_deref(), Some("state:dead"));
    /// assert_eq!(weaker("state:dead or error:boom").as_deref(), Some(""));
    /// assert_eq!(weaker("-(type:a boom)").as_deref(), Some(""));
    /// assert_eq!(weaker("-(type:a or boom)").as_deref(), Some("-type:a"));
    /// assert_eq!(weaker("state:dead"), None);
    /// ```
    #[must_use]
    pub fn without_content(&self) -> Option<Self> {
        if !self.expr.any_term(&Term::reads_content) {
            return None;
        }
        let expr = bounded(&self.expr, Bound::Above).unwrap_or_else(|| Expr::All(Vec::new()));
        Some(Self { text: self.text.clone(), expr, names_state: self.names_state })
    }
}

/// What the result has to be, compared with the condition.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bound {
    /// It holds wherever the condition does. Without anything left, it always holds.
    Above,
    /// It holds nowhere else. Without anything left, it never holds.
    Below,
}

impl Bound {
    const fn opposite(self) -> Self {
        match self {
            Self::Above => Self::Below,
            Self::Below => Self::Above,
        }
    }
}

/// The condition without its terms on content; `None` if nothing is left.
fn bounded(expr: &Expr, bound: Bound) -> Option<Expr> {
    match expr {
        Expr::Term(term) => (!term.reads_content()).then(|| expr.clone()),
        Expr::Not(inner) => bounded(inner, bound.opposite()).map(|inner| Expr::Not(Box::new(inner))),
        Expr::All(parts) => {
            let parts = parts.iter().map(|part| bounded(part, bound));
            joined(
                if bound == Bound::Above {
                    parts.flatten().collect()
                } else {
                    parts.collect::<Option<_>>()?
                },
                true,
            )
        }
        Expr::Any(parts) => {
            let parts = parts.iter().map(|part| bounded(part, bound));
            joined(
                if bound == Bound::Below {
                    parts.flatten().collect()
                } else {
                    parts.collect::<Option<_>>()?
                },
                false,
            )
        }
    }
}

/// A list without lists of the same kind in it, and none of one member.
fn joined(parts: Vec<Expr>, is_all: bool) -> Option<Expr> {
    let mut flat = Vec::with_capacity(parts.len());
    for part in parts {
        match part {
            Expr::All(inner) if is_all => flat.extend(inner),
            Expr::Any(inner) if !is_all => flat.extend(inner),
            other => flat.push(other),
        }
    }
    match flat.len() {
        0 | 1 => flat.pop(),
        _ if is_all => Some(Expr::All(flat)),
        _ => Some(Expr::Any(flat)),
    }
}
