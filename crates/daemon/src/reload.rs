//! Takes another configuration over while everything runs.
//!
//! Each consumer remembers which configuration it was started with. So a change that needs a restart is told at every reload
//! until the restart, and does not keep the changes of other consumers from being taken over.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lazaret_config::{Change, Config, Consumer as Wanted, Reload, diff};
use tokio::sync::watch;

/// What runs, and with which configuration.
pub(crate) struct Running {
    /// The configuration that the process started with: what is not about consumers holds until its end.
    pub(crate) started: Arc<Config>,
    pub(crate) consumers: BTreeMap<String, Known>,
}

/// A consumer that runs, or has failed.
pub(crate) struct Known {
    /// The configuration that it was last started with.
    pub(crate) config: Arc<Config>,
    /// Says what is wanted of it; saying it starts it anew.
    pub(crate) desk: watch::Sender<Arc<Wanted>>,
    pub(crate) has_failed: Arc<AtomicBool>,
}

/// What a reload did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// What was taken over.
    pub taken: Vec<Change>,
    /// Consumers that had failed and are tried again.
    pub again: Vec<String>,
    /// What needs a restart. A consumer with such a change goes on as it was, all of it.
    pub restart: Vec<Change>,
    /// What could be taken over by itself, and waits for the restart that another change of the same consumer needs.
    pub held_back: Vec<Change>,
}

impl Reloaded {
    /// Whether nothing had changed and nobody had failed.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Hands new policies to the consumers concerned.
pub(crate) fn take_over(running: &mut Running, config: Config) -> Reloaded {
    let config = Arc::new(config);
    let mut done = Reloaded::default();
    let general = diff(&running.started, &config).changes;
    let is_known = |name: &String| running.consumers.contains_key(name);
    // A consumer that comes is nobody's change; one that goes is told as a change of its own below.
    let of_nobody = general.into_iter().filter(|change| !change.consumer.as_ref().is_some_and(is_known));
    done.restart.extend(of_nobody);
    for (name, known) in &mut running.consumers {
        let changes = diff(&known.config, &config).changes.into_iter();
        let own: Vec<_> = changes.filter(|change| change.consumer.as_ref() == Some(name)).collect();
        let had_failed = known.has_failed.load(Ordering::Acquire);
        let needs_restart = own.iter().any(|change| change.reload == Reload::Restart);
        match config.consumer(name) {
            Some(wanted) if !needs_restart && (had_failed || !own.is_empty()) => {
                known.config = config.clone();
                known.desk.send_replace(Arc::new(wanted.clone()));
                done.taken.extend(own);
                if had_failed {
                    done.again.push(name.clone());
                }
            }
            Some(_) if !needs_restart => {}
            _ => {
                if had_failed {
                    // As it was: what was wrong may be mended elsewhere.
                    known.desk.send_modify(|_| {});
                    done.again.push(name.clone());
                }
                let (restart, held_back): (Vec<_>, Vec<_>) =
                    own.into_iter().partition(|change| change.reload == Reload::Restart);
                done.restart.extend(restart);
                done.held_back.extend(held_back);
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

    fn run(config: Config) -> (Running, BTreeMap<String, watch::Receiver<Arc<Wanted>>>) {
        let config = Arc::new(config);
        let (mut consumers, mut desks) = (BTreeMap::new(), BTreeMap::new());
        for wanted in &config.consumers {
            let (desk, receiver) = watch::channel(Arc::new(wanted.clone()));
            let known = Known { config: config.clone(), desk, has_failed: Arc::default() };
            consumers.insert(wanted.name.clone(), known);
            desks.insert(wanted.name.clone(), receiver);
        }
        (Running { started: config, consumers }, desks)
    }

    fn paths(changes: &[Change]) -> Vec<&str> {
        changes.iter().map(|change| change.path.as_str()).collect()
    }

    #[test]
    fn only_the_consumer_whose_policy_changed_starts_anew() {
        let (mut running, desks) = run(two("retry: { max-attempts: 3 }", "concurrency: 2"));
        let done = take_over(&mut running, two("retry: { max-attempts: 5 }", "concurrency: 2"));
        assert_eq!(paths(&done.taken), ["consumers.orders.retry.max-attempts"]);
        assert!(done.restart.is_empty());
        assert!(desks["orders"].has_changed().unwrap() && !desks["mail"].has_changed().unwrap());
        assert_eq!(desks["orders"].borrow().retry.policy.max_attempts, 5);
    }

    #[test]
    fn what_needs_a_restart_is_told_every_time_and_holds_nobody_else_up() {
        let (mut running, desks) = run(two("concurrency: 2", "retry: { max-attempts: 3 }"));
        for attempts in [4, 5] {
            let retry = format!("retry: {{ max-attempts: {attempts} }}");
            let done = take_over(&mut running, two("concurrency: 3", &retry));
            assert_eq!(paths(&done.restart), ["consumers.orders.concurrency"]);
            assert_eq!(paths(&done.taken), ["consumers.mail.retry.max-attempts"]);
        }
        assert!(!desks["orders"].has_changed().unwrap());
        assert_eq!(desks["mail"].borrow().retry.policy.max_attempts, 5);
    }

    #[test]
    fn a_change_that_needs_a_restart_holds_back_all_changes_of_its_consumer() {
        let (mut running, desks) =
            run(two("concurrency: 2\n    retry: { max-attempts: 4 }", "concurrency: 2"));
        for _ in 0..2 {
            let done = take_over(
                &mut running,
                two("concurrency: 3\n    retry: { max-attempts: 3 }", "concurrency: 2"),
            );
            assert_eq!(paths(&done.restart), ["consumers.orders.concurrency"]);
            assert_eq!(paths(&done.held_back), ["consumers.orders.retry.max-attempts"]);
            assert!(done.taken.is_empty());
        }
        assert!(desks.values().all(|desk| !desk.has_changed().unwrap()));
    }

    #[test]
    fn consumers_that_come_or_go_and_what_is_about_all_need_a_restart() {
        let (mut running, desks) = run(two("concurrency: 2", "concurrency: 2"));
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
        let mut restart = take_over(&mut running, other).restart;
        restart.sort_by(|a, b| a.path.cmp(&b.path));
        assert_eq!(paths(&restart), ["consumers.mail", "consumers.other", "listen"]);
        assert!(desks.values().all(|desk| !desk.has_changed().unwrap()));
    }

    #[test]
    fn nothing_changed_starts_nobody_anew_but_those_that_have_failed() {
        let (mut running, desks) = run(two("concurrency: 2", "concurrency: 2"));
        running.consumers["mail"].has_failed.store(true, Ordering::Release);
        let done = take_over(&mut running, two("concurrency: 2", "concurrency: 2"));
        assert_eq!((done.again, done.taken.len(), done.restart.len()), (vec!["mail".to_owned()], 0, 0));
        assert!(desks["mail"].has_changed().unwrap() && !desks["orders"].has_changed().unwrap());
    }
}
