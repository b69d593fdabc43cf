//! `adopt flowwarden`.

use clap::Args;

use super::super::Run;
use super::super::check::File;
use crate::context::Context;
use crate::error::Result;
use crate::exit::Exit;

/// Adopt FlowWarden's dead letters and position.
#[derive(Debug, Args)]
#[cfg_attr(not(feature = "mongodb"), allow(dead_code, reason = "this build only says that it cannot"))]
pub struct FlowWarden {
    #[command(flatten)]
    file: File,

    /// Adopt into this consumer, which reads the change stream from now on
    #[arg(long, value_name = "NAME")]
    consumer: String,

    /// Connect to the server of FlowWarden's collections; default: that of the consumer's source
    #[arg(long, value_name = "URI", env = "LAZARET_ADOPT_URI", hide_env_values = true)]
    uri: Option<String>,

    /// Read FlowWarden's collections in this database; default: that of the URI, else of the consumer's source
    #[arg(long, value_name = "NAME")]
    database: Option<String>,

    /// Read dead letters from this collection
    #[arg(long, value_name = "COLLECTION", default_value = "_fw_dlq")]
    dlq: String,

    /// Read positions from this collection
    #[arg(long, value_name = "COLLECTION", default_value = "_fw_checkpoints")]
    checkpoints: String,

    /// Adopt this stream of FlowWarden; default: the name of the consumer
    #[arg(long, value_name = "STREAM")]
    stream: Option<String>,

    /// Name the collection that the stream watches, for a consumer that watches a whole database
    #[arg(long, value_name = "COLLECTION")]
    collection: Option<String>,

    /// Adopt documents with this status as well as PENDING
    #[arg(long, value_name = "STATUS")]
    status: Vec<String>,

    /// Put the letters into sequences of their own, so that live changes do not wait behind them
    #[arg(long)]
    separate_sequences: bool,

    /// Adopt only the dead letters
    #[arg(long, conflicts_with = "position_only")]
    letters_only: bool,

    /// Adopt only the position
    #[arg(long)]
    position_only: bool,

    /// Replace the position of a consumer that has another one
    #[arg(long, conflicts_with = "letters_only")]
    replace_position: bool,

    /// Show what would be adopted, and change nothing
    #[arg(long)]
    dry_run: bool,
}

#[cfg(not(feature = "mongodb"))]
impl Run for FlowWarden {
    async fn run(self, _: &mut Context) -> Result<Exit> {
        Err(crate::error::Error::usage_hint(
            "this build does not support MongoDB",
            lazaret_config::Capability::OTHER_BUILD,
        ))
    }
}

#[cfg(feature = "mongodb")]
mod run {
    use jiff::Timestamp;
    use lazaret_daemon::adopt::Tally;
    use lazaret_daemon::adopt::flowwarden::{
        self as adopt, Adopted, ForeignAnchorKind, Letters, Parts, Position, StreamCount, TakenOver,
    };
    use serde::Serialize;

    use super::super::common::{Words, error, letters_line, progress};
    use super::{Context, Exit, FlowWarden, Result, Run};
    use crate::error::Error;
    use crate::hints::{query_value, quoted};
    use crate::output::{Cell, Column, Line, Screen, Table, Tone, count, print_value};

    /// The CSV columns.
    const COLUMNS: &[&str] = &[
        "dry-run",
        "consumer",
        "stream",
        "letters.read",
        "letters.adopted",
        "letters.already-there",
        "letters.closed",
        "letters.foreign",
        "letters.unknown",
        "letters.damaged",
        "position.outcome",
        "position.at",
    ];
    const STREAM_COLUMNS: &[Column] =
        &[Column::new("STREAM").min_width(10), Column::new("STATUS"), Column::new("DOCUMENTS").right()];
    const WORDS: Words = Words { record: "document", others: "of other streams" };

    /// The result of the command.
    #[derive(Serialize)]
    #[serde(rename_all = "kebab-case")]
    struct Answer {
        dry_run: bool,
        consumer: String,
        stream: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        letters: Option<LettersAnswer>,
        #[serde(skip_serializing_if = "Option::is_none")]
        position: Option<PositionAnswer>,
    }

