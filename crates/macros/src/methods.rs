//! Finds the methods that an `impl` block declares, checks their signatures, and removes their attributes.

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::{
    Attribute, Error, FnArg, ImplItem, ImplItemFn, ItemImpl, LitStr, Meta, PathArguments, ReturnType, Token,
    Type,
};

use crate::arguments::Errors;
use crate::expand::SourceKind;
use crate::suggest;

/// The maximum number of parameters of a handler, as for functions.
const MOST_PARAMETERS: usize = 8;

/// All attributes for methods.
const KNOWN: [&str; 8] =
    ["on_insert", "on_update", "on_replace", "on_delete", "on_change", "on_message", "on_error", "filter"];

/// Attributes for the block that users may put on methods by mistake.
const OF_THE_BLOCK: [&str; 4] = ["retry_policy", "dead_letter_queue", "checkpoint", "restart_policy"];

/// The messages that a handler handles.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Fits {
    /// The messages of a MongoDB operation: the name of its variant.
    Operation(&'static str),
    /// The messages of an event type.
    Type(String),
    /// All other messages.
    Others,
}

/// A method that handles messages, filters them or decides about failures.
pub(crate) struct Method {
    pub(crate) function: ImplItemFn,
    /// The types of the parameters, without the receiver.
    pub(crate) parameters: Vec<Type>,
    /// The `#[cfg]` attributes of the method.
    pub(crate) conditions: Vec<Attribute>,
}

/// The methods that a block declares.
#[derive(Default)]
pub(crate) struct Methods {
    pub(crate) handlers: Vec<(Vec<Fits>, Method)>,
    pub(crate) filter: Option<Method>,
    /// The methods with `#[on_error]`, with the error type that each is for; `None` for all errors.
    pub(crate) on_error: Vec<(Option<Type>, Method)>,
}

impl Methods {
    /// Collects the methods of a block and removes their attributes.
    pub(crate) fn collect(kind: SourceKind, block: &mut ItemImpl, errors: &mut Errors) -> Self {
        let (mut found, mut has_roles) = (Self::default(), false);
        for item in &mut block.items {
            let ImplItem::Fn(function) = item else { continue };
            let (own, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut function.attrs)
                .into_iter()
                .partition(|attribute| name(attribute).is_some());
            function.attrs = rest;
            misplaced(function, errors);
            if !own.is_empty() {
                // An invalid handler is reported as such, and not also as a missing one.
                has_roles |= own.iter().any(|attribute| !is_alone(attribute));
                found.add(kind, function, &own, errors);
            }
        }
        if found.handlers.is_empty() && !has_roles {
            let example = match kind {
                SourceKind::ChangeStream => "`#[on_insert]` or `#[on_change]`",
                SourceKind::Kafka => "`#[on_message]`",
            };
            errors
                .add(Error::new_spanned(&block.self_ty, format!("no handler: mark a method with {example}")));
        }
        found
    }

    fn add(
        &mut self,
        kind: SourceKind,
        function: &ImplItemFn,
        attributes: &[Attribute],
        errors: &mut Errors,
    ) {
        let roles: Vec<&str> = attributes.iter().filter_map(name).collect();
        if let Some(other) =
            attributes.iter().find(|attribute| is_alone(attribute)).filter(|_| roles.len() > 1)
        {
            let role = name(other).unwrap_or_default();
            errors.add(Error::new_spanned(other, format!("a method with `#[{role}]` has no other role")));
            return;
        }
        let mut fits = Vec::new();
        for attribute in attributes {
            match name(attribute) {
                Some("filter") => self.add_filter(function, attribute, errors),
                Some("on_error") => self.add_on_error(function, attribute, errors),
                Some(role) => {
                    fits.extend(errors.take(fitting(kind, role, attribute)).map(|fits| (fits, attribute)));
                }
                None => {}
            }
        }
        if fits.is_empty() {
            return;
        }
        for (fit, attribute) in &fits {
            let taken = self.handlers.iter().find(|(others, _)| others.contains(fit));
            if let Some((_, other)) = taken {
                let role = name(attribute).unwrap_or_default();
                let message =
                    format!("a second handler for `{role}`: `{}` is one already", other.function.sig.ident);
                errors.add(Error::new_spanned(attribute, message));
            }
        }
        let role = name(fits[0].1).unwrap_or_default();
        if function.sig.asyncness.is_none() {
            let message = format!("a handler is async: write `async fn {}`", function.sig.ident);
            errors.add(Error::new(function.sig.fn_token.span(), message));
        }
        if let Some(method) = checked(role, function, errors) {
            if method.parameters.len() > MOST_PARAMETERS {
                let message = format!("a handler has at most {MOST_PARAMETERS} parameters");
                errors.add(Error::new_spanned(&function.sig.inputs, message));
            }
            self.handlers.push((fits.into_iter().map(|(fit, _)| fit).collect(), method));
        }
    }

