//! Reads the values of arguments: strings, numbers, flags, durations and choices.

use std::time::Duration;

use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::{Expr, ExprLit, Lit, LitStr, Result, Token, Type, UnOp};

use crate::arguments::{Argument, ArgumentValue};
use crate::{duration, suggest};

/// A list of error types and reason codes.
#[derive(Default)]
pub(crate) struct ErrorList {
    pub(crate) types: Vec<Type>,
    pub(crate) reasons: Vec<String>,
}

impl Argument {
    fn literal(&self) -> Option<&Lit> {
        let ArgumentValue::Assigned(expression) = &self.value else { return None };
        let mut expression = expression;
        while let Expr::Group(group) = expression {
            expression = &group.expr;
        }
        match expression {
            Expr::Lit(ExprLit { lit, .. }) => Some(lit),
            _ => None,
        }
    }

    fn is_negative(&self) -> bool {
        matches!(&self.value, ArgumentValue::Assigned(Expr::Unary(unary)) if matches!(unary.op, UnOp::Neg(_)))
    }

    /// Describes the kind of the value, for messages.
    fn kind(&self) -> &'static str {
        match (self.literal(), &self.value) {
            (Some(Lit::Str(_)), _) => "a string",
            (Some(Lit::Int(_) | Lit::Float(_)), _) => "a number",
            (Some(Lit::Bool(_)), _) => "a flag",
            (_, ArgumentValue::Missing) => "nothing",
            (_, ArgumentValue::List(_)) => "a list",
            _ if self.is_negative() => "a negative number",
            _ => "an expression",
        }
    }

    fn must_be(&self, expected: &str) -> syn::Error {
        self.error(format!("`{}` must be {expected}, not {}", self.name, self.kind()))
    }

    /// Returns the value as a non-empty string.
    pub(crate) fn string(&self) -> Result<String> {
        match self.literal() {
            Some(Lit::Str(text)) if text.value().trim().is_empty() => {
                Err(self.error(format!("`{}` must not be empty", self.name)))
            }
            Some(Lit::Str(text)) => Ok(text.value()),
            _ => Err(self.must_be("a string")),
        }
    }

    pub(crate) fn flag(&self) -> Result<bool> {
        match self.literal() {
            Some(Lit::Bool(flag)) => Ok(flag.value),
            _ => Err(self.must_be("`true` or `false`")),
        }
    }

    /// Returns the value as an integer between two limits.
    pub(crate) fn count(&self, least: u64, most: u64) -> Result<u64> {
        let Some(Lit::Int(number)) = self.literal() else {
            return Err(self.must_be("a whole number"));
        };
        let value = number.base10_parse::<u64>()?;
        if value < least {
            return Err(self.error(format!("`{}` must be at least {least}", self.name)));
        }
        if value > most {
            return Err(self.error(format!("`{}` must be at most {most}", self.name)));
        }
        Ok(value)
    }

    /// Returns the value as a number.
    pub(crate) fn number(&self) -> Result<f64> {
        match self.literal() {
            Some(Lit::Float(number)) => number.base10_parse(),
            Some(Lit::Int(number)) => number.base10_parse(),
            _ => Err(self.must_be("a number")),
        }
    }

    /// Returns the value as a share: `true`, `false`, or a number between 0 and 1.
    pub(crate) fn share(&self) -> Result<f64> {
        match self.literal() {
            Some(Lit::Bool(flag)) => Ok(if flag.value { 0.2 } else { 0.0 }),
            Some(Lit::Float(_) | Lit::Int(_)) => {
                let share = self.number()?;
                if (0.0..=1.0).contains(&share) {
                    return Ok(share);
                }
                Err(self.error(format!("`{}` must be between 0 and 1: 0.2 is ±20 %", self.name)))
            }
            _ => Err(self.must_be("`true`, `false` or a number between 0 and 1")),
        }
    }

    pub(crate) fn duration(&self) -> Result<(String, Duration)> {
        let Some(Lit::Str(text)) = self.literal() else {
            let hint = "a duration in a string, for example \"500ms\" or \"30s\"";
            return Err(self.must_be(hint));
        };
        let parsed = duration::parse(&text.value());
        parsed
            .map(|parsed| (text.value(), parsed))
            .map_err(|why| self.error(format!("`{}`: {why}", self.name)))
    }

    /// Returns the value as one of these choices. Case does not count, and `_` is equivalent to `-`.
    pub(crate) fn choice(&self, choices: &[&'static str]) -> Result<&'static str> {
        let text = self.string()?;
        let plain = text.to_ascii_lowercase().replace('_', "-");
        choices.iter().find(|choice| **choice == plain).copied().ok_or_else(|| {
            let hint = suggest::hint(&plain, choices);
            self.error(format!("`{}`: unknown value `{text}`; {hint}", self.name))
        })
    }

    /// Returns the value as one string or a list of strings.
    pub(crate) fn strings(&self) -> Result<Vec<String>> {
        let ArgumentValue::Assigned(Expr::Array(array)) = &self.value else {
            return self.string().map(|text| vec![text]).map_err(|error| match self.literal() {
                Some(Lit::Str(_)) => error,
                _ => self.must_be("a string or a list of strings"),
            });
        };
        let texts = array.elems.iter().map(|element| match element {
            Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) if !text.value().trim().is_empty() => {
                Ok(text.value())
            }
            other => Err(syn::Error::new_spanned(
                other,
                format!("`{}` holds strings that are not empty", self.name),
            )),
        });
        let texts: Vec<String> = texts.collect::<Result<_>>()?;
        if texts.is_empty() {
            return Err(self.error(format!("`{}` must not be empty", self.name)));
        }
        Ok(texts)
    }

    /// Returns the error types and the reason codes (as strings) in parentheses.
    pub(crate) fn errors(&self) -> Result<ErrorList> {
        let ArgumentValue::List(tokens) = &self.value else {
            return Err(
                self.error(format!("write error types in parentheses: `{}(TimeoutError)`", self.name))
            );
        };
        let mut list = ErrorList::default();
        for item in Punctuated::<ErrorItem, Token![,]>::parse_terminated.parse2(tokens.clone())? {
            match item {
                ErrorItem::Type(error) => list.types.push(*error),
                ErrorItem::Reason(reason) => list.reasons.push(reason_code(&reason)?),
            }
        }
        Ok(list)
    }
}

enum ErrorItem {
    Type(Box<Type>),
    Reason(LitStr),
}

impl syn::parse::Parse for ErrorItem {
    fn parse(input: syn::parse::ParseStream<'_>) -> Result<Self> {
        if input.peek(LitStr) { input.parse().map(Self::Reason) } else { input.parse().map(Self::Type) }
    }
}

fn reason_code(reason: &LitStr) -> Result<String> {
    let text = reason.value();
    let is_code = text.len() <= 64
        && text.starts_with(|c: char| c.is_ascii_uppercase())
        && text.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_');
    if is_code {
        return Ok(text);
    }
    let message = "a reason code has 1 to 64 upper-case letters, digits and underscores, a letter first, for example \
                   \"TIMEOUT\"; an error type is written without quotes";
    Err(syn::Error::new_spanned(reason, message))
}
