//! The reference of the command line, made from what it understands, so that it is never out of date.

use std::fmt::Write;

use clap::{Arg, Command, CommandFactory};

use crate::exit::Exit;

/// The reference, in Markdown.
pub fn reference() -> String {
    let mut command = crate::Cli::command();
    command.build();
    let mut text = String::from(
        "# The command line\n\n<!-- Made by the tests of lazaret-cli from the commands themselves. Do not edit. -->\n",
    );
    text.push('\n');
    text.push_str(include_str!("reference/intro.md").trim_end());
    text.push_str("\n\n## Options for every command\n");
    options(&mut text, command.get_arguments().filter(|arg| arg.is_global_set()));
    text.push_str("\n## Exit codes\n\n| code | means |\n|---|---|\n");
    for exit in Exit::ALL {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "| {} | {} |", exit.code(), exit.meaning());
    }
    for subcommand in command.get_subcommands_mut() {
        describe(&mut text, subcommand);
    }
    text
}

fn describe(text: &mut String, command: &mut Command) {
    if command.get_name() == "help" || command.is_hide_set() {
        return;
    }
    let name = command.get_bin_name().unwrap_or(command.get_name()).to_owned();
    let _ = write!(text, "\n## `{name}`\n\n");
    if let Some(about) = command.get_about() {
        let _ = writeln!(text, "{about}.");
    }
    if !command.has_subcommands()
        || command.get_arguments().any(|arg| !arg.is_global_set() && !is_builtin(arg))
    {
        let usage = command.render_usage().to_string();
        let _ = write!(text, "\n```text\n{}\n```\n", usage.strip_prefix("Usage: ").unwrap_or(&usage));
        options(text, command.get_arguments().filter(|arg| !arg.is_global_set() && !is_builtin(arg)));
    }
    for subcommand in command.get_subcommands_mut() {
        describe(text, subcommand);
    }
}

/// Whether it needs no description: clap's own, and what is for the program itself.
fn is_builtin(arg: &Arg) -> bool {
    arg.is_hide_set() || matches!(arg.get_id().as_str(), "help" | "version")
}

fn options<'a>(text: &mut String, arguments: impl Iterator<Item = &'a Arg>) {
    let mut is_first = true;
    for argument in arguments {
        if is_first {
            text.push_str("\n| option | means |\n|---|---|\n");
            is_first = false;
        }
        let mut notes = argument.get_help().map(ToString::to_string).unwrap_or_default();
        let values: Vec<String> =
            argument.get_possible_values().iter().map(|value| format!("`{}`", value.get_name())).collect();
        if !values.is_empty() && argument.get_action().takes_values() {
            notes.push_str(&format!(" ({})", values.join(", ")));
        }
        let default = argument.get_default_values();
        if !default.is_empty() && argument.get_action().takes_values() {
            let default: Vec<_> = default.iter().map(|value| value.to_string_lossy()).collect();
            notes.push_str(&format!("; `{}` unless said otherwise", default.join(",")));
        }
        if let Some(variable) = argument.get_env() {
            notes.push_str(&format!("; the variable `{}` says it, too", variable.to_string_lossy()));
        }
        let _ = writeln!(text, "| `{}` | {} |", signature(argument), notes.replace('|', "\\|"));
    }
}

/// How an argument is written.
fn signature(argument: &Arg) -> String {
    let value = argument.get_value_names().map(|names| names.join(" ")).unwrap_or_default();
    let takes_value = argument.get_action().takes_values();
    let several =
        if argument.get_num_args().is_some_and(|range| range.max_values() > 1) { "…" } else { "" };
    match (argument.get_short(), argument.get_long()) {
        (None, None) => format!("{value}{several}"),
        (short, long) => {
            let short = short.map(|short| format!("-{short}"));
            let long = long.map(|long| format!("--{long}"));
            let names: Vec<String> = short.into_iter().chain(long).collect();
            let value = if takes_value { format!(" {value}{several}") } else { String::new() };
            format!("{}{value}", names.join(", "))
        }
    }
}
