//! `#[retry_policy]`: when and how often a failed message is retried.

use proc_macro2::{Span, TokenStream};

use super::{Setting, Settings, list};
use crate::arguments::{Arguments, Errors};
use crate::values::ErrorList;

pub(crate) const NAME: &str = "retry_policy";

const KNOWN: [&str; 7] =
    ["max_attempts", "initial_delay", "max_delay", "multiplier", "jitter", "retry_on", "no_retry_on"];

/// The retry policy.
#[derive(Default)]
pub(crate) struct RetryPolicy {
    pub(crate) settings: Vec<Setting>,
    pub(crate) retry_on: ErrorList,
    pub(crate) no_retry_on: ErrorList,
}

impl RetryPolicy {
    pub(crate) fn read(span: Span, tokens: TokenStream, errors: &mut Errors) -> Self {
        let arguments = Arguments::read(NAME, span, tokens, &KNOWN, errors);
        let mut settings = Settings::new(&arguments, errors);
        settings.set("max_attempts", "retry.max-attempts", |argument| {
            let count = argument.count(0, u64::from(u32::MAX))?;
            if count == 0 {
                let why = "`max_attempts` must be at least 1: it includes the first attempt";
                return Err(argument.error(why));
            }
            Ok(count.to_string())
        });
        settings.set_duration("initial_delay", "retry.initial-delay");
        settings.set_duration("max_delay", "retry.max-delay");
        settings.set_multiplier("retry.multiplier");
        settings.set("jitter", "retry.jitter", |argument| argument.share().map(|share| share.to_string()));
        settings.check_delays();
        let mut lists =
            ["retry_on", "no_retry_on"].map(|name| settings.read(name, |argument| argument.errors()));
        for (name, key, errors) in
            [("retry_on", "retry.retry-on", &lists[0]), ("no_retry_on", "retry.no-retry-on", &lists[1])]
        {
            // The list of an attribute replaces the list of the file, even if it only names types.
            if let Some(errors) = errors {
                settings.set(name, key, |_| Ok(list(&errors.reasons)));
            }
        }
        let [retry_on, no_retry_on] = [lists[0].take(), lists[1].take()].map(Option::unwrap_or_default);
        Self { settings: settings.list, retry_on, no_retry_on }
    }
}