    #[derive(Serialize)]
    #[serde(rename_all = "kebab-case")]
    struct LettersAnswer {
        #[serde(flatten)]
        counts: Tally,
        /// Only in a dry run.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        streams: Vec<StreamCount>,
        unknown_at: Vec<String>,
    }

    #[derive(Serialize)]
    #[serde(rename_all = "kebab-case")]
    struct PositionAnswer {
        /// `adopted`, `already-there`, `kept` or `absent`.
        outcome: &'static str,
        /// `processed` or `seen`, of a position that is adopted.
        #[serde(skip_serializing_if = "Option::is_none")]
        anchor: Option<&'static str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        at: Option<Timestamp>,
        /// A position that was kept is behind FlowWarden's.
        #[serde(skip_serializing_if = "Option::is_none")]
        is_later: Option<bool>,
    }

    impl From<Position> for PositionAnswer {
        fn from(position: Position) -> Self {
            let of = |outcome| Self { outcome, anchor: None, at: None, is_later: None };
            match position {
                Position::Absent => of("absent"),
                Position::Found(TakenOver::AlreadyThere) => of("already-there"),
                Position::Found(TakenOver::Kept { at, is_later }) => {
                    Self { at: Some(at), is_later: Some(is_later), ..of("kept") }
                }
                Position::Found(TakenOver::Written { anchor, at }) => {
                    let anchor = match anchor {
                        ForeignAnchorKind::Processed => "processed",
                        ForeignAnchorKind::Seen => "seen",
                    };
                    Self { at: Some(at), anchor: Some(anchor), ..of("adopted") }
                }
                Position::Found(_) => of("unknown"),
            }
        }
    }

    impl Answer {
        fn new(request: &adopt::FlowWarden, adopted: Adopted) -> Self {
            let letters = adopted.letters.map(|letters| match letters {
                Letters::Done(report) => {
                    LettersAnswer { counts: report.run, streams: Vec::new(), unknown_at: report.unknown_at }
                }
                Letters::Preview(preview) => LettersAnswer {
                    counts: preview.counts,
                    streams: preview.streams,
                    unknown_at: preview.unknown_at,
                },
            });
            Self {
                dry_run: request.dry_run,
                consumer: request.consumer.clone(),
                stream: adopted.stream,
                letters,
                position: adopted.position.map(PositionAnswer::from),
            }
        }

        /// Nothing of this stream exists: probably it has another name.
        fn is_empty(&self) -> bool {
            let of_stream = |letters: &LettersAnswer| letters.counts.adopted + letters.counts.already_there;
            let has_letters = self.letters.as_ref().is_some_and(|letters| of_stream(letters) > 0);
            let has_position = self.position.as_ref().is_some_and(|position| position.outcome != "absent");
            let others = self.letters.as_ref().map_or(1, |letters| letters.counts.foreign);
            !has_letters && !has_position && others > 0
        }

        /// Unknown documents remain, or the consumer does not go on where FlowWarden stopped.
        fn is_partial(&self) -> bool {
            let unknown = self.letters.as_ref().is_some_and(|letters| letters.counts.unknown > 0);
            unknown || self.position.as_ref().is_some_and(|position| position.is_later == Some(false))
        }

        fn print(&self, screen: &Screen) -> Result<()> {
            if let Some(letters) = &self.letters {
                if self.dry_run {
                    let mut table = Table::new(STREAM_COLUMNS);
                    for StreamCount { stream, status, documents } in &letters.streams {
                        table.row(vec![
                            Cell::or_dash(stream.as_ref()),
                            Cell::or_dash(status.as_ref()),
                            Cell::new(count(*documents)),
                        ]);
                    }
                    screen.table(&table)?;
                }
                for address in &letters.unknown_at {
                    screen.stderr_line(&Line::new().add("unknown: ", Tone::Warning).plain(address));
                }
                screen.line(&Line::of(letters_line(&letters.counts, self.dry_run, WORDS)))?;
            }
            if let Some(position) = &self.position {
                screen.line(&Line::of(self.position_line(position)))?;
            }
            Ok(())
        }

