//! Attribute macros that declare consumers. Use them through `lazaret::declare`, whose documentation describes them.
//!
//! `#[change_stream]` and `#[kafka_listener]` stand on an `impl` block and do all the work: they read the other attributes on the block
//! and on its methods, check them, and remove them. The other macros exist to be found by name, and to report a wrong place.
//!
//! - `arguments` reads the arguments of an attribute, `values` their values, `suggest` finds what a misspelled name meant.
//! - `attributes` has one module per attribute on the block: what it accepts, and the keys of the configuration that it sets.
//! - `methods` finds the handlers, the filter and the error handlers, and checks their signatures.
//! - `expand` puts them together and writes the declaration, `placement` handles attributes at other places.

mod arguments;
mod attributes;
mod duration;
mod expand;
mod methods;
mod placement;
mod suggest;
mod values;

use proc_macro::TokenStream;

use crate::expand::SourceKind;

/// Declares a consumer of a MongoDB change stream. See `lazaret::declare`.
#[proc_macro_attribute]
pub fn change_stream(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand::expand(SourceKind::ChangeStream, arguments.into(), item.into()).into()
}

/// Declares a consumer of Kafka topics. See `lazaret::declare`.
#[proc_macro_attribute]
pub fn kafka_listener(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand::expand(SourceKind::Kafka, arguments.into(), item.into()).into()
}

macro_rules! on_the_block {
    ($($(#[$doc:meta])* $name:ident)+) => {$(
        $(#[$doc])*
        #[proc_macro_attribute]
        pub fn $name(arguments: TokenStream, item: TokenStream) -> TokenStream {
            placement::on_block(stringify!($name), arguments.into(), item.into()).into()
        }
    )+};
}

on_the_block! {
    /// Sets the retry policy of a declared consumer. See `lazaret::declare`.
    retry_policy
    /// Sets what is kept of a message whose failure is final. See `lazaret::declare`.
    dead_letter_queue
    /// Sets how often the position of a change stream is saved. See `lazaret::declare`.
    checkpoint
    /// Sets when a failed change stream is opened again. See `lazaret::declare`.
    restart_policy
}

macro_rules! on_a_method {
    ($($(#[$doc:meta])* $name:ident)+) => {$(
        $(#[$doc])*
        #[proc_macro_attribute]
        pub fn $name(_: TokenStream, item: TokenStream) -> TokenStream {
            placement::on_method(stringify!($name), item.into()).into()
        }
    )+};
}

on_a_method! {
    /// Handles inserted documents. See `lazaret::declare`.
    on_insert
    /// Handles updated documents. See `lazaret::declare`.
    on_update
    /// Handles replaced documents. See `lazaret::declare`.
    on_replace
    /// Handles deleted documents. See `lazaret::declare`.
    on_delete
    /// Handles the changes that no other method handles. See `lazaret::declare`.
    on_change
    /// Handles messages of a Kafka topic. See `lazaret::declare`.
    on_message
    /// Decides what follows a failure. See `lazaret::declare`.
    on_error
    /// Selects the messages that are handled. See `lazaret::declare`.
    filter
}
