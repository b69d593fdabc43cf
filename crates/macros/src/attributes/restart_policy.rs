//! `#[restart_policy]`: when a failed change stream is reopened.

use proc_macro2::{Span, TokenStream};

use super::{Setting, Settings, quoted};
use crate::arguments::{Arguments, Errors};

pub(crate) const NAME: &str = "restart_policy";

const KNOWN: [&str; 4] = ["max_attempts", "initial_delay", "max_delay", "multiplier"];

/// Reads the settings.
pub(crate) fn read(span: Span, tokens: TokenStream, errors: &mut Errors) -> Vec<Setting> {
    let arguments = Arguments::read(NAME, span, tokens, &KNOWN, errors);
    let mut settings = Settings::new(&arguments, errors);
    settings.set("max_attempts", "source.mongodb.restart.max-attempts", |argument| {
        argument
            .count(0, u64::from(u32::MAX))
            .map(|count| if count == 0 { "unlimited".to_owned() } else { count.to_string() })
    });
    for (name, key) in [
        ("initial_delay", "source.mongodb.restart.initial-delay"),
        ("max_delay", "source.mongodb.restart.max-delay"),
    ] {
        settings.set(name, key, |argument| match argument.duration()? {
            (_, delay) if delay.is_zero() => Err(argument.error(format!("`{name}` must be above 0"))),
            (text, _) => Ok(quoted(&text)),
        });
    }
    settings.set_multiplier("source.mongodb.restart.multiplier");
    settings.check_delays();
    settings.list
}
