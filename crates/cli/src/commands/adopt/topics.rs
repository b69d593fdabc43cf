//! `adopt spring-dlt`, `connect`, `streams` and `x-original`.

use clap::Args;
use lazaret_config::TopicFormat;

use super::super::check::File;
use crate::context::Context;
use crate::error::Result;
use crate::exit::Exit;

/// Adopt the dead letters of Kafka topics.
#[derive(Debug, Args)]
#[cfg_attr(not(feature = "kafka"), allow(dead_code, reason = "this build only says that it cannot"))]
pub struct Topics {
    #[command(flatten)]
    file: File,

    /// Adopt into this consumer
    #[arg(long, value_name = "NAME")]
    consumer: String,

    /// Read this dead-letter topic; may be repeated; default: those of the key `adopt` of the consumer
    #[arg(long, value_name = "TOPIC")]
    topic: Vec<String>,

    /// Connect to these brokers; default: those of the key `adopt` of the consumer, else of its Kafka source
    #[arg(long, value_name = "HOST:PORT,…")]
    brokers: Option<String>,

    /// Adopt only dead letters of this consumer group, and those that name none; default: every group
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,

    /// Adopt records without known failure headers as messages of the dead-letter topic
    #[arg(long)]
    adopt_unknown: bool,

    /// Put the letters into sequences of their own, so that live messages do not wait behind them
    #[arg(long)]
    separate_sequences: bool,

    /// Read from the beginning of the topic instead of the end of the last run
    #[arg(long)]
    from_beginning: bool,

    /// Show what would be adopted, and change nothing
    #[arg(long)]
    dry_run: bool,
}

#[cfg(not(feature = "kafka"))]
impl Topics {
    pub(super) async fn run(self, _: TopicFormat, _: &mut Context) -> Result<Exit> {
        Err(crate::error::Error::usage_hint(
            "this build does not support Kafka",
            lazaret_config::Capability::OTHER_BUILD,
        ))
    }
}

#[cfg(feature = "kafka")]
mod run {
    use lazaret_daemon::adopt::Tally;
    use lazaret_daemon::adopt::kafka::{
        Adopted, CauseCount, DeadLetterTopics, Letters, OriginCount, dead_letter_topics,
    };
    use serde::Serialize;

    use super::super::common::{Words, error, letters_line, progress};
    use super::{Context, Exit, Result, TopicFormat, Topics};
    use crate::hints::{query_value, quoted};
    use crate::output::{Cell, Column, Line, Screen, Table, Tone, count, print_value};

    /// The CSV columns.
    const COLUMNS: &[&str] = &[
        "dry-run",
        "consumer",
        "format",
        "letters.read",
        "letters.adopted",
        "letters.already-there",
        "letters.foreign",
        "letters.unknown",
        "letters.damaged",
        "letters.gone",
    ];
    const ORIGIN_COLUMNS: &[Column] = &[
        Column::new("FORMAT"),
        Column::new("GROUP").min_width(10),
        Column::new("TOPIC").min_width(10),
        Column::new("PARTITION").right(),
        Column::new("RECORDS").right(),
    ];
    const CAUSE_COLUMNS: &[Column] =
        &[Column::new("EXCEPTION").min_width(20), Column::new("REASON"), Column::new("RECORDS").right()];
    const WORDS: Words = Words { record: "record", others: "of other groups" };

    /// The result of the command.
    #[derive(Serialize)]
    #[serde(rename_all = "kebab-case")]
    struct Answer {
        dry_run: bool,
        consumer: String,
        format: &'static str,
        /// The sum of all topics.
        letters: Tally,
        topics: Vec<TopicAnswer>,
    }

    #[derive(Serialize)]
    #[serde(rename_all = "kebab-case")]
    struct TopicAnswer {
        topic: String,
        letters: Tally,
        /// The counts of all runs, this one included.
        #[serde(skip_serializing_if = "Option::is_none")]
        all_runs: Option<Tally>,
        /// Only in a dry run.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        origins: Vec<OriginCount>,
        /// Only in a dry run.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        causes: Vec<CauseCount>,
        unknown_at: Vec<String>,
    }

    impl From<Adopted> for TopicAnswer {
        fn from(Adopted { topic, letters }: Adopted) -> Self {
            match letters {
                Letters::Done(report) => Self {
                    topic,
                    letters: report.run,
                    all_runs: Some(report.total),
                    origins: Vec::new(),
                    causes: Vec::new(),
                    unknown_at: report.unknown_at,
                },
                Letters::Preview(preview) => Self {
                    topic,
                    letters: preview.counts,
                    all_runs: None,
                    origins: preview.origins,
                    causes: preview.causes,
                    unknown_at: preview.unknown_at,
                },
            }
        }
    }