        fn position_line(&self, position: &PositionAnswer) -> String {
            let at = position.at.map(|at| at.to_string()).unwrap_or_default();
            match (position.outcome, position.is_later) {
                ("adopted", _) if self.dry_run => format!("position: would go on behind {at}"),
                ("adopted", _) => format!("position: goes on behind {at}"),
                ("kept", Some(true)) => format!("position: kept, {at}; the consumer has gone on since"),
                ("kept", _) => format!("position: kept, {at}; FlowWarden's is later"),
                ("absent", _) => format!("position: FlowWarden has none of the stream {}", self.stream),
                (outcome, _) => format!("position: {}", outcome.replace('-', " ")),
            }
        }

        /// The commands to run next.
        fn next(&self) -> Vec<String> {
            let base = format!("lazaret adopt flowwarden --consumer {}", quoted(&self.consumer));
            if self.dry_run {
                return vec![format!("{base} --stream {}", quoted(&self.stream))];
            }
            if self.position.as_ref().is_some_and(|position| position.is_later == Some(false)) {
                return vec![format!(
                    "{base} --stream {} --position-only --replace-position",
                    quoted(&self.stream)
                )];
            }
            vec![
                "lazaret run".to_owned(),
                format!("lazaret groups {}", quoted(&format!("consumer:{}", query_value(&self.consumer)))),
            ]
        }
    }

    impl Run for FlowWarden {
        async fn run(self, context: &mut Context) -> Result<Exit> {
            let request = adopt::FlowWarden {
                config: self.file.config,
                consumer: self.consumer,
                uri: self.uri,
                database: self.database,
                dead_letters: self.dlq,
                checkpoints: self.checkpoints,
                stream: self.stream,
                collection: self.collection,
                statuses: self.status,
                separate_sequences: self.separate_sequences,
                parts: match (self.letters_only, self.position_only) {
                    (true, _) => Parts::Letters,
                    (_, true) => Parts::Position,
                    _ => Parts::All,
                },
                replace_position: self.replace_position,
                dry_run: self.dry_run,
            };
            let screen = &context.screen;
            let adopted = adopt::flowwarden(&request, progress(screen, WORDS)).await.map_err(error)?;
            let answer = Answer::new(&request, adopted);
            print_value(screen, context.format(), COLUMNS, &answer, || answer.print(screen))?;
            if answer.is_empty() {
                return Err(Error::not_found_hint(
                    format!("nothing of the stream {:?} was found", answer.stream),
                    "pass its name in FlowWarden with --stream; --dry-run lists the streams",
                ));
            }
            screen.next_commands(&answer.next());
            Ok(if answer.is_partial() { Exit::Partly } else { Exit::Ok })
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        fn answer(counts: Tally, position: Option<Position>) -> Answer {
            let letters = LettersAnswer { counts, streams: Vec::new(), unknown_at: Vec::new() };
            Answer {
                dry_run: false,
                consumer: "shop".into(),
                stream: "order-stream".into(),
                letters: Some(letters),
                position: position.map(PositionAnswer::from),
            }
        }

        #[test]
        fn a_summary_names_only_what_is_there() {
            let counts = Tally { read: 4, adopted: 2, already_there: 1, unknown: 1, ..Tally::default() };
            let answer = answer(counts, None);
            let line = letters_line(&counts, false, WORDS);
            assert_eq!(line, "4 documents: 2 adopted, 1 already there, 1 unknown");
            assert!(answer.is_partial() && !answer.is_empty());
        }

        #[test]
        fn a_wrong_stream_is_told_from_an_empty_collection() {
            let others = Tally { read: 3, foreign: 3, ..Tally::default() };
            assert!(answer(others, Some(Position::Absent)).is_empty());
            assert!(!answer(Tally::default(), Some(Position::Absent)).is_empty());
            assert!(!answer(others, Some(Position::Found(TakenOver::AlreadyThere))).is_empty());
        }

        #[test]
        fn a_position_that_was_kept_is_partial_only_if_flowwardens_is_later() {
            let kept = |is_later| {
                let position = TakenOver::Kept { at: Timestamp::UNIX_EPOCH, is_later };
                answer(Tally::default(), Some(Position::Found(position)))
            };
            assert!(kept(false).is_partial() && !kept(true).is_partial());
            assert!(kept(false).next()[0].ends_with("--replace-position"));
        }
    }
}
