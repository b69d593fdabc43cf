//! `pause` and `resume`: a consumer, or a part of it.

use std::collections::BTreeSet;

use clap::Args;
use lazaret_api::PauseRequest;

use super::Run;
use super::status::pause_line;
use crate::client::{Client, LetterQuery};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::hints::{query_value, quoted, resume_command};
use crate::output::{Format, Line, Tone, csv_header, csv_row};

/// What is meant, and why.
#[derive(Debug, Args)]
pub(super) struct What {
    /// The consumer
    consumer: String,

    /// One stream of it, or the stream of the partition
    #[arg(long, value_name = "STREAM")]
    stream: Option<String>,

    /// One partition: its number, with --stream, or STREAM/NUMBER
    #[arg(long, value_name = "PARTITION")]
    partition: Option<String>,

    /// One sequence: its messages go to the store and wait there
    #[arg(long, value_name = "SEQUENCE", conflicts_with_all = ["stream", "partition"])]
    sequence: Option<String>,

    /// Replays only
    #[arg(long, conflicts_with_all = ["stream", "partition", "sequence"])]
    replay: bool,

    /// Why; it stands in the audit
    #[arg(long, value_name = "TEXT")]
    reason: String,
}

/// How many letters are looked at for the streams of a consumer (I7).
const LOOKED_AT: usize = 100;

impl What {
    /// What to ask for. The API does not tell the streams of a consumer, so a partition without one is not guessed: a pause that
    /// holds nothing, or something else, would be noticed too late. Letters name streams that there are.
    async fn request(&self, client: &Client) -> Result<PauseRequest> {
        let request = self.parts()?;
        let Err(what) = request.scope().map_err(|error| error.to_string()) else { return Ok(request) };
        let bare = self.partition.as_deref().filter(|_| self.stream.is_none());
        let Some(number) = bare.and_then(|partition| partition.parse::<u32>().ok()) else {
            return Err(Error::usage(what));
        };
        let streams = self.streams_of_letters(client).await;
        let Some(first) = streams.first() else { return Err(Error::usage(what)) };
        let all: Vec<String> = streams.iter().map(|stream| quoted(stream)).collect();
        let say = format!("say --stream {} --partition {number}", quoted(first));
        Err(Error::usage_hint(what, format!("its letters come from {}: {say}", all.join(", "))))
    }

    async fn streams_of_letters(&self, client: &Client) -> BTreeSet<String> {
        let query = format!("consumer:{} state:open,closed", query_value(&self.consumer));
        // Without an answer there is no hint.
        let page = client.letters(&LetterQuery { query, after: None, limit: Some(LOOKED_AT) }).await;
        page.map(|page| page.letters.into_iter().map(|letter| letter.stream).collect()).unwrap_or_default()
    }

    fn parts(&self) -> Result<PauseRequest> {
        if self.reason.trim().is_empty() {
            return Err(Error::usage("the reason is empty"));
        }
        Ok(PauseRequest {
            stream: self.stream.clone(),
            partition: self.partition.clone(),
            sequence: self.sequence.clone(),
            replay: self.replay,
            reason: Some(self.reason.clone()),
        })
    }
}

/// Pause a consumer.
#[derive(Debug, Args)]
pub struct PauseCommand {
    #[command(flatten)]
    what: What,
}

impl Run for PauseCommand {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        let client = context.client()?;
        let request = self.what.request(&client).await?;
        let pause = client.pause(&self.what.consumer, &request).await?;
        let screen = &context.screen;
        match context.format() {
            Format::Table => {
                screen.line(&pause_line(&self.what.consumer, &pause, context.now()))?;
                screen.next(
                    &resume_command(&self.what.consumer, &pause).unwrap_or_else(|| "lazaret status".into()),
                );
            }
            Format::Json | Format::Jsonl => screen.json_line(&pause)?,
            Format::Csv => {
                const PATHS: [&str; 8] =
                    ["scope", "stream", "partition", "sequence", "who", "via", "why", "since"];
                let row = csv_row(&PATHS, &serde_json::to_value(&pause).unwrap_or_default());
                screen.raw(format!("{}\n{row}\n", csv_header(&PATHS)).as_bytes())?;
            }
        }
        Ok(Exit::Ok)
    }
}

/// End a pause.
#[derive(Debug, Args)]
pub struct ResumeCommand {
    #[command(flatten)]
    what: What,
}

impl Run for ResumeCommand {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        let client = context.client()?;
        let request = self.what.request(&client).await?;
        let answer = client.resume(&self.what.consumer, &request).await?;
        let screen = &context.screen;
        match context.format() {
            Format::Table => {
                let line = Line::new().add(&self.what.consumer, Tone::Strong);
                screen.line(&if answer.resumed {
                    line.add(" goes on", Tone::Good)
                } else {
                    line.plain(": that was not paused")
                })?;
                screen.next("lazaret status");
            }
            Format::Json | Format::Jsonl => screen.json_line(&answer)?,
            Format::Csv => screen.raw(format!("resumed\n{}\n", answer.resumed).as_bytes())?,
        }
        Ok(Exit::Ok)
    }
}
