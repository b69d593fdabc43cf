//! Adopts dead-letter topics of other frameworks beside a consumer.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use lazaret_adopt::Tally;
use lazaret_adopt::kafka::{Adoption, Report, UnknownRecords};
use lazaret_config::Consumer as ConsumerConfig;
use lazaret_source_kafka::KafkaOptions;
use lazaret_telemetry::Metrics;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::consumer::Shared;
use crate::adopt::target;
use crate::error::ConsumerError;

const MAX_DELAY: Duration = Duration::from_secs(60);
/// Between two attempts after an error.
const BACKOFF: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_secs(1))
    .with_max_delay(MAX_DELAY)
    .with_factor(2.0)
    .without_max_times();

/// Which records of a topic are adopted, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Selection<'a> {
    /// Only dead letters of this group, and those without one.
    pub(crate) group: Option<&'a str>,
    pub(crate) adopts_unknown: bool,
    pub(crate) separate_sequences: bool,
}

/// Builds the adoption of one topic into the queue of a consumer.
pub(crate) fn adoption(
    consumer: &ConsumerConfig,
    options: &KafkaOptions,
    topic: &str,
    selection: Selection<'_>,
) -> Adoption {
    let mut target = target(consumer, selection.separate_sequences);
    target.group = selection.group.map(str::to_owned);
    let unknown = if selection.adopts_unknown { UnknownRecords::Adopt } else { UnknownRecords::Skip };
    Adoption::of(options, topic).into_target(target).with_unknown(unknown)
}

/// Builds the configured adoptions of a consumer: the topic, whether new records are adopted as well, and the adoption.
fn adoptions(consumer: &ConsumerConfig) -> Vec<(&str, bool, Adoption)> {
    let mut all = Vec::new();
    for from in &consumer.adopt {
        let options = KafkaOptions::from_config(&from.kafka);
        let selection = Selection {
            group: from.group.as_deref(),
            adopts_unknown: from.adopts_unknown,
            separate_sequences: from.separate_sequences,
        };
        let topics = from.kafka.topics.iter().map(String::as_str);
        all.extend(
            topics.map(|topic| (topic, from.continuous, adoption(consumer, &options, topic, selection))),
        );
    }
    all
}

/// Adopts the records that exist now, topic after topic, or until `stop`.
pub(super) async fn run_to_end(
    shared: &Shared,
    config: &ConsumerConfig,
    stop: &CancellationToken,
) -> Result<(), ConsumerError> {
    for (topic, _, adoption) in adoptions(config) {
        let progress = Progress::new(&shared.telemetry.metrics, &config.name, topic);
        let adoption = adoption.on_progress(move |report| progress.report(report));
        let done = adoption.run_until(&*shared.stores.adoption, stop.cancelled()).await;
        let report = done.map_err(|error| ConsumerError::Adoption { topic: topic.to_owned(), error })?;
        log_end(&config.name, topic, &report);
    }
    Ok(())
}

/// Starts the configured adoptions beside a running consumer. They end with `stop`, or when the set is dropped: what was read and is
/// not durable is read again.
pub(super) fn spawn(shared: &Shared, config: &ConsumerConfig, stop: &CancellationToken) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    if shared.until_idle {
        // They ran before the consumer started.
        return tasks;
    }
    for (topic, continuous, adoption) in adoptions(config) {
        let (consumer, topic) = (config.name.clone(), topic.to_owned());
        let (store, metrics) = (shared.stores.adoption.clone(), shared.telemetry.metrics.clone());
        let stop = stop.clone();
        let progress = Progress::new(&metrics, &consumer, &topic);
        let adoption = adoption.on_progress(move |report| progress.report(report));
        tasks.spawn(async move {
            tracing::info!(consumer, topic, continuous, "adoption started");
            let mut delays = BACKOFF.build();
            loop {
                metrics.adoption_failed(&consumer, &topic, false);
                let ended = match continuous {
                    true => adoption.follow(&*store, stop.cancelled()).await,
                    false => adoption.run_until(&*store, stop.cancelled()).await,
                };
                let error = match ended {
                    Ok(report) => return log_end(&consumer, &topic, &report),
                    Err(error) => error,
                };
                // The consumer goes on: its own messages do not depend on dead letters of others.
                metrics.adoption_failed(&consumer, &topic, true);
                if error.report.run.read > 0 {
                    delays = BACKOFF.build();
                }
                let delay = delays.next().unwrap_or(MAX_DELAY);
                tracing::error!(consumer, topic, %error, ?delay, "adoption failed, retry scheduled");
                if stop.run_until_cancelled(tokio::time::sleep(delay)).await.is_none() {
                    return;
                }
            }
        });
    }
    tasks
}

