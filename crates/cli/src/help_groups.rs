//! Groups the commands in `lazaret --help` by what a user wants to do.

use std::fmt::Write;

use clap::Command;

/// The groups, in the order of `--help`. Commands that are not part of this build are left out.
const GROUPS: [(&str, &[&str]); 7] = [
    ("Get started", &["demo", "init", "check", "doctor", "schema"]),
    ("Run", &["run", "serve", "health", "adopt", "backup"]),
    ("See what failed", &["status", "top", "groups", "group", "ls", "show", "seq", "tail"]),
    (
        "Act on letters",
        &[
            "plan",
            "retry",
            "release",
            "edit",
            "park",
            "quarantine",
            "resolve",
            "evict",
            "restore",
            "purge",
            "erase",
            "comment",
            "assign",
        ],
    ),
    ("Control", &["op", "pause", "resume", "audit", "token", "keys"]),
    ("Move messages and letters", &["send", "export", "import"]),
    ("Help", &["explain", "completion", "man", "help"]),
];

/// Sets the help of the top command.
pub(crate) fn with_groups(command: Command) -> Command {
    let mut built = command.clone();
    built.build();
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n{}\nOptions:\n{{options}}{{after-help}}",
        listed(&built)
    );
    command.help_template(template)
}

fn listed(command: &Command) -> String {
    let names: Vec<&str> =
        command.get_subcommands().filter(|one| !one.is_hide_set()).map(Command::get_name).collect();
    let width = names.iter().map(|name| name.len()).max().unwrap_or_default();
    let grouped = |name: &&str| GROUPS.iter().any(|(_, members)| members.contains(name));
    let others: Vec<&str> = names.iter().copied().filter(|name| !grouped(name)).collect();
    let groups = GROUPS.iter().map(|(title, members)| (*title, members.to_vec()));
    let mut text = String::new();
    for (title, members) in groups.chain([("Other", others)]) {
        let members: Vec<&Command> =
            members.iter().filter_map(|name| command.find_subcommand(name)).collect();
        if members.is_empty() {
            continue;
        }
        // Writing to a string cannot fail.
        let _ = write!(text, "\n{title}:\n");
        for member in members {
            let about = member.get_about().map(ToString::to_string).unwrap_or_default();
            let aliases: Vec<&str> = member.get_visible_aliases().collect();
            let alias =
                if aliases.is_empty() { String::new() } else { format!(" [alias: {}]", aliases.join(", ")) };
            let _ = writeln!(text, "  {:width$}  {about}{alias}", member.get_name());
        }
    }
    // Braces would be tags of the template.
    text.replace('{', "(").replace('}', ")")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    #[test]
    fn every_command_is_listed_once() {
        let mut command = Cli::command();
        command.build();
        let text = listed(&command);
        for name in command.get_subcommands().map(Command::get_name) {
            let lines = text.lines().filter(|line| line.split_whitespace().next() == Some(name)).count();
            assert_eq!(lines, 1, "{name} in {text}");
        }
        let help = with_groups(Cli::command()).render_help().to_string();
        for expected in
            ["\nSee what failed:\n", "\nOptions:\n", "--url <URL>", "[alias: replay]", "Exit codes:"]
        {
            assert!(help.contains(expected), "{expected} in {help}");
        }
        assert!(!text.contains("Other:"), "{text}");
    }
}
