//! `adopt axon`.

use clap::Args;

use super::super::Run;
use super::super::check::File;
use crate::context::Context;
use crate::error::Result;
use crate::exit::Exit;

/// Adopt the dead letters of one processing group of Axon.
#[derive(Debug, Args)]
#[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "this build only says that it cannot"))]
pub struct Axon {
    #[command(flatten)]
    file: File,

    /// Adopt into this consumer
    #[arg(long, value_name = "NAME")]
    consumer: String,

    /// Connect to the database of Axon's table
    #[arg(long, value_name = "DSN", env = "LAZARET_ADOPT_DSN", hide_env_values = true)]
    dsn: String,

    /// Read this table, with its schema if need be; default: `dead_letter_entry` or `DeadLetterEntry`
    #[arg(long, value_name = "TABLE")]
    table: Option<String>,

    /// Adopt this processing group; default: the name of the consumer
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,

    /// Put the letters into sequences of their own, so that live events do not wait behind them
    #[arg(long)]
    separate_sequences: bool,

    /// Show what would be adopted, and change nothing
    #[arg(long)]
    dry_run: bool,
}

#[cfg(not(feature = "postgres"))]
impl Run for Axon {
    async fn run(self, _: &mut Context) -> Result<Exit> {
        Err(crate::error::Error::usage_hint(
            "this build does not support PostgreSQL",
            lazaret_config::Capability::OTHER_BUILD,
        ))
    }
}

#[cfg(feature = "postgres")]
mod run {
    use lazaret_daemon::adopt::Tally;
    use lazaret_daemon::adopt::axon::{self as adopt, Adopted, GroupCount, Letters};
    use serde::Serialize;

    use super::super::common::{Words, error, letters_line, progress};
    use super::{Axon, Context, Exit, Result, Run};
    use crate::error::Error;
    use crate::hints::{query_value, quoted};
    use crate::output::{Cell, Column, Line, Screen, Table, Tone, count, print_value};

    /// The CSV columns.
    const COLUMNS: &[&str] = &[
        "dry-run",
        "consumer",
        "group",
        "letters.read",
        "letters.adopted",
        "letters.already-there",
        "letters.unknown",
        "letters.damaged",
    ];
    const GROUP_COLUMNS: &[Column] = &[
        Column::new("GROUP").min_width(10),
        Column::new("ENTRIES").right(),
        Column::new("SEQUENCES").right(),
    ];
    const WORDS: Words = Words { record: "row", others: "of other groups" };

    /// The result of the command.
    #[derive(Serialize)]
    #[serde(rename_all = "kebab-case")]
    struct Answer {
        dry_run: bool,
        consumer: String,
        group: String,
        letters: LettersAnswer,
    }

    #[derive(Serialize)]
    #[serde(rename_all = "kebab-case")]
    struct LettersAnswer {
        #[serde(flatten)]
        counts: Tally,
        /// Only in a dry run.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        groups: Vec<GroupCount>,
        unknown_at: Vec<String>,
    }

    impl Answer {
        fn new(request: &adopt::Axon, adopted: Adopted) -> Self {
            let letters = match adopted.letters {
                Letters::Done(report) => {
                    LettersAnswer { counts: report.run, groups: Vec::new(), unknown_at: report.unknown_at }
                }
                Letters::Preview(preview) => LettersAnswer {
                    counts: preview.counts,
                    groups: preview.groups,
                    unknown_at: preview.unknown_at,
                },
            };
            Self {
                dry_run: request.dry_run,
                consumer: request.consumer.clone(),
                group: adopted.group,
                letters,
            }
        }

        fn print(&self, screen: &Screen) -> Result<()> {
            if self.dry_run {
                let mut table = Table::new(GROUP_COLUMNS);
                for GroupCount { group, entries, sequences } in &self.letters.groups {
                    let numbers = [entries, sequences].map(|number| Cell::new(count(*number)));
                    table.row([Cell::new(group.clone())].into_iter().chain(numbers).collect());
                }
                screen.table(&table)?;
            }
            for address in &self.letters.unknown_at {
                screen.stderr_line(&Line::new().add("unknown: ", Tone::Warning).plain(address));
            }
            screen.line(&Line::of(letters_line(&self.letters.counts, self.dry_run, WORDS)))
        }

        /// The commands to run next.
        fn next(&self) -> Vec<String> {
            if self.dry_run {
                let (consumer, group) = (quoted(&self.consumer), quoted(&self.group));
                return vec![format!("lazaret adopt axon --consumer {consumer} --group {group} --dsn …")];
            }
            let query = quoted(&format!("consumer:{}", query_value(&self.consumer)));
            vec![format!("lazaret groups {query}"), "lazaret run".to_owned()]
        }
    }

    impl Run for Axon {
        async fn run(self, context: &mut Context) -> Result<Exit> {
            let request = adopt::Axon {
                config: self.file.config,
                consumer: self.consumer,
                dsn: self.dsn,
                table: self.table,
                group: self.group,
                separate_sequences: self.separate_sequences,
                dry_run: self.dry_run,
            };
            let screen = &context.screen;
            let adopted = adopt::axon(&request, progress(screen, WORDS)).await.map_err(error)?;
            let answer = Answer::new(&request, adopted);
            print_value(screen, context.format(), COLUMNS, &answer, || answer.print(screen))?;
            if answer.letters.counts.read == 0 {
                return Err(Error::not_found_hint(
                    format!("the table has no entry of the processing group {:?}", answer.group),
                    "pass its name with --group; --dry-run lists the groups",
                ));
            }
            screen.next_commands(&answer.next());
            Ok(if answer.letters.counts.unknown > 0 { Exit::Partly } else { Exit::Ok })
        }
    }
}
