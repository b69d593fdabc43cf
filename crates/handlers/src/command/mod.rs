//! A handler that is a command: a program that is run.

mod environment;
mod exit;
mod group;
mod handler;
mod line;
mod lines;
mod once;
mod options;
mod setup;
mod stderr;
mod worker;

pub use handler::CommandHandler;
pub use options::{CommandOptions, Mode};
