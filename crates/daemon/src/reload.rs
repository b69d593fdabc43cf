//! Applies another configuration to running consumers.
//!
//! Each consumer keeps the configuration that it was started with. A change that requires a restart is therefore reported at
//! every reload until the restart, and does not block the changes of other consumers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lazaret_api::EffectiveConfig;
use lazaret_config::{Change, Config, Consumer as ConsumerConfig, Reload, diff};
use tokio::sync::watch;

/// The running consumers and their configurations.
pub(crate) struct Running {
    /// The configuration at the start of the process, whose top level applies until its end.
    pub(crate) started: Arc<Config>,
    pub(crate) consumers: BTreeMap<String, RunningConsumer>,
}

impl Running {
    /// The configurations of the consumers that apply. Consumers that run elsewhere have that of the process.
    pub(crate) fn consumers(&self) -> impl Iterator<Item = &ConsumerConfig> {
        self.started.consumers.iter().filter_map(move |consumer| {
            let running = self.consumers.get(&consumer.name);
            running.map_or(&self.started, |running| &running.config).consumer(&consumer.name)
        })
    }

    /// Renders the configuration that applies: of the process from its start, of each consumer from its last one. Consumers that run
    /// elsewhere have that of the process.
    pub(crate) fn effective(&self) -> EffectiveConfig {
        let consumer = |consumer: &ConsumerConfig| {
            let config = self.consumers.get(&consumer.name).map_or(&self.started, |running| &running.config);
            let name = consumer.name.clone();
            let text = config.effective(&name)?;
            let grouping = (&config.consumer(&name)?.grouping).into();
            Some(lazaret_api::ConsumerConfig { name, text, grouping })
        };
        EffectiveConfig {
            general: Some(self.started.effective_top()),
            consumers: self.started.consumers.iter().filter_map(consumer).collect(),
        }
    }
}

/// A consumer that runs or has failed.
pub(crate) struct RunningConsumer {
    /// The configuration of its last start.
    pub(crate) config: Arc<Config>,
    /// Sends its configuration; every send restarts it.
    pub(crate) sender: watch::Sender<Arc<ConsumerConfig>>,
    pub(crate) has_failed: Arc<AtomicBool>,
}

/// The result of a reload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// Changes that were applied.
    pub applied: Vec<Change>,
    /// Failed consumers that were restarted.
    pub restarted: Vec<String>,
    /// Changes that require a restart of the process. No other change of such a consumer is applied.
    pub needs_restart: Vec<Change>,
    /// The number of tokens, if they changed.
    pub tokens: Option<usize>,
    /// Why the tokens could not be read; the previous tokens stay active.
    pub tokens_error: Option<String>,
    /// Changes that were not applied, because another change of the same consumer requires a restart.
    pub deferred: Vec<Change>,
}

impl Reloaded {
    /// Returns whether nothing changed and no failed consumer was restarted.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Applies a configuration to the running consumers.
pub(crate) fn apply(running: &mut Running, config: Config) -> Reloaded {
    let config = Arc::new(config);
    let mut done = Reloaded::default();
    let general = diff(&running.started, &config).changes;
    let is_known = |name: &String| running.consumers.contains_key(name);
    // An added consumer requires a restart; a removed one is reported with its own changes below.
    let top_level = general.into_iter().filter(|change| !change.consumer.as_ref().is_some_and(is_known));
    // What is live there, the tokens, is reloaded by the caller.
    done.needs_restart.extend(top_level.filter(|change| change.reload == Reload::Restart));
    for (name, known) in &mut running.consumers {
        let changes = diff(&known.config, &config).changes.into_iter();
        let own: Vec<_> = changes.filter(|change| change.consumer.as_ref() == Some(name)).collect();
        let had_failed = known.has_failed.load(Ordering::Acquire);
        let needs_restart = own.iter().any(|change| change.reload == Reload::Restart);
        match config.consumer(name) {
            Some(consumer) if !needs_restart && (had_failed || !own.is_empty()) => {
                known.config = config.clone();
                known.sender.send_replace(Arc::new(consumer.clone()));
                done.applied.extend(own);
                if had_failed {
                    done.restarted.push(name.clone());
                }
            }
            Some(_) if !needs_restart => {}
            _ => {
                if had_failed {
                    // Unchanged: the cause may have been corrected elsewhere.
                    known.sender.send_modify(|_| {});
                    done.restarted.push(name.clone());
                }
                let (restart, deferred): (Vec<_>, Vec<_>) =
                    own.into_iter().partition(|change| change.reload == Reload::Restart);
                done.needs_restart.extend(restart);
                done.deferred.extend(deferred);
            }
        }
    }
    done
}

#[cfg(test)]
mod tests {
    use lazaret_config::{NoEnv, check};

    use super::*;

    fn config(text: &str) -> Config {
        let checked = check("lazaret.yaml", text.as_bytes(), &NoEnv);
        checked.config.unwrap_or_else(|| panic!("{}", checked.diagnostics.plain()))
    }

    fn two(orders: &str, mail: &str) -> Config {
        let consumer = |name: &str, keys: &str| {
            format!(
                "  {name}:\n    source: {{ inbox: {{}} }}\n    handler: {{ command: {{ program: [x] }} }}\n    {keys}\n"
            )
        };
        config(&format!("consumers:\n{}{}", consumer("orders", orders), consumer("mail", mail)))
    }