    fn add_filter(&mut self, function: &ImplItemFn, attribute: &Attribute, errors: &mut Errors) {
        no_arguments(attribute, errors);
        if let Some(first) = &self.filter {
            let message = format!("a second filter: `{}` is one already", first.function.sig.ident);
            errors.add(Error::new_spanned(attribute, message));
            return;
        }
        not_async("filter", function, errors);
        if matches!(function.sig.output, ReturnType::Default) {
            errors.add(Error::new_spanned(
                &function.sig.ident,
                "a filter returns `bool`, or `Result<bool, E>`",
            ));
        }
        let Some(method) = checked("filter", function, errors) else { return };
        for parameter in method.parameters.iter().filter(|parameter| needs_attempt(parameter)) {
            let message = "a filter sees the message alone: there is no attempt yet";
            errors.add(Error::new_spanned(parameter, message));
        }
        self.filter = Some(method);
    }

    fn add_on_error(&mut self, function: &ImplItemFn, attribute: &Attribute, errors: &mut Errors) {
        let of = match &attribute.meta {
            Meta::Path(_) => None,
            _ => match errors.take(attribute.parse_args::<Type>()) {
                Some(of) => Some(of),
                None => return,
            },
        };
        if let Some((_, first)) = self.on_error.iter().find(|(other, _)| *other == of) {
            let message =
                format!("a second handler of this error: `{}` is one already", first.function.sig.ident);
            errors.add(Error::new_spanned(attribute, message));
            return;
        }
        not_async("on_error", function, errors);
        let Some(method) = checked("on_error", function, errors) else { return };
        match method.parameters.first() {
            Some(Type::Reference(_)) => self.on_error.push((of, method)),
            other => {
                let span = other.map_or_else(|| function.sig.ident.span(), Spanned::span);
                let hint = match &of {
                    Some(_) => "the first parameter is the error of this type, by reference",
                    None => "the first parameter is the error: `&HandlerError`",
                };
                errors.add(Error::new(span, hint));
            }
        }
    }
}

/// Returns the name of an attribute for methods.
fn name(attribute: &Attribute) -> Option<&'static str> {
    let last = attribute.path().segments.last()?;
    KNOWN.into_iter().find(|known| last.ident == known)
}

fn is_alone(attribute: &Attribute) -> bool {
    matches!(name(attribute), Some("filter" | "on_error"))
}

/// Reports attributes for the block on a method, and misspelled attributes.
fn misplaced(function: &mut ImplItemFn, errors: &mut Errors) {
    function.attrs.retain(|attribute| {
        let Some(last) = attribute.path().segments.last() else { return true };
        let text = last.ident.to_string();
        if let Some(known) = OF_THE_BLOCK.iter().find(|known| **known == text) {
            let message =
                format!("`#[{known}]` belongs on the `impl` block: it is for all handlers of the consumer");
            errors.add(Error::new_spanned(attribute, message));
            return false;
        }
        if text.starts_with("on_")
            && let Some(meant) = suggest::nearest(&text, &KNOWN)
        {
            let message = format!("unknown attribute `{text}`; did you mean `{meant}`?");
            errors.add(Error::new_spanned(&last.ident, message));
            return false;
        }
        true
    });
}

