//! Writes the declaration of a consumer from the attributes on an `impl` block and its methods.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Attribute, Error, Ident, ItemImpl, Meta, Type};

use crate::arguments::Errors;
use crate::attributes::change_stream::{self, ChangeStream, Watch};
use crate::attributes::dead_letter_queue::{self, DeadLetterQueue};
use crate::attributes::kafka_listener::{self, KafkaListener};
use crate::attributes::retry_policy::{self, RetryPolicy};
use crate::attributes::{Setting, checkpoint, restart_policy};
use crate::methods::{Fits, Method, Methods};

/// The kind of the declared source.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SourceKind {
    ChangeStream,
    Kafka,
}

/// Returns `true` if an attribute declares a source.
pub(crate) fn is_source(attribute: &Attribute) -> bool {
    is(attribute, change_stream::NAME) || is(attribute, kafka_listener::NAME)
}

fn is(attribute: &Attribute, name: &str) -> bool {
    attribute.path().segments.last().is_some_and(|last| last.ident == name)
}

/// All declarations of the attributes on the block.
struct Declared {
    source: Source,
    settings: Vec<Setting>,
    retry: Option<RetryPolicy>,
    dead_letters: DeadLetterQueue,
}

enum Source {
    ChangeStream(ChangeStream),
    Kafka(KafkaListener),
}

