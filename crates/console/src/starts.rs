//! Deploy marks: the start times of the processes that run a consumer.

use jiff::Timestamp;
use lazaret_api::{Instance, InstanceList};
use lazaret_core::QueueName;

use crate::api::Result;
use crate::visit::Visit;

/// The start times of the live instances.
pub(crate) struct Starts(Vec<Instance>);

impl Starts {
    pub(crate) async fn read(visit: &Visit) -> Result<Self> {
        Ok(Self(visit.api.get::<InstanceList>("/v1/instances").await?.instances))
    }

    pub(crate) fn of(instances: &[Instance]) -> Self {
        Self(instances.to_vec())
    }

    /// Returns when the instances that run the consumer of a queue started.
    pub(crate) fn of_queue(&self, queue: &str) -> Vec<Timestamp> {
        let queue = QueueName::from(queue);
        let runs = |instance: &&Instance| instance.consumers.iter().any(|name| name == queue.consumer());
        self.0.iter().filter(runs).map(|instance| instance.started_at).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_instances_of_the_consumer_count() {
        let instance = |name: &str, consumers: &[&str], second| Instance {
            instance: name.to_owned(),
            version: "1.2.3".to_owned(),
            consumers: consumers.iter().map(|consumer| (*consumer).to_owned()).collect(),
            partitions: Vec::new(),
            started_at: Timestamp::from_second(second).unwrap(),
            last_seen: Timestamp::from_second(second).unwrap(),
        };
        let starts = Starts::of(&[
            instance("a", &["shop", "mail"], 10),
            instance("b", &["shop"], 20),
            instance("c", &["shopping"], 30),
            instance("d", &[], 40),
        ]);
        let seconds =
            |queue: &str| starts.of_queue(queue).iter().map(|at| at.as_second()).collect::<Vec<_>>();
        assert_eq!(seconds("shop/shop"), [10, 20]);
        assert_eq!(seconds("mail/other"), [10]);
        assert!(seconds("billing/billing").is_empty());
    }
}
