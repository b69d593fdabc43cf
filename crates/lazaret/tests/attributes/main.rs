//! Consumers declared by attributes: every attribute and default of the annotations that they follow, and what the handlers do.

mod behaviour;
mod failures;
mod file;
mod kafka;
mod settings;
mod support;