/// Expands `#[change_stream]` or `#[kafka_listener]`.
pub(crate) fn expand(kind: SourceKind, arguments: TokenStream, item: TokenStream) -> TokenStream {
    let mut errors = Errors::default();
    let Ok(mut block) = syn::parse2::<ItemImpl>(item.clone()) else {
        let message = "this attribute belongs on the `impl` block that has the handlers";
        let error = Error::new(Span::call_site(), message).to_compile_error();
        return quote!(#error #item);
    };
    if let Some((_, path, _)) = &block.trait_ {
        errors.add(Error::new_spanned(path, "handlers are declared on an `impl` block without a trait"));
    }
    let declared = Declared::read(kind, arguments, &mut block, &mut errors);
    let methods = Methods::collect(kind, &mut block, &mut errors);
    match errors.finish() {
        // The declaration is kept, so that code that uses it reports no further errors.
        Some(errors) => {
            let declaration = implement(&block, &quote!(::std::unreachable!("it does not compile")));
            quote!(#errors #block #declaration)
        }
        None => {
            let body = body(&declared, &methods, &block.self_ty);
            let declaration = implement(&block, &body);
            quote!(#block #declaration)
        }
    }
}

fn implement(block: &ItemImpl, body: &TokenStream) -> TokenStream {
    let (generics, _, conditions) = block.generics.split_for_impl();
    let (name, attributes) = (&block.self_ty, block.attrs.iter().filter(|attribute| is(attribute, "cfg")));
    quote! {
        #(#attributes)*
        #[automatically_derived]
        impl #generics ::lazaret::declare::Declare for #name #conditions {
            fn declare(self) -> ::lazaret::declare::Declaration {
                #body
            }
        }
    }
}

impl Declared {
    fn read(kind: SourceKind, arguments: TokenStream, block: &mut ItemImpl, errors: &mut Errors) -> Self {
        let here = Span::call_site();
        let source = match kind {
            SourceKind::ChangeStream => Source::ChangeStream(ChangeStream::read(here, arguments, errors)),
            SourceKind::Kafka => Source::Kafka(KafkaListener::read(here, arguments, errors)),
        };
        let mut this =
            Self { source, settings: Vec::new(), retry: None, dead_letters: DeadLetterQueue::default() };
        let mut seen: Vec<&str> = Vec::new();
        let names = [retry_policy::NAME, dead_letter_queue::NAME, checkpoint::NAME, restart_policy::NAME];
        block.attrs.retain(|attribute| {
            if is_source(attribute) {
                errors.add(Error::new_spanned(attribute, "an `impl` block declares one consumer"));
                return false;
            }
            let Some(name) = names.into_iter().find(|name| is(attribute, name)) else { return true };
            if seen.contains(&name) {
                errors.add(Error::new_spanned(attribute, format!("`#[{name}]` is given twice")));
                return false;
            }
            seen.push(name);
            let tokens = match &attribute.meta {
                Meta::Path(_) => TokenStream::new(),
                Meta::List(list) => list.tokens.clone(),
                Meta::NameValue(_) => {
                    errors.add(Error::new_spanned(attribute, format!("write `#[{name}(…)]`")));
                    return false;
                }
            };
            this.add(kind, name, attribute, tokens, errors);
            false
        });
        this
    }

    fn add(
        &mut self,
        kind: SourceKind,
        name: &str,
        attribute: &Attribute,
        tokens: TokenStream,
        errors: &mut Errors,
    ) {
        let span = attribute.span();
        match (name, kind) {
            (retry_policy::NAME, _) => self.retry = Some(RetryPolicy::read(span, tokens, errors)),
            (dead_letter_queue::NAME, _) => self.dead_letters = DeadLetterQueue::read(span, tokens, errors),
            (restart_policy::NAME, SourceKind::ChangeStream) => {
                self.settings.extend(restart_policy::read(span, tokens, errors));
            }
            (restart_policy::NAME, SourceKind::Kafka) => {
                let message = "`#[restart_policy]` is for change streams: a Kafka client connects again by itself, and \
                               `reconnect.backoff.ms` in the configuration says when";
                errors.add(Error::new_spanned(attribute, message));
            }
            (_, SourceKind::ChangeStream) => self.settings.extend(checkpoint::read(span, tokens, errors)),
            (_, SourceKind::Kafka) => {
                let message = "`#[checkpoint]` is for change streams: the positions of a Kafka group are in Kafka, and \
                               `commit-interval` in the configuration says how often they are committed";
                errors.add(Error::new_spanned(attribute, message));
            }
        }
    }
}

/// Returns the body of `Declare::declare`.
fn body(declared: &Declared, methods: &Methods, of: &Type) -> TokenStream {
    let (source, name, settings) = match &declared.source {
        Source::ChangeStream(stream) => (change_stream_value(stream), &stream.name, &stream.settings),
        Source::Kafka(listener) => {
            (quote!(::lazaret::declare::DeclaredSource::Kafka), &listener.name, &listener.settings)
        }
    };
    let name = name.clone().unwrap_or_else(|| kebab_case(&type_name(of)));
    let retry = declared.retry.iter().flat_map(|retry| &retry.settings);
    let settings = settings
        .iter()
        .chain(&declared.settings)
        .chain(retry)
        .chain(&declared.dead_letters.settings)
        .map(setting);
    let defaults = declared.retry.is_none().then(|| {
        // Without a retry policy, the first failure is the last.
        setting(&Setting {
            attribute: "no #[retry_policy]".to_owned(),
            key: "retry.max-attempts",
            value: "1".to_owned(),
        })
    });
    let (collection, client) =
        (option(&declared.dead_letters.collection), option(&declared.dead_letters.client));
    let (routes, others) = (routes(methods), ignore_others(declared, methods));
    let (classifier, filter, on_error) = (classifier(declared), filter(methods), on_error(methods));
    quote! {
        let this = ::std::sync::Arc::new(self);
        let router = ::lazaret::handler::Router::<::std::sync::Arc<Self>>::new();
        #(#routes)*
        #others
        let declaration = ::lazaret::declare::__private::declaration(
            #name,
            #source,
            ::std::vec![#(#settings),*],
            ::std::vec![#defaults],
            (#collection, #client),
            ::lazaret::handler::Handler::with_state(router, ::std::sync::Arc::clone(&this)),
        );
        #classifier
        #filter
        #on_error
        declaration
    }
}

fn change_stream_value(stream: &ChangeStream) -> TokenStream {
    let watch = match stream.watch {
        Watch::Collection => quote!(Collection),
        Watch::Database => quote!(Database),
        Watch::Deployment => quote!(Deployment),
    };
    let client = option(&stream.client);
    quote! {
        ::lazaret::declare::DeclaredSource::ChangeStream {
            watch: ::lazaret::declare::Watch::#watch,
            client: #client,
        }
    }
}

fn setting(Setting { attribute, key, value }: &Setting) -> TokenStream {
    quote!(::lazaret::declare::Setting::new(#attribute, #key, #value))
}

fn option(text: &Option<String>) -> TokenStream {
    match text {
        Some(text) => quote!(::std::option::Option::Some(#text)),
        None => quote!(::std::option::Option::None),
    }
}

/// Returns one statement per method and kind of message that it handles.
fn routes(methods: &Methods) -> impl Iterator<Item = TokenStream> {
    methods.handlers.iter().map(|(fits, method)| {
        let Method { parameters, conditions, function } = method;
        let name = &function.sig.ident;
        let arguments = arguments(parameters.len());
        let checks = parameters.iter().map(extractor_check);
        let result = match &function.sig.output {
            syn::ReturnType::Default => None,
            syn::ReturnType::Type(_, result) => Some(quote_spanned! {result.span()=>
                ::lazaret::declare::__private::assert_outcome::<_, #result>();
            }),
        };
        let added = fits.iter().map(|fits| match fits {
            Fits::Operation(operation) => {
                let operation = Ident::new(operation, Span::call_site());
                quote!(let router = ::lazaret::declare::__private::on_operation(
                    router, ::lazaret::Operation::#operation, ::std::clone::Clone::clone(&method));)
            }
            Fits::Type(event_type) => {
                quote!(let router = router.on(#event_type, ::std::clone::Clone::clone(&method));)
            }
            Fits::Others => quote!(let router = router.fallback(::std::clone::Clone::clone(&method));),
        });
        quote! {
            #(#conditions)*
            let router = {
                #(#checks)*
                #result
                let this = ::std::sync::Arc::clone(&this);
                let method = move |#(#arguments: #parameters),*| {
                    let this = ::std::sync::Arc::clone(&this);
                    async move { Self::#name(&this, #(#arguments),*).await }
                };
                #(#added)*
                router
            };
        }
    })
}

/// Settles changes without a handler, as the documentation of `#[on_change]` says. Messages of Kafka are
/// not settled.
fn ignore_others(declared: &Declared, methods: &Methods) -> TokenStream {
    let has_fallback = methods.handlers.iter().any(|(fits, _)| fits.contains(&Fits::Others));
    match declared.source {
        Source::ChangeStream(_) if !has_fallback => quote!(let router = router.ignore_others();),
        _ => TokenStream::new(),
    }
}

fn arguments(count: usize) -> Vec<Ident> {
    (0..count).map(|index| format_ident!("argument_{index}")).collect()
}

/// Checks a parameter at the location of its type.
fn extractor_check(parameter: &Type) -> TokenStream {
    quote_spanned! {parameter.span()=>
        ::lazaret::declare::__private::assert_extractor::<::std::sync::Arc<Self>, #parameter>();
    }
}

fn classifier(declared: &Declared) -> TokenStream {
    let Some(retry) = &declared.retry else { return TokenStream::new() };
    let (retried, refused) = (&retry.retry_on.types, &retry.no_retry_on.types);
    if retried.is_empty() && refused.is_empty() {
        return TokenStream::new();
    }
    let calls = retried
        .iter()
        .map(|error| quote_spanned!(error.span()=> .retry_on::<#error>()))
        .chain(refused.iter().map(|error| quote_spanned!(error.span()=> .no_retry_on::<#error>())));
    quote! {
        let declaration = ::lazaret::declare::__private::classified(
            declaration, |classifier: ::lazaret::policy::Classifier| classifier #(#calls)*);
    }
}

/// Returns the extraction of the parameters of a method that is not a handler. Each extraction may fail.
fn extractions(parameters: &[Type]) -> impl Iterator<Item = TokenStream> {
    parameters.iter().map(|parameter| {
        quote_spanned! {parameter.span()=>
            <#parameter as ::lazaret::handler::FromDeliveryWith<::std::sync::Arc<Self>>>::from_delivery_with(delivery, &this)?
        }
    })
}

fn filter(methods: &Methods) -> TokenStream {
    let Some(Method { parameters, conditions, function }) = &methods.filter else {
        return TokenStream::new();
    };
    let (name, values) = (&function.sig.ident, extractions(parameters));
    let result = function.sig.output.to_token_stream();
    let call = quote_spanned! {result.span()=>
        ::lazaret::declare::__private::IntoKeep::into_keep(kept)
    };
    quote! {
        #(#conditions)*
        let declaration = {
            let this = ::std::sync::Arc::clone(&this);
            ::lazaret::declare::__private::filtered(declaration, move |delivery: &::lazaret::handler::Delivery| {
                let kept = Self::#name(&this, #(#values),*);
                #call
            })
        };
    }
}

fn on_error(methods: &Methods) -> TokenStream {
    if methods.on_error.is_empty() {
        return TokenStream::new();
    }
    let call = |Method { parameters, function, .. }: &Method, error: TokenStream| {
        let (name, values) = (&function.sig.ident, extractions(&parameters[1..]));
        quote!(return ::std::result::Result::Ok(
            ::lazaret::declare::__private::IntoErrorAction::into_action(Self::#name(&this, #error, #(#values),*)));)
    };
    let typed = methods.on_error.iter().filter_map(|(of, method)| {
        let (of, conditions) = (of.as_ref()?, &method.conditions);
        let call = call(method, quote!(cause));
        Some(quote! {
            #(#conditions)*
            if let ::std::option::Option::Some(cause) = cause.downcast_ref::<#of>() {
                #call
            }
        })
    });
    let others = methods.on_error.iter().find(|(of, _)| of.is_none()).map(|(_, method)| {
        let (conditions, call) = (&method.conditions, call(method, quote!(error)));
        quote!(#(#conditions)* { #call })
    });
    quote! {
        let declaration = {
            let this = ::std::sync::Arc::clone(&this);
            ::lazaret::declare::__private::on_error(
                declaration,
                #[allow(unreachable_code, unused_variables)]
                move |error: &::lazaret::HandlerError, delivery: &::lazaret::handler::Delivery| {
                    // The outermost cause for which there is a method decides.
                    for cause in error.causes() {
                        #(#typed)*
                    }
                    #others
                    ::std::result::Result::Ok(::lazaret::declare::ErrorAction::Rethrow)
                },
            )
        };
    }
}

fn type_name(of: &Type) -> String {
    match of {
        Type::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()).unwrap_or_default(),
        _ => "consumer".to_owned(),
    }
}

/// Converts `OrderHandler` to `order-handler`.
fn kebab_case(name: &str) -> String {
    let mut kebab = String::new();
    for (index, c) in name.chars().enumerate() {
        if c.is_uppercase() && index > 0 {
            kebab.push('-');
        }
        kebab.extend(c.to_lowercase());
    }
    kebab
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_type_becomes_the_name_of_its_consumer() {
        for (name, expected) in [("OrderHandler", "order-handler"), ("Orders", "orders"), ("A", "a")] {
            assert_eq!(kebab_case(name), expected);
        }
    }
}