    impl TopicAnswer {
        fn print(&self, dry_run: bool, format: TopicFormat, screen: &Screen) -> Result<()> {
            if dry_run {
                let mut table = Table::new(ORIGIN_COLUMNS);
                for OriginCount { format, group, topic, partition, records } in &self.origins {
                    table.row(vec![
                        Cell::new(format),
                        Cell::or_dash(group.as_ref()),
                        Cell::new(topic),
                        Cell::new(partition.to_string()),
                        Cell::new(count(*records)),
                    ]);
                }
                screen.table(&table)?;
                let mut table = Table::new(CAUSE_COLUMNS);
                for CauseCount { error_type, reason, records } in &self.causes {
                    table.row(vec![Cell::new(error_type), Cell::new(reason), Cell::new(count(*records))]);
                }
                screen.table(&table)?;
                if let Some(others) = self.other_format(format) {
                    screen.stderr_line(&Line::new().add("note: ", Tone::Warning).plain(&others));
                }
            }
            if self.letters.unknown > 0 {
                for address in &self.unknown_at {
                    screen.stderr_line(&Line::new().add("unknown: ", Tone::Warning).plain(address));
                }
            }
            let earlier = self.all_runs.map_or(0, |all| all.adopted.saturating_sub(self.letters.adopted));
            let earlier = match earlier {
                0 => String::new(),
                earlier => format!("; {} adopted before", count(earlier)),
            };
            let counts = letters_line(&self.letters, dry_run, WORDS);
            screen.line(&Line::of(format!("{}: {counts}{earlier}", self.topic)))
        }

        /// Says so if no record has the format that was asked for: the topic may be the wrong one.
        fn other_format(&self, format: TopicFormat) -> Option<String> {
            let family = match format {
                TopicFormat::SpringDlt => "spring",
                other => other.as_str(),
            };
            let is_other =
                !self.origins.is_empty() && self.origins.iter().all(|origin| origin.format != family);
            is_other.then(|| {
                format!(
                    "no record of {} was written by {family}: the first has headers of {}",
                    self.topic, self.origins[0].format
                )
            })
        }
    }

    impl Answer {
        fn new(request: &DeadLetterTopics, adopted: Vec<Adopted>) -> Self {
            let topics: Vec<TopicAnswer> = adopted.into_iter().map(TopicAnswer::from).collect();
            let mut letters = Tally::default();
            for topic in &topics {
                letters.add(&topic.letters);
            }
            let (consumer, format) = (request.consumer.clone(), request.format.as_str());
            Self { dry_run: request.dry_run, consumer, format, letters, topics }
        }

        /// The commands to run next.
        fn next(&self, request: &DeadLetterTopics) -> Vec<String> {
            if self.dry_run {
                let mut command =
                    format!("lazaret adopt {} --consumer {}", self.format, quoted(&self.consumer));
                let named = [("group", &request.group), ("brokers", &request.brokers)];
                let named = named.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
                for (name, value) in request.topics.iter().map(|topic| ("topic", topic)).chain(named) {
                    command.push_str(&format!(" --{name} {}", quoted(value)));
                }
                let flags = [
                    ("adopt-unknown", request.adopt_unknown),
                    ("separate-sequences", request.separate_sequences),
                    ("from-beginning", request.from_beginning),
                ];
                for (name, _) in flags.into_iter().filter(|(_, is_set)| *is_set) {
                    command.push_str(&format!(" --{name}"));
                }
                return vec![command];
            }
            let query = quoted(&format!("consumer:{}", query_value(&self.consumer)));
            vec![format!("lazaret groups {query}"), "lazaret run".to_owned()]
        }
    }

    impl Topics {
        pub(in super::super) async fn run(self, format: TopicFormat, context: &Context) -> Result<Exit> {
            let request = DeadLetterTopics {
                config: self.file.config,
                consumer: self.consumer,
                format,
                topics: self.topic,
                brokers: self.brokers,
                group: self.group,
                adopt_unknown: self.adopt_unknown,
                separate_sequences: self.separate_sequences,
                from_beginning: self.from_beginning,
                dry_run: self.dry_run,
            };
            let screen = &context.screen;
            let adopted = dead_letter_topics(&request, progress(screen, WORDS)).await.map_err(error)?;
            let answer = Answer::new(&request, adopted);
            print_value(screen, context.format(), COLUMNS, &answer, || {
                answer.topics.iter().try_for_each(|topic| topic.print(answer.dry_run, format, screen))
            })?;
            screen.next_commands(&answer.next(&request));
            Ok(if answer.letters.unknown > 0 { Exit::Partly } else { Exit::Ok })
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        fn topic(formats: &[&str]) -> TopicAnswer {
            let origin = |format: &&str| OriginCount {
                format: (*format).to_owned(),
                group: None,
                topic: "orders".to_owned(),
                partition: 0,
                records: 1,
            };
            TopicAnswer {
                topic: "orders-dlt".to_owned(),
                letters: Tally::default(),
                all_runs: None,
                origins: formats.iter().map(origin).collect(),
                causes: Vec::new(),
                unknown_at: Vec::new(),
            }
        }

        #[test]
        fn a_topic_of_another_framework_is_pointed_out() {
            let other = topic(&["connect"]).other_format(TopicFormat::SpringDlt).unwrap();
            assert!(other.contains("headers of connect"), "{other}");
            assert_eq!(topic(&["connect", "spring"]).other_format(TopicFormat::SpringDlt), None);
            assert_eq!(topic(&[]).other_format(TopicFormat::Connect), None);
        }
    }
}
