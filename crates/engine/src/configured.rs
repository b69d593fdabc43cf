//! Builds the options of a consumer from its configuration.

use std::sync::Arc;

use lazaret_config::{Consumer, DeadLetter, Handler, Reprocess as ConfiguredReprocess};

use crate::options::{DeadLetterOptions, Options, ReplayOptions};
use crate::reprocess::{InvalidSchedule, Reprocess};

impl Options {
    /// Returns the options of a configured consumer. They do not include the duplicate filter, the
    /// flight recorder and the relay, which belong to the process.
    ///
    /// ```
    /// let text = "
    /// consumers:
    ///   orders:
    ///     source: { inbox: {} }
    ///     handler: { command: { program: [./handle] } }
    ///     retry: { max-attempts: 5 }
    ///     dead-letter: { enabled: false }
    /// ";
    /// let config = lazaret_config::check("f", text.as_bytes(), &lazaret_config::NoEnv).config.unwrap();
    /// let options = lazaret_engine::Options::from_config(&config.consumers[0]).unwrap();
    /// assert_eq!(options.retry.max_attempts, 5);
    /// assert!(options.dead_letter.is_some_and(|letters| letters.discard));
    /// ```
    pub fn from_config(config: &Consumer) -> Result<Self, InvalidSchedule> {
        let (advanced, default) = (config.advanced, Self::default());
        Ok(Self {
            sequencing: config.sequencing(),
            concurrency: config.concurrency,
            shards: advanced.shards,
            window: advanced.window,
            attempt_timeout: match config.handler {
                Handler::Declared => default.attempt_timeout,
                // These handlers enforce their own timeout. A timeout of the engine would include the
                // wait for a worker or a connection.
                _ => None,
            },
            max_payload: config.max_payload,
            retry: config.retry.policy.clone(),
            retry_overrides: config.retry.overrides.clone(),
            classifier: config.classifier(),
            grouping: config.grouping.clone(),
            redact: config.redact.stored_texts(),
            budget: config.retry.budget.clone(),
            breaker: config.breaker.clone(),
            fuse: config.fuse.clone(),
            poison: config.poison.clone(),
            dead_letter: Some(match &config.dead_letter {
                Some(letters) => dead_letter(letters)?,
                // Some letters are kept even when dead letters are discarded, and these have an owner.
                None => DeadLetterOptions {
                    discard: true,
                    owner: config.owner.as_deref().map(Arc::from),
                    ..DeadLetterOptions::default()
                },
            }),
            replay: ReplayOptions {
                max_replays: config.replay.max_replays,
                rate: config.replay.rate.map(|rate| rate.per_second()),
            },
            commit_interval: advanced.commit_interval,
            drain_deadline: advanced.drain_deadline,
            lease: advanced.lease,
            refresh: advanced.refresh,
            blocked_limit: advanced.blocked_limit,
            ..default
        })
    }
}

fn dead_letter(config: &DeadLetter) -> Result<DeadLetterOptions, InvalidSchedule> {
    Ok(DeadLetterOptions {
        discard: false,
        limits: config.limits,
        capacity: config.capacity,
        ttl: config.ttl,
        keep_closed: config.keep_closed,
        reprocess: match &config.reprocess {
            ConfiguredReprocess::Cron { schedule, batch_size } => {
                Reprocess::Cron { schedule: schedule.parse()?, batch_size: *batch_size }
            }
            _ => Reprocess::Manual,
        },
        owner: config.owner.as_deref().map(Arc::from),
        include_payload: config.include_payload,
        include_backtrace: config.include_backtrace,
        on_dead: config.on_dead.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY_KEY: &str = "
redact: { errors: [emails], store: true }
consumers:
  orders:
    source: { file: { path: orders.jsonl } }
    handler: { http: { url: 'http://127.0.0.1:1/' } }
    order: partition
    concurrency: 7
    max-payload: 1KiB
    retry:
      max-attempts: 9
      budget: { rate: 50/s }
      overrides: [{ when: { type: 'Order*' }, max-attempts: 2 }]
    classify: [{ when: { status: 504 }, then: park }]
    grouping: { by: [error-type] }
    breaker: { failures: 99 }
    fuse: { consecutive: 99 }
    poison: { same-failure: 9 }
    dead-letter:
      owner: shop-team
      ttl: 1d
      keep-closed: 2d
      include-payload: false
      include-backtrace: false
      on-dead: continue
      max-sequences: 10
      max-letters: 10
      reprocess: { strategy: cron, cron: '0 3 * * *' }
    replay: { rate: 3/s, max-replays: 4 }
    advanced: { window: 1000, shards: 3, commit-interval: 3s, drain-deadline: 11s, lease: 61s, refresh: 6s, blocked-limit: 1001 }
";

    fn options(text: &str) -> Options {
        let checked = lazaret_config::check("f", text.as_bytes(), &lazaret_config::NoEnv);
        let config = checked.config.unwrap_or_else(|| panic!("{:#?}", checked.diagnostics));
        Options::from_config(&config.consumers[0]).unwrap()
    }

    #[test]
    fn every_key_of_a_consumer_reaches_its_options() {
        let (given, default) = (options(EVERY_KEY), Options::default());
        let (letters, default_letters) = (given.dead_letter.unwrap(), DeadLetterOptions::default());
        macro_rules! differ {
            ($given:ident, $default:ident: $($field:ident)*) => {$(
                assert_ne!(
                    format!("{:?}", $given.$field),
                    format!("{:?}", $default.$field),
                    stringify!($field)
                );
            )*};
        }
        differ!(given, default: sequencing concurrency shards window attempt_timeout max_payload retry retry_overrides);
        differ!(given, default: classifier grouping redact budget breaker fuse poison replay);
        differ!(given, default: commit_interval drain_deadline lease refresh blocked_limit);
        differ!(letters, default_letters: limits capacity ttl keep_closed reprocess owner include_payload);
        differ!(letters, default_letters: include_backtrace on_dead);
        assert_eq!((given.max_payload, given.replay.max_replays), (Some(1024), Some(4)));
        assert_eq!(given.replay.rate, Some(3.0));
    }
}
