//! `${NAME}` and `${NAME:-default}` in values.

use std::collections::BTreeMap;

/// Where variables are looked up.
///
/// ```
/// use lazaret_config::Env;
/// let env = std::collections::BTreeMap::from([("PORT".to_owned(), "7117".to_owned())]);
/// assert_eq!(env.lookup("PORT").as_deref(), Some("7117"));
/// ```
pub trait Env {
    /// The value of a variable, if it is set.
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

/// An environment in which nothing is set.
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

/// Why a text could not be expanded. The range is that of the `${…}` in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EnvError {
    Missing { name: String, at: usize, length: usize },
    Malformed { why: &'static str, at: usize, length: usize },
}

/// A text after expansion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expanded {
    pub(crate) text: String,
    /// Whether any of it came from outside of the file, and must not be shown.
    pub(crate) from_env: bool,
}

/// Replaces every `${…}`. `$${` stands for `${`. What comes from the environment is not looked at again.
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
            Err(Ok(name)) => errors.push(EnvError::Missing { name, at: found, length: end + 1 - found }),
            Err(Err(why)) => errors.push(EnvError::Malformed { why, at: found, length: end + 1 - found }),
        }
        at = end + 1;
    }
    out.push_str(&text[at..]);
    if errors.is_empty() { Ok(Expanded { text: out, from_env }) } else { Err(errors) }
}

/// The value of what stands between the braces, and whether it came from outside. Else the name that is not set, or
/// what is wrong.
fn variable(inside: &str, env: &dyn Env) -> Result<(String, bool), Result<String, &'static str>> {
    let (name, default) = match inside.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inside, None),
    };
    let begins_well = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if !begins_well || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return Err(Err("between the braces stands a name, or a name, `:-` and a default"));
    }
    // As in a shell, `:-` takes the default for an empty variable, too.
    match (env.lookup(name), default) {
        (Some(value), Some(default)) if value.is_empty() => Ok((default.to_owned(), false)),
        (Some(value), _) => Ok((value, true)),
        (None, Some(default)) => Ok((default.to_owned(), false)),
        (None, None) => Err(Ok(name.to_owned())),
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
    fn variables_and_defaults_are_put_in() {
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
    fn every_mistake_of_a_text_is_told() {
        let errors = expand("a ${NOPE} ${} ${A-x} ${end", &env()).unwrap_err();
        assert_eq!(errors.len(), 4);
        assert_eq!(errors[0], EnvError::Missing { name: "NOPE".to_owned(), at: 2, length: 7 });
        assert!(matches!(errors[3], EnvError::Malformed { why: "`${` without `}`", .. }));
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[$${}A:\\-é]{0,20}") {
            let _ = expand(&text, &env());
        }
    }
}
