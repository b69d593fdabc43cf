//! Reads the arguments of an attribute: `name = value` and `name(…)`, separated by commas.

use proc_macro2::{Span, TokenStream};
use quote::ToTokens;
use syn::parse::{Parse, ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::{Error, Expr, Ident, Result, Token, parenthesized};

use crate::suggest;

/// One argument.
pub(crate) struct Argument {
    pub(crate) name: Ident,
    pub(crate) value: ArgumentValue,
    /// The name of the attribute that the argument belongs to.
    attribute: &'static str,
}

/// The value of an argument.
pub(crate) enum ArgumentValue {
    /// `= value`.
    Assigned(Expr),
    /// `(…)`.
    List(TokenStream),
    /// The argument has no value.
    Missing,
}

impl Argument {
    /// Returns the attribute with only this argument, on one line, for messages and the effective
    /// configuration.
    pub(crate) fn shown(&self) -> String {
        let Self { name, value, attribute } = self;
        let value = match value {
            ArgumentValue::Assigned(value) => format!(" = {}", value.to_token_stream()),
            ArgumentValue::List(list) => format!("({list})"),
            ArgumentValue::Missing => String::new(),
        };
        format!("#[{attribute}({name}{value})]")
    }

    /// Returns an error at the value, or at the name if there is no value.
    pub(crate) fn error(&self, message: impl std::fmt::Display) -> Error {
        match &self.value {
            ArgumentValue::Assigned(value) => Error::new_spanned(value, message),
            ArgumentValue::List(list) if !list.is_empty() => Error::new_spanned(list, message),
            _ => Error::new(self.name.span(), message),
        }
    }
}

/// The arguments of one attribute.
pub(crate) struct Arguments {
    list: Vec<Argument>,
    pub(crate) span: Span,
}

impl Arguments {
    /// Reads the arguments. Unknown and repeated arguments are added to the errors.
    pub(crate) fn read(
        attribute: &'static str,
        span: Span,
        tokens: TokenStream,
        known: &[&str],
        errors: &mut Errors,
    ) -> Self {
        let parsed = match Punctuated::<RawArgument, Token![,]>::parse_terminated.parse2(tokens) {
            Ok(parsed) => parsed,
            Err(error) => {
                errors.add(error);
                Punctuated::new()
            }
        };
        let mut list: Vec<Argument> = Vec::new();
        for RawArgument { name, value } in parsed {
            let text = name.to_string();
            if !known.contains(&text.as_str()) {
                let hint = suggest::hint(&text, known);
                errors
                    .add(Error::new(name.span(), format!("`{attribute}` has no attribute `{text}`; {hint}")));
            } else if list.iter().any(|argument| argument.name == name) {
                errors.add(Error::new(name.span(), format!("`{text}` is given twice")));
            } else {
                list.push(Argument { name, value, attribute });
            }
        }
        Self { list, span }
    }

    /// Returns an argument by its name.
    pub(crate) fn get(&self, name: &str) -> Option<&Argument> {
        self.list.iter().find(|argument| argument.name == name)
    }
}

struct RawArgument {
    name: Ident,
    value: ArgumentValue,
}

impl Parse for RawArgument {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let name: Ident = input.call(syn::ext::IdentExt::parse_any)?;
        let value = if input.peek(Token![=]) {
            input.parse::<Token![=]>()?;
            ArgumentValue::Assigned(input.parse()?)
        } else if input.peek(syn::token::Paren) {
            let inner;
            parenthesized!(inner in input);
            ArgumentValue::List(inner.parse()?)
        } else {
            ArgumentValue::Missing
        };
        Ok(Self { name, value })
    }
}

/// Collects errors, so that all of them are reported at once.
#[derive(Default)]
pub(crate) struct Errors(Option<Error>);

impl Errors {
    pub(crate) fn add(&mut self, error: Error) {
        match &mut self.0 {
            Some(errors) => errors.combine(error),
            None => self.0 = Some(error),
        }
    }

    /// Returns the value, or records the error.
    pub(crate) fn take<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.add(error)).ok()
    }

    pub(crate) fn into_error(self) -> Option<Error> {
        self.0
    }

    pub(crate) fn finish(self) -> Option<TokenStream> {
        self.0.map(|error| error.to_compile_error())
    }
}
