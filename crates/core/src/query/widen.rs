//! Leaves terms out of a query, so that it matches whatever they say.

use super::Query;
use super::ast::{Expr, Term};

impl Query {
    /// The query without the terms for which the predicate holds. It matches every letter that this query can match, whatever the values
    /// of those terms are; callers compare them themselves.
    ///
    /// ```
    /// use lazaret_core::query::{Query, Term};
    /// let widened = |text: &str| {
    ///     let query = Query::parse(text).unwrap();
    ///     query.widened(&|term| matches!(term, Term::Error(_))).to_string()
    /// };
    /// assert_eq!(widened("state:dead error:4111"), "state:dead");
    /// assert_eq!(widened("state:dead -error:4111"), "state:dead");
    /// assert_eq!(widened("state:dead (error:4111 or type:x)"), "state:dead");
    /// assert_eq!(widened("-(error:4111 type:x) -(error:4111 or type:y)"), "-type:y");
    /// ```
    #[must_use]
    pub fn widened(&self, leaves_out: &impl Fn(&Term) -> bool) -> Self {
        let expr = without(&self.expr, true, leaves_out).unwrap_or(Expr::All(Vec::new()));
        Self { text: self.text.clone(), expr, names_state: self.names_state }
    }
}

/// The expression without some terms. What remains holds at least where the whole can hold (`wide`), or at most where it must hold.
/// `None` if nothing remains that decides: it holds always, or never.
fn without(expr: &Expr, wide: bool, leaves_out: &impl Fn(&Term) -> bool) -> Option<Expr> {
    match expr {
        Expr::Term(term) if leaves_out(term) => None,
        Expr::Term(_) => Some(expr.clone()),
        Expr::Not(inner) => Some(Expr::Not(Box::new(without(inner, !wide, leaves_out)?))),
        Expr::All(parts) => {
            let parts = parts.iter().map(|part| without(part, wide, leaves_out));
            let parts: Vec<Expr> =
                if wide { parts.flatten().collect() } else { parts.collect::<Option<_>>()? };
            let flat = parts.into_iter().flat_map(|part| match part {
                Expr::All(inner) => inner,
                other => vec![other],
            });
            Some(single(flat.collect(), Expr::All)).filter(|all| !wide || *all != Expr::All(Vec::new()))
        }
        Expr::Any(parts) => {
            let parts = parts.iter().map(|part| without(part, wide, leaves_out));
            let parts: Vec<Expr> =
                if wide { parts.collect::<Option<_>>()? } else { parts.flatten().collect() };
            let flat = parts.into_iter().flat_map(|part| match part {
                Expr::Any(inner) => inner,
                other => vec![other],
            });
            Some(single(flat.collect(), Expr::Any)).filter(|any| *any != Expr::Any(Vec::new()))
        }
    }
}

/// A list, or its only member.
fn single(mut parts: Vec<Expr>, list: impl Fn(Vec<Expr>) -> Expr) -> Expr {
    if parts.len() == 1 { parts.remove(0) } else { list(parts) }
}
