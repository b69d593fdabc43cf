//! Expands `${NAME}`, `${NAME:-default}` and `${file:PATH}` in values.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;

/// The maximum size of a file that a value refers to, in bytes.
const MAX_FILE_BYTES: u64 = 64 * 1024;
/// The prefix of a file reference.
const FILE: &str = "file:";

/// A source of environment variables and files.
///
/// ```
/// use lazaret_config::Env;
/// let env = std::collections::BTreeMap::from([("PORT".to_owned(), "7117".to_owned())]);
/// assert_eq!(env.lookup("PORT").as_deref(), Some("7117"));
/// ```
pub trait Env {
    /// Returns the value of a variable, if it is set.
    fn lookup(&self, name: &str) -> Option<String>;

    /// Returns the content of a file.
    ///
    /// # Errors
    /// When the file cannot be read. The reason contains none of its content. The default implementation
    /// reads no files.
    fn read_file(&self, _path: &str) -> Result<String, String> {
        Err("files are not read here".to_owned())
    }
}

/// The environment of this process. A variable that is not UTF-8 counts as not set.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessEnv;

impl Env for ProcessEnv {
    fn lookup(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn read_file(&self, path: &str) -> Result<String, String> {
        let file = File::open(path).map_err(|error| error.to_string())?;
        let mut text = String::new();
        // The error for a file that is not UTF-8 does not repeat its content.
        let read = file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text);
        match read.map_err(|error| error.to_string())? as u64 {
            0..=MAX_FILE_BYTES => Ok(text),
            _ => Err("it is larger than 64 KiB".to_owned()),
        }
    }
}

/// An empty environment.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoEnv;

impl Env for NoEnv {
    fn lookup(&self, _name: &str) -> Option<String> {
        None
    }
}

impl Env for BTreeMap<String, String> {
    fn lookup(&self, name: &str) -> Option<String> {
        self.get(name).cloned()
    }

    /// Returns the value of `file:PATH`.
    fn read_file(&self, path: &str) -> Result<String, String> {
        self.get(&format!("{FILE}{path}")).cloned().ok_or_else(|| "there is no such file".to_owned())
    }
}

/// The error of an expansion. `at` and `length` locate the `${…}` in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EnvError {
    Missing { name: String, at: usize, length: usize },
    Unreadable { path: String, why: String, at: usize, length: usize },
    Malformed { why: &'static str, at: usize, length: usize },
}

/// A text after expansion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expanded {
    pub(crate) text: String,
    /// Whether a part came from the environment or a file, and must not be shown.
    pub(crate) from_env: bool,
}

/// Expands every `${…}`. `$${` is an escaped `${`. Values from the environment and from files are not
/// expanded again.
pub(crate) fn expand(text: &str, env: &dyn Env) -> Result<Expanded, Vec<EnvError>> {
    let mut out = String::with_capacity(text.len());
    let mut errors = Vec::new();
    let (mut at, mut from_env) = (0, false);
    while let Some(found) = text[at..].find("${").map(|offset| at + offset) {
        if text[..found].ends_with('$') && found > at {
            out.push_str(&text[at..found]);
            out.push('{');
            at = found + 2;
            continue;
        }
        out.push_str(&text[at..found]);
        let Some(end) = text[found..].find('}').map(|offset| found + offset) else {
            errors.push(EnvError::Malformed {
                why: "`${` without `}`",
                at: found,
                length: text.len() - found,
            });
            return Err(errors);
        };
        match variable(&text[found + 2..end], env) {
            Ok((value, from_outside)) => {
                out.push_str(&value);
                from_env |= from_outside;
            }
            Err(VariableError::NotSet(name)) => {
                errors.push(EnvError::Missing { name, at: found, length: end + 1 - found });
            }
            Err(VariableError::Unreadable(path, why)) => {
                errors.push(EnvError::Unreadable { path, why, at: found, length: end + 1 - found });
            }
            Err(VariableError::Malformed(why)) => {
                errors.push(EnvError::Malformed { why, at: found, length: end + 1 - found });
            }
        }
        at = end + 1;
    }
    out.push_str(&text[at..]);
    if errors.is_empty() { Ok(Expanded { text: out, from_env }) } else { Err(errors) }
}

