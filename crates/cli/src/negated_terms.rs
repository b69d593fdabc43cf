//! Lets a query on the command line contain negated terms, which look like options.

use std::ffi::{OsStr, OsString};

use clap::error::ErrorKind;
use lazaret_core::query::Query;

/// The arguments of a process, with `-type:X` written as `not type:X` where a query is expected.
///
/// # Errors
/// A usage error when an option stands after `--`, where it would be searched as text.
pub(crate) fn rewrite(
    command: &mut clap::Command,
    args: impl IntoIterator<Item = OsString>,
) -> Result<Vec<OsString>, clap::Error> {
    let mut rewritten: Vec<OsString> = Vec::new();
    let mut takes_query: Option<String> = None;
    let mut after_dashes = false;
    for arg in args {
        let Some(name) = &takes_query else {
            let is_first = rewritten.is_empty();
            takes_query = arg.to_str().filter(|_| !is_first).and_then(|arg| query_command(command, arg));
            rewritten.push(arg);
            continue;
        };
        if after_dashes && is_option(command, name, &arg) {
            let option = arg.to_string_lossy().into_owned();
            let message =
                format!("{option} stands after --, where it is part of the query: put options before --");
            return Err(command.error(ErrorKind::UnknownArgument, message));
        }
        after_dashes |= arg == "--";
        // `-rfix:typo` is an option with its value; `-reason:TIMEOUT` is a term.
        let is_term = |term: &&str| {
            let first = term.chars().next().unwrap_or_default();
            Query::parse(term).is_ok() || !has_short(command, name, first)
        };
        match arg.to_str().filter(|_| !after_dashes).and_then(negated).filter(is_term) {
            Some(term) => rewritten.push(format!("not {term}").into()),
            None => rewritten.push(arg),
        }
    }
    Ok(rewritten)
}

/// Returns the name of the command, if this is one that takes a query.
fn query_command(command: &clap::Command, arg: &str) -> Option<String> {
    let named = command.find_subcommand(arg)?;
    let takes_query = named.get_arguments().any(|argument| argument.get_id() == "words");
    takes_query.then(|| named.get_name().to_owned())
}

/// Returns whether an argument would be an option of the command.
fn is_option(command: &clap::Command, name: &str, arg: &OsStr) -> bool {
    let Some(arg) = arg.to_str() else { return false };
    match (arg.strip_prefix("--"), arg.strip_prefix('-')) {
        (Some(long), _) => long.starts_with(|c: char| c.is_ascii_alphabetic()),
        (None, Some(short)) => {
            let mut letters = short.chars();
            let only = letters.next().filter(|_| letters.next().is_none());
            only.is_some_and(|only| has_short(command, name, only))
        }
        (None, None) => false,
    }
}

/// Returns whether a command has this short option.
fn has_short(command: &clap::Command, name: &str, short: char) -> bool {
    let own = command.find_subcommand(name).into_iter().flat_map(clap::Command::get_arguments);
    own.chain(command.get_arguments()).any(|argument| argument.get_short() == Some(short))
}

/// Returns the term of an argument such as `-type:X`, `-payload./a:1` or `-(a or b)`. A short option has no name before its colon.
fn negated(arg: &str) -> Option<&str> {
    let term = arg.strip_prefix('-')?;
    let name = term.split_once(':').map(|(name, _)| name);
    let is_field = |name: &str| {
        name.len() > 1
            && name.starts_with(|c: char| c.is_ascii_alphabetic())
            && !name.contains(|c: char| c.is_whitespace() || c == '=')
    };
    (term.starts_with('(') || name.is_some_and(is_field)).then_some(term)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    fn rewritten(args: &str) -> Result<Vec<String>, String> {
        let args = ["lazaret"].into_iter().chain(args.split('|')).map(OsString::from);
        let text = |arg: OsString| arg.into_string().unwrap();
        match rewrite(&mut Cli::command(), args) {
            Ok(args) => Ok(args.into_iter().skip(1).map(text).collect()),
            Err(error) => Err(error.to_string()),
        }
    }

    fn same(args: &str, expected: &str) {
        assert_eq!(rewritten(args).unwrap().join("|"), expected);
    }

    #[test]
    fn a_negated_term_is_no_option() {
        same("ls|-type:X|--limit|5", "ls|not type:X|--limit|5");
        same("--url|http://x|ls|-tpye:X|-o|json", "--url|http://x|ls|not tpye:X|-o|json");
        same("plan|retry|a|-payload./a/b:1|-(b or c)", "plan|retry|a|not payload./a/b:1|not (b or c)");
        same("ls|-o|jsonl|-ojson", "ls|-o|jsonl|-ojson");
        same("retry|-reason:TIMEOUT|-rfix:typo", "retry|not reason:TIMEOUT|-rfix:typo");
        same("ls|--|-type:X", "ls|--|-type:X");
        same("show|-type:X", "show|-type:X");
    }

    #[test]
    fn an_option_after_two_dashes_is_an_error() {
        for args in ["ls|--|-type:X|--limit|5", "ls|a|--|b|-o|json", "retry|--|a|-y"] {
            assert!(rewritten(args).unwrap_err().contains("put options before --"), "{args}");
        }
        assert!(rewritten("ls|--|-x|--|-type:X").is_ok());
    }
}
