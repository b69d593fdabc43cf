//! The attributes on the `impl` block, one module each.

pub(crate) mod change_stream;
pub(crate) mod checkpoint;
pub(crate) mod dead_letter_queue;
pub(crate) mod kafka_listener;
pub(crate) mod restart_policy;
pub(crate) mod retry_policy;

use crate::arguments::{Argument, Arguments, Errors};

/// A value for a key of the configuration.
pub(crate) struct Setting {
    /// The attribute on one line.
    pub(crate) attribute: String,
    /// The path of the key.
    pub(crate) key: &'static str,
    /// The value, as YAML.
    pub(crate) value: String,
}

/// Collects the settings of one attribute.
pub(crate) struct Settings<'a> {
    pub(crate) arguments: &'a Arguments,
    pub(crate) errors: &'a mut Errors,
    pub(crate) list: Vec<Setting>,
}

impl<'a> Settings<'a> {
    pub(crate) fn new(arguments: &'a Arguments, errors: &'a mut Errors) -> Self {
        Self { arguments, errors, list: Vec::new() }
    }

    /// Reads an argument, if it is given, and returns its value.
    pub(crate) fn read<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(&Argument) -> syn::Result<T>,
    ) -> Option<T> {
        let argument = self.arguments.get(name)?;
        self.errors.take(read(argument))
    }

    /// Sets a key to a value if the argument is given and valid.
    pub(crate) fn set(
        &mut self,
        name: &str,
        key: &'static str,
        read: impl FnOnce(&Argument) -> syn::Result<String>,
    ) {
        let Some(argument) = self.arguments.get(name) else { return };
        if let Some(value) = self.errors.take(read(argument)) {
            self.list.push(Setting { attribute: argument.shown(), key, value });
        }
    }

    pub(crate) fn set_flag(&mut self, name: &str, key: &'static str) {
        self.set(name, key, |argument| argument.flag().map(|flag| flag.to_string()));
    }

    pub(crate) fn set_count(&mut self, name: &str, key: &'static str, least: u64, most: u64) {
        self.set(name, key, |argument| argument.count(least, most).map(|count| count.to_string()));
    }

    pub(crate) fn set_duration(&mut self, name: &str, key: &'static str) {
        self.set(name, key, |argument| argument.duration().map(|(text, _)| quoted(&text)));
    }

    /// Sets the multiplier of the delays.
    pub(crate) fn set_multiplier(&mut self, key: &'static str) {
        self.set("multiplier", key, |argument| match argument.number()? {
            factor if (1.0..=1e6).contains(&factor) => Ok(factor.to_string()),
            _ => Err(argument.error("`multiplier` must be between 1 and 1000000: delays do not shrink")),
        });
    }

    /// Reports an initial delay above the maximum delay, if both are given and valid.
    pub(crate) fn check_delays(&mut self) {
        let delay = |name| self.arguments.get(name).map(|argument| (argument, argument.duration()));
        if let (Some((_, Ok((first, initial)))), Some((argument, Ok((_, longest))))) =
            (delay("initial_delay"), delay("max_delay"))
            && initial > longest
        {
            let message = format!("`max_delay` must not be shorter than `initial_delay`, which is {first}");
            self.errors.add(argument.error(message));
        }
    }

    pub(crate) fn set_choice(&mut self, name: &str, key: &'static str, choices: &[&'static str]) {
        self.set(name, key, |argument| argument.choice(choices).map(str::to_owned));
    }

    pub(crate) fn set_string(&mut self, name: &str, key: &'static str) {
        self.set(name, key, |argument| argument.string().map(|text| quoted(&text)));
    }
}

/// Returns a string in YAML, which supports the escapes of JSON.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Returns a list of strings in YAML.
pub(crate) fn list(texts: &[String]) -> String {
    serde_json::Value::from(texts).to_string()
}

/// Returns the name of a consumer. It becomes part of the name of its queue.
pub(crate) fn consumer_name(argument: &Argument) -> syn::Result<String> {
    let name = argument.string()?;
    if name.chars().count() > 200 || name.contains('/') || name.chars().any(char::is_control) {
        return Err(argument.error("a name has 1 to 200 characters, without slashes and control characters"));
    }
    Ok(name)
}
