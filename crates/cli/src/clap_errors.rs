//! Improves clap's usage errors where the parser lacks context.

use std::ffi::OsString;

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::Cli;

/// Returns the error clap reports when environment variables are ignored. Clap treats a value from a variable as typed, and its
/// usage line would list that option as required.
pub(crate) fn without_env(error: clap::Error, args: impl IntoIterator<Item = OsString>) -> clap::Error {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return error;
    }
    let without = |arg: clap::Arg| arg.env(None::<&'static str>);
    let command = Cli::command().mut_arg("url", without).mut_arg("ca_file", without);
    command.try_get_matches_from(args).err().unwrap_or(error)
}

/// Adds a tip when a configuration file is given as a positional argument instead of with `-c`.
pub(crate) fn with_config_tip(mut error: clap::Error) -> clap::Error {
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else { return error };
    let is_file = [".yaml", ".yml"].iter().any(|extension| argument.ends_with(extension));
    if error.kind() == ErrorKind::UnknownArgument && is_file {
        let tip = format!("pass a configuration file with '-c {argument}'");
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// Replaces clap's tip for an unknown short option where a query is expected: a word is excluded with `not`.
pub(crate) fn with_query_tip(mut error: clap::Error) -> clap::Error {
    let is_short = |argument: &str| argument.starts_with('-') && !argument.starts_with("--");
    let is_query = matches!(error.get(ContextKind::Usage), Some(ContextValue::StyledStr(usage))
        if usage.to_string().contains("[QUERY]"));
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else { return error };
    if error.kind() == ErrorKind::UnknownArgument && is_query && is_short(argument) {
        let tip = "exclude a word from a query with 'not WORD', and a field with '-FIELD:VALUE'";
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// Explains `--wait` where there is nothing to wait for: these commands end when their letters have changed.
pub(crate) fn with_wait_tip(mut error: clap::Error) -> clap::Error {
    const SYNCHRONOUS: [&str; 5] = ["restore", "purge", "erase", "resolve", "quarantine"];
    let of_synchronous = matches!(error.get(ContextKind::Usage), Some(ContextValue::StyledStr(usage))
        if SYNCHRONOUS.iter().any(|verb| usage.to_string().contains(&format!("lazaret {verb} "))));
    let is_wait = matches!(error.get(ContextKind::InvalidArg), Some(ContextValue::String(argument))
        if argument == "--wait");
    if error.kind() == ErrorKind::UnknownArgument && is_wait && of_synchronous {
        let tip =
            "leave '--wait' out: this command starts no operation, and ends when the letters have changed";
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn a_positional_configuration_file_gets_a_tip_with_the_flag() {
        let error = |args: &[&str]| with_config_tip(Cli::try_parse_from(args).unwrap_err()).to_string();
        let text = error(&["lazaret", "check", "shop.yaml"]);
        assert!(text.contains("tip: pass a configuration file with '-c shop.yaml'"), "{text}");
        assert!(!error(&["lazaret", "check", "shop"]).contains("-c shop"));
    }

    #[test]
    fn a_wait_for_no_operation_is_explained() {
        let error = |args: &[&str]| with_wait_tip(Cli::try_parse_from(args).unwrap_err()).to_string();
        for verb in ["restore", "purge", "erase", "resolve", "quarantine"] {
            let text = error(&["lazaret", verb, "--ids", "7f3a", "--reason", "x", "--wait"]);
            assert!(text.contains("tip: leave '--wait' out"), "{text}");
        }
        assert!(!error(&["lazaret", "status", "--wait"]).contains("leave '--wait' out"));
    }

    #[test]
    fn an_excluded_word_gets_a_tip_with_not() {
        let error = |args: &[&str]| with_query_tip(Cli::try_parse_from(args).unwrap_err()).to_string();
        let text = error(&["lazaret", "ls", "-reset"]);
        assert!(text.contains("tip: exclude a word from a query with 'not WORD'"), "{text}");
        assert!(!error(&["lazaret", "ls", "--limti", "5"]).contains("not WORD"));
        assert!(!error(&["lazaret", "status", "-reset"]).contains("not WORD"));
    }
}