fn log_end(consumer: &str, topic: &str, report: &Report) {
    let Tally { adopted, already_there, unknown, foreign, gone, .. } = report.run;
    tracing::info!(consumer, topic, adopted, already_there, unknown, foreign, gone, "adoption ended");
}

/// Reports the progress of one adoption in the log and in the metrics.
struct Progress {
    metrics: Metrics,
    consumer: String,
    topic: String,
    /// The counts that were reported last.
    reported: Mutex<Tally>,
}

impl Progress {
    fn new(metrics: &Metrics, consumer: &str, topic: &str) -> Self {
        let (consumer, topic) = (consumer.to_owned(), topic.to_owned());
        Self { metrics: metrics.clone(), consumer, topic, reported: Mutex::default() }
    }

    fn report(&self, report: &Report) {
        let now = report.run;
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        // Another attempt counts from zero.
        let before = if now.read < reported.read { Tally::default() } else { *reported };
        *reported = now;
        drop(reported);
        let added = |count: fn(&Tally) -> u64| count(&now).saturating_sub(count(&before));
        let outcomes = [
            ("adopted", added(|tally| tally.adopted)),
            ("already-there", added(|tally| tally.already_there)),
            ("unknown", added(|tally| tally.unknown)),
            ("foreign", added(|tally| tally.foreign)),
            ("gone", added(|tally| tally.gone)),
        ];
        self.metrics.adopted(&self.consumer, &self.topic, &outcomes, report.left);
        if now.read == before.read {
            return;
        }
        let [(_, adopted), (_, already_there), (_, unknown), (_, foreign), _] = outcomes;
        let (consumer, topic, remaining) = (&self.consumer, &self.topic, report.left);
        tracing::info!(
            consumer,
            topic,
            adopted,
            already_there,
            unknown,
            foreign,
            remaining,
            "dead letters adopted"
        );
    }
}

#[cfg(test)]
mod tests {
    use lazaret_config::{NoEnv, check};

    use super::*;

    fn consumer(adopt: &str) -> ConsumerConfig {
        let text = format!(
            "consumers:\n  orders:\n    source: {{ inbox: {{}} }}\n    handler: {{ command: {{ program: [x] }} }}\n    adopt: {adopt}\n"
        );
        let checked = check("lazaret.yaml", text.as_bytes(), &NoEnv);
        checked.config.unwrap_or_else(|| panic!("{}", checked.diagnostics.plain())).consumers[0].clone()
    }

    #[test]
    fn each_topic_has_an_adoption_and_a_checkpoint_of_its_own() {
        let config = consumer(
            "{ spring-dlt: { brokers: 'b:1', topics: [a-dlt, b-dlt] }, connect: { brokers: 'b:1', topic: c-dlq } }",
        );
        let checkpoints: Vec<_> =
            adoptions(&config).iter().map(|(_, _, adoption)| adoption.checkpoint()).collect();
        assert_eq!(
            checkpoints,
            ["adopt/orders/orders/a-dlt", "adopt/orders/orders/b-dlt", "adopt/orders/orders/c-dlq"]
        );
    }

    #[test]
    fn counters_continue_after_another_attempt() {
        let metrics = Metrics::prometheus();
        let progress = Progress::new(&metrics, "orders", "dlt");
        let mut report = Report::default();
        for adopted in [2, 3, 1] {
            (report.run.read, report.run.adopted) = (adopted, adopted);
            progress.report(&report);
        }
        let text = metrics.render();
        let line = "lazaret_adopt_records_total{consumer=\"orders\",topic=\"dlt\",outcome=\"adopted\"} 4";
        assert!(text.contains(line), "{text}");
    }
}