/// Returns the messages that an attribute selects.
fn fitting(kind: SourceKind, role: &'static str, attribute: &Attribute) -> syn::Result<Fits> {
    let operation = match role {
        "on_insert" => Some("Insert"),
        "on_update" => Some("Update"),
        "on_replace" => Some("Replace"),
        "on_delete" => Some("Delete"),
        _ => None,
    };
    match (kind, role) {
        (SourceKind::Kafka, "on_message") => message_type(attribute),
        (SourceKind::Kafka, _) => {
            let message = "a Kafka message is no change of a document: use `#[on_message]`";
            Err(Error::new_spanned(attribute, message))
        }
        (SourceKind::ChangeStream, "on_message") => {
            let message = "a change stream has changes: use `#[on_insert]`, `#[on_update]`, `#[on_replace]`, \
                           `#[on_delete]` or `#[on_change]`";
            Err(Error::new_spanned(attribute, message))
        }
        (SourceKind::ChangeStream, _) => {
            let mut errors = Errors::default();
            no_arguments(attribute, &mut errors);
            match errors.into_error() {
                Some(error) => Err(error),
                None => Ok(operation.map_or(Fits::Others, Fits::Operation)),
            }
        }
    }
}

/// Parses `#[on_message]` or `#[on_message(type = "OrderPlaced")]`.
fn message_type(attribute: &Attribute) -> syn::Result<Fits> {
    if matches!(attribute.meta, Meta::Path(_)) {
        return Ok(Fits::Others);
    }
    let parse = |input: syn::parse::ParseStream<'_>| {
        let name: syn::Ident = input.call(syn::ext::IdentExt::parse_any)?;
        if name != "type" {
            let message = format!("`on_message` has no attribute `{name}`; it accepts `type`");
            return Err(Error::new(name.span(), message));
        }
        input.parse::<Token![=]>()?;
        input.parse::<LitStr>()
    };
    let text = attribute.parse_args_with(parse)?;
    if text.value().is_empty() {
        return Err(Error::new(text.span(), "`type` must not be empty"));
    }
    Ok(Fits::Type(text.value()))
}

fn no_arguments(attribute: &Attribute, errors: &mut Errors) {
    if !matches!(attribute.meta, Meta::Path(_)) {
        let role = name(attribute).unwrap_or_default();
        errors.add(Error::new_spanned(&attribute.meta, format!("`#[{role}]` has no attributes")));
    }
}

fn not_async(role: &str, function: &ImplItemFn, errors: &mut Errors) {
    if let Some(asyncness) = &function.sig.asyncness {
        let message = format!("a method with `#[{role}]` decides at once: it is not async");
        errors.add(Error::new_spanned(asyncness, message));
    }
}

/// Checks the requirements that all methods share.
fn checked(role: &str, function: &ImplItemFn, errors: &mut Errors) -> Option<Method> {
    let signature = &function.sig;
    let wrong: (Span, &str) = match signature.inputs.first() {
        Some(FnArg::Receiver(receiver)) => match (&receiver.reference, &receiver.mutability) {
            (Some(_), Some(mutable)) => (
                mutable.span(),
                "messages are handled concurrently: take `&self`, and put what changes behind a lock",
            ),
            (Some(_), None) => return parameters(function, errors),
            (None, _) => (receiver.span(), "take `&self`: the value is shared by all attempts"),
        },
        _ => (signature.ident.span(), "the method takes no `&self`"),
    };
    errors.add(Error::new(wrong.0, format!("`#[{role}]`: {}", wrong.1)));
    None
}

fn parameters(function: &ImplItemFn, errors: &mut Errors) -> Option<Method> {
    let signature = &function.sig;
    if let Some(parameter) = signature.generics.params.first() {
        errors.add(Error::new_spanned(
            parameter,
            "a method that is called for messages has no generic parameters",
        ));
        return None;
    }
    let parameters = signature.inputs.iter().filter_map(|input| match input {
        FnArg::Typed(parameter) => Some((*parameter.ty).clone()),
        FnArg::Receiver(_) => None,
    });
    let conditions = function.attrs.iter().filter(|attribute| attribute.path().is_ident("cfg")).cloned();
    Some(Method {
        parameters: parameters.collect(),
        conditions: conditions.collect(),
        function: function.clone(),
    })
}

/// Returns `true` if the name of a parameter's type says that it is about the attempt.
fn needs_attempt(parameter: &Type) -> bool {
    let Type::Path(path) = parameter else { return false };
    let Some(last) = path.path.segments.last() else { return false };
    let is_inner = match &last.arguments {
        PathArguments::AngleBracketed(inner) => inner
            .args
            .iter()
            .any(|inner| matches!(inner, syn::GenericArgument::Type(inner) if needs_attempt(inner))),
        _ => false,
    };
    ["Attempt", "Context", "StoredLetter"].iter().any(|name| last.ident == name) || is_inner
}
