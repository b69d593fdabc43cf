//! Shows the command that does the same as a page. It can be copied and run.

use std::hash::{DefaultHasher, Hash, Hasher};

use lazaret_api::text::quoted;
use maud::{Markup, html};

/// The placeholder for an option value that is still missing.
const MISSING: &str = "TEXT";

/// Formats a command: its verbs, options with a value, and arguments. Values and arguments are quoted
/// for a shell.
pub(crate) fn command(verbs: &str, options: &[(&str, &str)], arguments: &[&str]) -> String {
    let mut line = format!("lazaret {verbs}");
    for (name, value) in options {
        line.push_str(&format!(
            " {name} {}",
            if *value == MISSING { MISSING.to_owned() } else { quoted(value) }
        ));
    }
    // An argument that looks like an option is placed after the end of the options.
    if arguments.iter().any(|argument| argument.starts_with('-')) {
        line.push_str(" --");
    }
    for argument in arguments {
        line.push(' ');
        line.push_str(&quoted(argument));
    }
    line
}

/// Renders a command line with a button that copies it.
pub(crate) fn line(id: &str, command: &str) -> Markup {
    html! {
        div.cli {
            code id=(id) { (command) }
            button type="button" data-copy=(id) hidden { "Copy" }
        }
    }
}

/// Renders a folded command line below a small form. Its id keeps it open when live updates replace the form.
pub(crate) fn folded(command: &str) -> Markup {
    let mut hasher = DefaultHasher::new();
    command.hash(&mut hasher);
    let id = format!("command-{:x}", hasher.finish());
    html! { details.command id=(id) { summary { "Command line" } div.cli { code { (command) } } } }
}

/// Renders a command line that a script keeps in step with a form: its start, followed by the options of
/// the form's fields.
pub(crate) fn following(id: &str, start: &str, command: &str) -> Markup {
    html! {
        div.cli {
            code id=(id) data-start=(start) { (command) }
            button type="button" data-copy=(id) hidden { "Copy" }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_arguments_are_quoted_for_a_shell() {
        let line = command("retry", &[("--reason", "TEXT"), ("--rate", "5/s")], &["error:\"it's\" $(x)"]);
        assert_eq!(line, r#"lazaret retry --reason TEXT --rate 5/s 'error:"it'\''s" $(x)'"#);
        assert_eq!(command("ls", &[], &["-x"]), "lazaret ls -- '-x'");
    }
}