/// The error of one `${…}`.
enum VariableError {
    /// The variable is not set and has no default.
    NotSet(String),
    /// The file with this path cannot be read, for this reason.
    Unreadable(String, String),
    /// The expression is not valid.
    Malformed(&'static str),
}

/// Resolves the expression between the braces. Returns the value, and whether it came from the environment.
fn variable(inside: &str, env: &dyn Env) -> Result<(String, bool), VariableError> {
    if let Some(path) = inside.strip_prefix(FILE) {
        return file(path, env).map(|content| (content, true));
    }
    let (name, default) = match inside.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inside, None),
    };
    let begins_well = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if !begins_well || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return Err(VariableError::Malformed(
            "expected a name, or a name, `:-` and a default, between the braces",
        ));
    }
    // As in a shell, `:-` also applies the default to an empty variable.
    match (env.lookup(name), default) {
        (Some(value), Some(default)) if value.is_empty() => Ok((default.to_owned(), false)),
        (Some(value), _) => Ok((value, true)),
        (None, Some(default)) => Ok((default.to_owned(), false)),
        (None, None) => Err(VariableError::NotSet(name.to_owned())),
    }
}

/// Returns the content of a file, without the trailing newline.
fn file(path: &str, env: &dyn Env) -> Result<String, VariableError> {
    if path.is_empty() {
        return Err(VariableError::Malformed("expected the path of a file after `file:`"));
    }
    let mut content = env.read_file(path).map_err(|why| VariableError::Unreadable(path.to_owned(), why))?;
    content.truncate(content.trim_end_matches(['\n', '\r']).len());
    if content.contains(['\n', '\r', '\0']) {
        let why = "it has more than one line".to_owned();
        return Err(VariableError::Unreadable(path.to_owned(), why));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::proptest;

    use super::*;

    fn env() -> BTreeMap<String, String> {
        let values = [
            ("A", "1"),
            ("EMPTY", ""),
            ("NESTED", "${A}"),
            ("file:/run/pw", "hunter2\r\n"),
            ("file:rel/${x", "${A}"),
            ("file:/run/lines", "one\ntwo\n"),
        ];
        values.map(|(k, v)| (k.to_owned(), v.to_owned())).into()
    }

    #[test]
    fn variables_and_defaults_are_expanded() {
        let table = [
            ("plain", "plain", false),
            ("${A}", "1", true),
            ("x${A}y${A}", "x1y1", true),
            ("${B:-two}", "two", false),
            ("${A:-two}", "1", true),
            ("${EMPTY:-two}", "two", false),
            ("${EMPTY}", "", true),
            ("${B:-}", "", false),
            ("$${A}", "${A}", false),
            ("$A", "$A", false),
            ("${NESTED}", "${A}", true),
            ("${B:-http://x:1}", "http://x:1", false),
            ("u:${file:/run/pw}@h", "u:hunter2@h", true),
            ("${file:rel/${x}", "${A}", true),
            ("$${file:/run/pw}", "${file:/run/pw}", false),
        ];
        for (text, expected, from_env) in table {
            let expected = Expanded { text: expected.to_owned(), from_env };
            assert_eq!(expand(text, &env()), Ok(expected), "{text}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_used_is_named_without_its_content() {
        let why = |text: &str| match expand(text, &env()).unwrap_err().remove(0) {
            EnvError::Unreadable { path, why, .. } => format!("{path}: {why}"),
            EnvError::Malformed { why, .. } => why.to_owned(),
            other @ EnvError::Missing { .. } => panic!("{other:?}"),
        };
        assert_eq!(why("${file:/nowhere}"), "/nowhere: there is no such file");
        assert_eq!(why("${file:/run/lines}"), "/run/lines: it has more than one line");
        assert_eq!(why("${file:}"), "expected the path of a file after `file:`");
        let refused = expand("${file:/run/pw}", &NoEnv).unwrap_err();
        assert!(matches!(&refused[0], EnvError::Unreadable { path, .. } if path == "/run/pw"));
    }

    #[test]
    fn the_process_reads_files_of_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        let text = format!("${{file:{}}}", path.display());
        std::fs::write(&path, "hunter2\n").unwrap();
        assert_eq!(expand(&text, &ProcessEnv).unwrap().text, "hunter2");
        for wrong in [vec![b'x'; 65 * 1024], vec![0xff], b"a\nb".to_vec()] {
            std::fs::write(&path, &wrong).unwrap();
            assert!(matches!(expand(&text, &ProcessEnv).unwrap_err()[0], EnvError::Unreadable { .. }));
        }
        std::fs::remove_file(&path).unwrap();
        assert!(expand(&text, &ProcessEnv).is_err());
    }

    #[test]
    fn every_error_of_a_text_is_reported() {
        let errors = expand("a ${NOPE} ${} ${A-x} ${end", &env()).unwrap_err();
        assert_eq!(errors.len(), 4);
        assert_eq!(errors[0], EnvError::Missing { name: "NOPE".to_owned(), at: 2, length: 7 });
        assert!(matches!(errors[3], EnvError::Malformed { why: "`${` without `}`", .. }));
    }

    proptest! {
        #[test]
        fn expanding_never_panics(text in "[$${}A:\\-é]{0,20}") {
            let _ = expand(&text, &env());
        }
    }
}
