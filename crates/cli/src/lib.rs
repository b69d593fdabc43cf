//! Lazaret's command line: inspect why messages failed, and replay them safely.
//!
//! `run`, `check`, `schema`, `init` and `doctor` work on a configuration file and the [daemon](lazaret_daemon); `demo` needs
//! neither. Every other command is a client of the HTTP API. Text from messages is sanitized before it reaches a terminal
//! ([`sanitize`]), exit codes are part of the contract ([`Exit`]), and each command is one file in `commands`.
//!
//! # Modules
//!
//! - `args`, `help_groups`, `commands/`, `context`: arguments, the groups of `--help`, one file per command, and what each command receives.
//! - `client/`: the client of the API: one function per route, streamed lines, server-sent events.
//! - `selection`, `rollout`, `reveal`, `values`: which letters a command is about, the options of operations and of redacted values,
//!   parsed values.
//! - `output/`, `paging`, `sanitize`: tables, fields, CSV, JSON; paged lists; sanitized text.
//! - `watch`, `progress`, `operation_summary`, `blockers`, `holders`: waiting for an operation, and what blocks it.
//! - `prompt`, `hints`, `unknown_names`: confirmation, suggested commands, why a query matches nothing.
//! - `negated_terms`, `clap_errors`, `error`, `exit`: terms that look like options, usage errors, errors, exit codes.
//! - `reference`, `error_codes`: the generated pages `docs/cli.md` and `docs/errors.md`.
//!
//! The tests in `tests/docs` run the documentation: tutorial, commands, configurations, links, generated pages, `deploy/`.

pub mod sanitize;

mod args;
mod blockers;
mod clap_errors;
mod client;
mod commands;
mod context;
mod error;
mod error_codes;
mod exit;
#[cfg(test)]
mod fixtures;
mod help_groups;
mod hints;
mod holders;
mod negated_terms;
mod operation_summary;
mod output;
mod paging;
mod progress;
mod prompt;
mod reference;
mod reveal;
mod rollout;
mod selection;
mod unknown_names;
mod watch;

pub use args::Cli;
pub use commands::{Command, Run};
pub use context::{Context, Global};
pub use error::{Error, Result};
pub use error_codes::error_codes;
pub use exit::Exit;
pub use reference::reference;
