//! Finds words that look like terms of another language, such as `attempts>3` or `state=dead`. Read as text they would find nothing,
//! and an answer without letters looks like good news.

use std::ops::Range;

use super::ast::{Expr, Term};
use super::fields;
use super::parse::{parse, prefix_of};

/// The operators that other languages write between a field and its value, the longer ones first.
const OPERATORS: [&str; 10] = [">=", "<=", "==", "!=", "<>", "=~", "!~", ">", "<", "="];

/// A word that was probably meant as a term.
pub(super) struct Misread {
    pub(super) range: Range<usize>,
    pub(super) message: String,
    pub(super) hint: String,
}

/// Looks at an unquoted word. One with a colon is looked at up to the colon.
pub(super) fn find(text: &str, word: Range<usize>) -> Option<Misread> {
    let (at, operator) = first_operator(&text[word.clone()])?;
    let start = word.start + at;
    let name = &text[word.start..start];
    let value = &text[start + operator.len()..word.end];
    let colon = text[word.clone()].find(':');
    if name.is_empty() {
        return if colon.is_none() { after_a_space(text, word, operator, value) } else { None };
    }
    // A pointer and the name of a header may contain these characters; a colon after them says what was meant.
    let is_prefixed = prefix_of(name).is_some();
    if colon.is_some_and(|colon| colon < at || is_prefixed) {
        return None;
    }
    let name = known_name(name)?;
    let value = if value.is_empty() { next_word(text, word.end) } else { value };
    let message = format!("a colon is missing between {name} and its value");
    Some(Misread { range: word, message, hint: hint(&name, operator, value) })
}

/// An operator that stands alone, or after a field and a space.
fn after_a_space(text: &str, word: Range<usize>, operator: &str, value: &str) -> Option<Misread> {
    let before = text[..word.start].trim_end();
    let previous = before.rsplit(|c: char| c.is_whitespace() || matches!(c, '(' | ')' | '-' | '"')).next();
    let name = previous.filter(|name| !name.contains(':')).and_then(known_name);
    match (name, value.is_empty()) {
        // A pattern such as >* is searched.
        (Some(name), false) if !value.contains('*') => {
            let message = format!("a space stands between {name} and its value");
            Some(Misread { range: word, message, hint: hint(&name, operator, value) })
        }
        (name, true) => {
            let message = format!("this {operator} stands alone");
            let value = next_word(text, word.end);
            let hint = match name {
                Some(name) => hint(&name, operator, value),
                None => "write field:value without spaces, or put it into quotes".to_owned(),
            };
            Some(Misread { range: word, message, hint })
        }
        _ => None,
    }
}

fn first_operator(word: &str) -> Option<(usize, &'static str)> {
    let at = word.find(['<', '>', '=', '!'])?;
    let operator = OPERATORS.into_iter().find(|operator| word[at..].starts_with(operator))?;
    Some((at, operator))
}

/// The name of the field that was written, under any of its names. Similar words are no fields: `order=7` is text.
fn known_name(name: &str) -> Option<String> {
    if prefix_of(name).is_some() {
        return Some(name.to_owned());
    }
    let known = |name: &str| fields::find(name).map(fields::name).or_else(|| fields::alias(name));
    let found = known(name).or_else(|| known(&format!("{name}s"))).or_else(|| known(name.strip_suffix('s')?));
    found.map(str::to_owned)
}

fn next_word(text: &str, from: usize) -> &str {
    let rest = text[from..].trim_start();
    rest.split(|c: char| c.is_whitespace() || matches!(c, '(' | ')' | '"')).next().unwrap_or_default()
}

/// Suggests the first of the possible terms that can be read.
fn hint(name: &str, operator: &str, value: &str) -> String {
    let candidates = match operator {
        "!=" | "<>" => [format!("-{name}:{value}"), format!("-{name}:={value}")],
        "!~" => [format!("-{name}:*{value}*"), format!("-{name}:{value}")],
        "=~" => [format!("{name}:*{value}*"), format!("{name}:{value}")],
        "=" | "==" => [format!("{name}:{value}"), format!("{name}:>{value}")],
        order => [format!("{name}:{order}{value}"), format!("{name}:{value}")],
    };
    let is_term = |text: &String| {
        let is_field = |expr: &Expr| matches!(expr, Expr::Term(term) if !matches!(term, Term::Free(_)));
        parse(text).is_ok_and(|expr| match &expr {
            Expr::Not(inner) => is_field(inner),
            expr => is_field(expr),
        })
    };
    match candidates.iter().find(|text| is_term(text)) {
        Some(term) => format!("did you mean {term}? in quotes it is searched as text"),
        None => format!("write {name}:value, or put it into quotes to search it as text"),
    }
}
