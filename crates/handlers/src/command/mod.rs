//! Runs a program as a handler.

mod environment;
mod exit;
#[cfg(test)]
mod fuzz;
mod group;
mod handler;
mod line;
mod lines;
mod once;
mod options;
mod restart_delay;
mod setup;
mod stderr;
mod suspects;
mod worker;

pub use handler::CommandHandler;
pub use options::{CommandOptions, Mode};
