//! What may be meant by a command line that cannot be read, where the parser does not know it.

use clap::error::{ContextKind, ContextValue, ErrorKind};

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
    use crate::Cli;

    #[test]
    fn a_file_without_its_flag_gets_the_flag() {
        let said = |words: &[&str]| explained(Cli::try_parse_from(words).unwrap_err()).to_string();
        let text = said(&["lazaret", "check", "shop.yaml"]);
        assert!(text.contains("tip: a configuration file is named with '-c shop.yaml'"), "{text}");
        assert!(!said(&["lazaret", "check", "shop"]).contains("-c shop"));
    }
}
