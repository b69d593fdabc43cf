//! Every command in the documentation can be parsed.

use clap::CommandFactory;
use clap::error::ErrorKind;
use lazaret_cli::Cli;

use crate::pages::{Block, all_pages};

#[test]
fn commands_in_blocks_of_code_are_understood() {
    let mut tried = 0;
    let mut wrong = Vec::new();
    for page in all_pages() {
        for block in page.blocks() {
            for command in commands(&block) {
                tried += 1;
                if let Err(error) = understood(&command, false) {
                    wrong.push(format!("docs/{}:{}: {command}\n{error}", page.path, block.line));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(tried > 40, "only {tried} commands were found");
}

#[test]
fn commands_in_the_text_are_understood() {
    let mut tried = 0;
    let mut wrong = Vec::new();
    for page in all_pages() {
        for (line, code) in page.inline_code() {
            if code.starts_with("lazaret ") {
                tried += 1;
                if let Err(error) = understood(&code, true) {
                    wrong.push(format!("docs/{}:{line}: {code}\n{error}", page.path));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(tried > 40, "only {tried} commands were found");
}

/// Checks that a command can be parsed. In prose, a command may be mentioned by its name alone; with arguments it must be
/// complete.
fn understood(command: &str, is_text: bool) -> Result<(), String> {
    let words = words(command);
    if is_text && is_name(&words) {
        return Ok(());
    }
    match Cli::parse_args(words.into_iter().map(Into::into)) {
        Ok(_) => Ok(()),
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Ok(()),
            _ => Err(error.to_string()),
        },
    }
}

/// Returns whether these words are the name of a command only.
fn is_name(words: &[String]) -> bool {
    let mut command = Cli::command();
    words[1..].iter().all(|word| match command.find_subcommand(word) {
        Some(found) => {
            command = found.clone();
            true
        }
        None => false,
    })
}

/// Returns the calls of `lazaret` in a shell block.
fn commands(block: &Block) -> Vec<String> {
    let is_console = block.language() == "console";
    if !is_console && block.language() != "sh" {
        return Vec::new();
    }
    let text = without_here_documents(&block.text.replace("\\\n", " "));
    let lines = text.lines().filter_map(|line| if is_console { line.strip_prefix("$ ") } else { Some(line) });
    let calls = lines.flat_map(parts).filter_map(|part| {
        let part = part.trim();
        // In a container it is the same program.
        let start = if part.starts_with("lazaret ") {
            Some(0)
        } else {
            part.find("exec lazaret lazaret ").map(|at| at + 13)
        };
        start.map(|start| part[start..].to_owned())
    });
    calls.collect()
}

/// Splits a shell line into commands, without redirections and comments.
fn parts(line: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut quote = None;
    let mut is_target = false;
    let mut before = ' ';
    for c in line.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => quote = Some(c),
            (None, '#') if before == ' ' => break,
            (None, '|' | '&' | ';' | '(' | ')') => {
                is_target = false;
                parts.push(String::new());
                before = c;
                continue;
            }
            (None, '>') => is_target = true,
            _ => {}
        }
        if !is_target {
            parts.last_mut().unwrap().push(c);
        }
        before = c;
    }
    parts
}

fn without_here_documents(text: &str) -> String {
    let mut kept = String::new();
    let mut end: Option<String> = None;
    for line in text.lines() {
        match &end {
            Some(word) if line == word => end = None,
            Some(_) => {}
            None => {
                end = line.split_once("<<").map(|(_, word)| word.trim_matches(['\'', '"', ' ']).to_owned());
                kept += &format!("{line}\n");
            }
        }
    }
    kept
}

/// Splits a command into words as a shell does.
fn words(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for c in command.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, ' ') => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

#[test]
fn a_shell_line_is_taken_apart() {
    let block = |text: &str| Block { line: 1, info: "sh".to_owned(), text: text.to_owned(), remark: None };
    let text = "cat > x <<'END'\nlazaret no\nEND\nlazaret ls 'a|b' | jq . > f # lazaret none\nlazaret \\\n  status && lazaret tail\n";
    assert_eq!(commands(&block(text)), ["lazaret ls 'a|b'", "lazaret    status", "lazaret tail"]);
    assert_eq!(words("lazaret ls 'a b' --x \"c\""), ["lazaret", "ls", "a b", "--x", "c"]);
    assert!(understood("lazaret fly", true).is_err() && understood("lazaret op approve", true).is_ok());
    assert!(understood("lazaret retry", true).is_ok() && understood("lazaret retry", false).is_err());
    // It is a usage error.
    assert!(understood("lazaret resume CONSUMER", true).is_err());
    assert!(understood("lazaret resume CONSUMER --reason TEXT", true).is_ok());
}
