//! Handles attributes that are expanded in another place than inside `#[change_stream]` or
//! `#[kafka_listener]`.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote};
use syn::{Error, Ident, ItemImpl};

use crate::expand::is_source;

/// Moves an attribute that is above `#[change_stream]` below it. Without a `#[change_stream]`, reports
/// an error.
pub(crate) fn on_block(name: &'static str, arguments: TokenStream, item: TokenStream) -> TokenStream {
    let wrong = |message: String| {
        let error = Error::new(Span::call_site(), message).to_compile_error();
        quote!(#error #item)
    };
    let Ok(mut block) = syn::parse2::<ItemImpl>(item.clone()) else {
        return wrong(format!(
            "`#[{name}]` belongs on an `impl` block, together with `#[change_stream]` or `#[kafka_listener]`"
        ));
    };
    if !block.attrs.iter().any(is_source) {
        return wrong(format!(
            "`#[{name}]` needs `#[change_stream]` or `#[kafka_listener]` on the same `impl` block"
        ));
    }
    let name = Ident::new(name, Span::call_site());
    block.attrs.push(syn::parse_quote!(#[#name(#arguments)]));
    block.into_token_stream()
}

/// Reports an attribute on a method outside a declaration.
pub(crate) fn on_method(name: &'static str, item: TokenStream) -> TokenStream {
    let message = format!(
        "`#[{name}]` belongs on a method of an `impl` block with `#[change_stream]` or `#[kafka_listener]`"
    );
    let error = Error::new(Span::call_site(), message).to_compile_error();
    // In an `impl` block an error is not a valid item, so it is put into the method.
    match syn::parse2::<syn::ImplItemFn>(item.clone()) {
        Ok(mut method) => {
            method.block = syn::parse_quote!({ #error });
            method.into_token_stream()
        }
        Err(_) => quote!(#error #item),
    }
}
