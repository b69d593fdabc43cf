//! `export` and `import`: write and read letters with their content, one per line.

use std::io::Read;

use bytes::Bytes;
use clap::Args;
use lazaret_api::PayloadState;
use serde::Deserialize;

use super::Run;
use crate::client::Lines;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::output::{Format, Line, Tone, count, csv_header, csv_row, plural, print_value};
use crate::reveal::Reveal;
use crate::sanitize::escape_json;
use crate::selection::Query;
use crate::unknown_names::explain_empty;

/// The CSV columns of an export: those of a list, and the content.
const COLUMNS: &[&str] = &[
    "id",
    "queue",
    "stream",
    "sequence",
    "index",
    "state",
    "reason",
    "phase",
    "error.type",
    "error.message",
    "attempts",
    "message.id",
    "message.key",
    "message.type",
    "message.position",
    "enqueued-at",
    "last-failed-at",
    "owner",
    "group",
    "content.content-type",
    "content.headers",
    "content.payload",
    "content.payload-base64",
];

/// Export letters with their content.
#[derive(Debug, Args)]
pub struct Export {
    #[command(flatten)]
    query: Query,

    /// Limit the number of letters
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,

    #[command(flatten)]
    reveal: Reveal,
}

impl Run for Export {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        let format = context.chosen_format().unwrap_or(Format::Jsonl);
        if format == Format::Table {
            return Err(Error::usage_hint(
                "export cannot print a table",
                "use -o jsonl, -o json or -o csv, or run `lazaret ls`",
            ));
        }
        let client = context.client()?;
        let query = self.query.text();
        let lines = match self.reveal.reason() {
            Some(reason) => client.revealed_lines(&query, reason).await?,
            None => client.letter_lines(&query, true).await?,
        };
        let written = write(context, format, lines, self.limit.unwrap_or(u64::MAX)).await?;
        if written.letters == 0 {
            explain_empty(context, &client, &query).await?;
        }
        written.conclude(context, format);
        Ok(Exit::Ok)
    }
}

/// Counts the exported letters.
#[derive(Clone, Copy, Debug, Default)]
struct Exported {
    letters: u64,
    /// The letters whose content the token may not read.
    hidden: u64,
    /// The letters with redacted values.
    redacted: u64,
}

impl Exported {
    fn conclude(self, context: &Context, format: Format) {
        let screen = &context.screen;
        screen.info(&format!("{} exported", plural(self.letters, "letter")));
        if self.hidden > 0 {
            let without = format!("{} without payload and headers", count(self.hidden));
            screen.warn(&format!(
                "{without}: the token lacks the scope payload; these letters cannot be imported"
            ));
            screen.next_command("lazaret token new --scope read,payload");
        } else if self.redacted > 0 {
            let redacted = format!("{} with redacted values", count(self.redacted));
            screen.warn(&format!("{redacted}: these letters cannot be imported"));
            screen.next_command("lazaret export --reveal --reason TEXT");
        } else if format == Format::Jsonl && self.letters > 0 {
            screen.next_command("lazaret import FILE --url URL");
        } else {
            screen.next_command("lazaret ls");
        }
    }
}

async fn write(context: &Context, format: Format, mut lines: Lines, limit: u64) -> Result<Exported> {
    let screen = &context.screen;
    let mut written = Exported::default();
    match format {
        Format::Csv => screen.raw(format!("{}\n", csv_header(COLUMNS)).as_bytes())?,
        Format::Json => screen.raw(b"[")?,
        Format::Table | Format::Jsonl => {}
    }
    while written.letters < limit
        && let Some(line) = lines.next().await?
    {
        if line.is_empty() {
            continue;
        }
        let separator = if format == Format::Json && written.letters > 0 { ",\n" } else { "" };
        let end = if format == Format::Json { "" } else { "\n" };
        screen.raw(format!("{separator}{}{end}", one(format, &line)?).as_bytes())?;
        written.letters += 1;
        let content = content(&line);
        written.hidden += u64::from(content.payload_state == Some(PayloadState::Hidden));
        written.redacted += u64::from(!content.redacted.is_empty());
    }
    if format == Format::Json {
        screen.raw(b"]\n")?;
    }
    Ok(written)
}

/// Formats one letter. JSON is passed through, so that no field is lost.
fn one(format: Format, line: &Bytes) -> Result<String> {
    let unreadable = |why: String| Error::InvalidResponse { path: "/v1/letters".to_owned(), why };
    if format == Format::Csv {
        let value = serde_json::from_slice(line).map_err(|error| unreadable(error.to_string()))?;
        return Ok(csv_row(COLUMNS, &value));
    }
    let text = std::str::from_utf8(line).map_err(|error| unreadable(error.to_string()))?;
    serde_json::from_str::<serde::de::IgnoredAny>(text).map_err(|error| unreadable(error.to_string()))?;
    Ok(escape_json(text))
}

/// What a token may not see of a letter.
#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Content {
    payload_state: Option<PayloadState>,
    redacted: Vec<serde::de::IgnoredAny>,
}

fn content(line: &Bytes) -> Content {
    #[derive(Deserialize)]
    struct Whole {
        content: Content,
    }
    serde_json::from_slice::<Whole>(line).map(|letter| letter.content).unwrap_or_default()
}

/// Import exported letters.
#[derive(Debug, Args)]
pub struct Import {
    /// Read letters from this file, or - for standard input
    file: String,

    /// Import into this queue, as consumer/component; default: the queue of each letter
    #[arg(long, value_name = "QUEUE")]
    queue: Option<String>,

    /// State the reason for the audit log
    #[arg(long, short = 'r', value_name = "TEXT", default_value = "import")]
    reason: String,
}

impl Run for Import {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        let client = context.client()?;
        let mut bytes = Vec::new();
        let read = match self.file.as_str() {
            "-" => std::io::stdin().lock().read_to_end(&mut bytes),
            path => std::fs::File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)),
        };
        read.map_err(|error| Error::io(format!("cannot read {}", self.file), error))?;
        let answer = client.import(bytes.into(), self.queue.as_deref(), &self.reason).await?;
        let screen = &context.screen;
        print_value(screen, context.format(), &["taken", "known", "failures"], &answer, || {
            for failure in &answer.failed {
                let line = Line::new().add(format!("line {}", failure.line), Tone::Bad);
                screen.stderr_line(&line.plain(format!(": {}", failure.why)));
            }
            let failed = format!("{} failed", count(answer.failures));
            let (taken, known) = (plural(answer.taken, "letter"), count(answer.known));
            screen.line(&Line::of(format!("{taken} imported, {known} already known, {failed}")))?;
            screen.next_command("lazaret ls");
            Ok(())
        })?;
        Ok(if answer.failures > 0 { Exit::Partly } else { Exit::Ok })
    }
}
