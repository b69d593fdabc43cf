//! Attribute macros that declare consumers. Use them through `lazaret::declare`, whose documentation
//! describes them.
//!
//! `#[change_stream]` and `#[kafka_listener]` are placed on an `impl` block and do all the work: they
//! read the other attributes on the block and on its methods, check them, and remove them. The other
//! macros exist so that their names resolve and a wrong place is reported.
//!
//! - `arguments` reads the arguments of an attribute, `values` their values. `suggest` finds the
//!   intended name for a misspelled one.
//! - `attributes` has one module per attribute on the block: the arguments that it accepts, and the
//!   configuration keys that it sets.
//! - `methods` finds the handlers, the filter and the error handlers, and checks their signatures.
//! - `expand` combines the results and writes the declaration. `placement` handles attributes in other
//!   places.

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
    /// Configures the dead letters of a declared consumer. See `lazaret::declare`.
    dead_letter_queue
    /// Sets how often the position of a change stream is saved. See `lazaret::declare`.
    checkpoint
    /// Sets when a failed change stream is reopened. See `lazaret::declare`.
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
    /// Handles changes that no other method handles. See `lazaret::declare`.
    on_change
    /// Handles messages of a Kafka topic. See `lazaret::declare`.
    on_message
    /// Decides how to proceed after a failure. See `lazaret::declare`.
    on_error
    /// Selects the messages to handle. See `lazaret::declare`.
    filter
}
