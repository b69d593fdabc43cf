//! Expands `${NAME}` and `${NAME:-default}` in values.

use std::collections::BTreeMap;

/// A source of environment variables.
///
/// ```
/// use lazaret_config::Env;
/// let env = std::collections::BTreeMap::from([("PORT".to_owned(), "7117".to_owned())]);
/// assert_eq!(env.lookup("PORT").as_deref(), Some("7117"));
/// ```
pub trait Env {
    /// Returns the value of a variable, if it is set.
    fn lookup(&self, name: &str) -> Option<String>;
}

/// The environment of this process. A value that is not UTF-8 counts as not set.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessEnv;

impl Env for ProcessEnv {
    fn lookup(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
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
}

/// The error of an expansion. The range is that of the `${…}` in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EnvError {
    Missing { name: String, at: usize, length: usize },
    Malformed { why: &'static str, at: usize, length: usize },
}

/// A text after expansion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expanded {
    pub(crate) text: String,
    /// Whether a part came from the environment, and must not be shown.
    pub(crate) from_env: bool,
}

/// Expands every `${…}`. `$${` is an escaped `${`. Values from the environment are not expanded again.
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
    /// The expression is not valid.
    Malformed(&'static str),
}

/// Resolves the expression between the braces. Returns the value, and whether it came from the environment.
fn variable(inside: &str, env: &dyn Env) -> Result<(String, bool), VariableError> {
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
    // As in a shell, `:-` applies the default to an empty variable, too.
    match (env.lookup(name), default) {
        (Some(value), Some(default)) if value.is_empty() => Ok((default.to_owned(), false)),
        (Some(value), _) => Ok((value, true)),
        (None, Some(default)) => Ok((default.to_owned(), false)),
        (None, None) => Err(VariableError::NotSet(name.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::proptest;

    use super::*;

    fn env() -> BTreeMap<String, String> {
        [("A", "1"), ("EMPTY", ""), ("NESTED", "${A}")].map(|(k, v)| (k.to_owned(), v.to_owned())).into()
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
        ];
        for (text, expected, from_env) in table {
            let expected = Expanded { text: expected.to_owned(), from_env };
            assert_eq!(expand(text, &env()), Ok(expected), "{text}");
        }
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
