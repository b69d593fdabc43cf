//! Consumers declared with attributes: all attributes, the defaults of the annotations that they follow,
//! and the behaviour of handlers.

mod behaviour;
mod failures;
mod file;
mod kafka;
mod settings;
mod support;
