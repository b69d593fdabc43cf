//! What may be meant by a command line that cannot be read, where the parser does not know it.

use std::ffi::OsString;

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::Cli;

/// The same error as if no variable said anything. The parser takes what a variable says for written, and its usage would name
/// that option as if it were needed.
pub(crate) fn as_written(error: clap::Error, words: impl IntoIterator<Item = OsString>) -> clap::Error {
    let is_answer = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    if is_answer {
        return error;
    }
    let command = Cli::command().mut_arg("url", |url| url.env(None::<&'static str>));
    command.try_get_matches_from(words).err().unwrap_or(error)
}

/// The same error, with a tip where a file was named without `-c`, as other programs would have it.
pub(crate) fn explained(mut error: clap::Error) -> clap::Error {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg) else { return error };
    let is_file = [".yaml", ".yml"].iter().any(|ending| word.ends_with(ending));
    if error.kind() == ErrorKind::UnknownArgument && is_file {
        let tip = format!("a configuration file is named with '-c {word}'");
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn a_file_without_its_flag_gets_the_flag() {
        let said = |words: &[&str]| explained(Cli::try_parse_from(words).unwrap_err()).to_string();
        let text = said(&["lazaret", "check", "shop.yaml"]);
        assert!(text.contains("tip: a configuration file is named with '-c shop.yaml'"), "{text}");
        assert!(!said(&["lazaret", "check", "shop"]).contains("-c shop"));
    }
}