    fn run(config: Config) -> (Running, BTreeMap<String, watch::Receiver<Arc<ConsumerConfig>>>) {
        let config = Arc::new(config);
        let (mut consumers, mut receivers) = (BTreeMap::new(), BTreeMap::new());
        for consumer in &config.consumers {
            let (sender, receiver) = watch::channel(Arc::new(consumer.clone()));
            let known = RunningConsumer { config: config.clone(), sender, has_failed: Arc::default() };
            consumers.insert(consumer.name.clone(), known);
            receivers.insert(consumer.name.clone(), receiver);
        }
        (Running { started: config, consumers }, receivers)
    }

    fn paths(changes: &[Change]) -> Vec<&str> {
        changes.iter().map(|change| change.path.as_str()).collect()
    }

    #[test]
    fn only_the_consumer_whose_policy_changed_restarts() {
        let (mut running, receivers) = run(two("retry: { max-attempts: 3 }", "concurrency: 2"));
        let done = apply(&mut running, two("retry: { max-attempts: 5 }", "concurrency: 2"));
        assert_eq!(paths(&done.applied), ["consumers.orders.retry.max-attempts"]);
        assert!(done.needs_restart.is_empty());
        assert!(receivers["orders"].has_changed().unwrap() && !receivers["mail"].has_changed().unwrap());
        assert_eq!(receivers["orders"].borrow().retry.policy.max_attempts, 5);
    }

    #[test]
    fn a_required_restart_is_reported_every_time_and_blocks_no_other_consumer() {
        let (mut running, receivers) = run(two("concurrency: 2", "retry: { max-attempts: 3 }"));
        for attempts in [4, 5] {
            let retry = format!("retry: {{ max-attempts: {attempts} }}");
            let done = apply(&mut running, two("concurrency: 3", &retry));
            assert_eq!(paths(&done.needs_restart), ["consumers.orders.concurrency"]);
            assert_eq!(paths(&done.applied), ["consumers.mail.retry.max-attempts"]);
        }
        assert!(!receivers["orders"].has_changed().unwrap());
        assert_eq!(receivers["mail"].borrow().retry.policy.max_attempts, 5);
    }

    #[test]
    fn a_required_restart_defers_all_changes_of_its_consumer() {
        let (mut running, receivers) =
            run(two("concurrency: 2\n    retry: { max-attempts: 4 }", "concurrency: 2"));
        for _ in 0..2 {
            let done =
                apply(&mut running, two("concurrency: 3\n    retry: { max-attempts: 3 }", "concurrency: 2"));
            assert_eq!(paths(&done.needs_restart), ["consumers.orders.concurrency"]);
            assert_eq!(paths(&done.deferred), ["consumers.orders.retry.max-attempts"]);
            assert!(done.applied.is_empty());
        }
        assert!(receivers.values().all(|receiver| !receiver.has_changed().unwrap()));
    }

    #[test]
    fn added_and_removed_consumers_and_top_level_changes_require_a_restart() {
        let (mut running, receivers) = run(two("concurrency: 2", "concurrency: 2"));
        let other = config(
            "listen: 127.0.0.1:7118
consumers:
  orders:
    source: { inbox: {} }
    handler: { command: { program: [x] } }
    concurrency: 2
  other:
    source: { inbox: {} }
    handler: { command: { program: [x] } }
",
        );
        let mut restart = apply(&mut running, other).needs_restart;
        restart.sort_by(|a, b| a.path.cmp(&b.path));
        assert_eq!(paths(&restart), ["consumers.mail", "consumers.other", "listen"]);
        assert!(receivers.values().all(|receiver| !receiver.has_changed().unwrap()));
    }

    #[test]
    fn tokens_change_without_a_restart_and_only_the_removal_of_auth_requires_one() {
        let with = |scopes: &str| {
            let hash = "0".repeat(64);
            let token = format!("{{ name: ada, hash: 'sha256:{hash}', scopes: [{scopes}] }}");
            config(&format!("auth: {{ tokens: [{token}] }}\nconsumers: {{}}\n"))
        };
        let without = || config("consumers: {}\n");
        for (before, after, restart) in [
            (with("read"), with("read, triage"), vec![]),
            (without(), with("read"), vec![]),
            (with("read"), without(), vec!["auth: - on (restart)"]),
        ] {
            let done = apply(&mut run(before).0, after);
            let shown: Vec<String> = done.needs_restart.iter().map(Change::to_string).collect();
            assert_eq!(shown, restart);
        }
    }

    #[test]
    fn an_unchanged_configuration_restarts_only_failed_consumers() {
        let (mut running, receivers) = run(two("concurrency: 2", "concurrency: 2"));
        running.consumers["mail"].has_failed.store(true, Ordering::Release);
        let done = apply(&mut running, two("concurrency: 2", "concurrency: 2"));
        assert_eq!(
            (done.restarted, done.applied.len(), done.needs_restart.len()),
            (vec!["mail".to_owned()], 0, 0)
        );
        assert!(receivers["mail"].has_changed().unwrap() && !receivers["orders"].has_changed().unwrap());
    }
}
