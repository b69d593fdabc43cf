//! `pause` and `resume`: pause or resume a consumer or a part of it.

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
use crate::output::{Format, Line, Tone, print_value};

/// The part of a consumer, and the reason.
#[derive(Debug, Args)]
pub(super) struct Target {
    /// Select the consumer by name
    consumer: String,

    /// Select one stream, or the stream of --partition
    #[arg(long, value_name = "STREAM")]
    stream: Option<String>,

    /// Select one partition: a number with --stream, or STREAM/NUMBER
    #[arg(long, value_name = "PARTITION")]
    partition: Option<String>,

    /// Select one sequence; its messages wait in the store while it is paused
    #[arg(long, value_name = "SEQUENCE", conflicts_with_all = ["stream", "partition"])]
    sequence: Option<String>,

    /// Select replays only
    #[arg(long, conflicts_with_all = ["stream", "partition", "sequence"])]
    replay: bool,

    /// State the reason for the audit log
    #[arg(long, short = 'r', value_name = "TEXT")]
    reason: String,
}

/// The most letters that are inspected to find the streams of a consumer (I7).
const MAX_INSPECTED: usize = 100;

impl Target {
    /// Builds the request. The API does not list the streams of a consumer, and a guessed stream could pause nothing or the wrong
    /// partition unnoticed. For a partition without a stream, the hint names the streams of stored letters.
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
        let flags = format!("--stream {} --partition {number}", quoted(first));
        Err(Error::usage_hint(what, format!("its letters come from {}: pass {flags}", all.join(", "))))
    }

    async fn streams_of_letters(&self, client: &Client) -> BTreeSet<String> {
        let query = format!("consumer:{} state:open,closed", query_value(&self.consumer));
        // Without a response there is no hint.
        let page = client.letters(&LetterQuery { query, after: None, limit: Some(MAX_INSPECTED) }).await;
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

/// Pause a consumer or a part of it.
#[derive(Debug, Args)]
pub struct PauseCommand {
    #[command(flatten)]
    target: Target,
}

impl Run for PauseCommand {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        let client = context.client()?;
        let request = self.target.request(&client).await?;
        let pause = client.pause(&self.target.consumer, &request).await?;
        let screen = &context.screen;
        let columns = ["scope", "stream", "partition", "sequence", "who", "via", "why", "since"];
        print_value(screen, context.format(), &columns, &pause, || {
            screen.line(&pause_line(&self.target.consumer, &pause, context.now()))?;
            let resume = resume_command(&self.target.consumer, &pause);
            screen.next_command(&resume.unwrap_or_else(|| "lazaret status".into()));
            Ok(())
        })?;
        Ok(Exit::Ok)
    }
}

/// Resume a paused consumer or a part of it.
#[derive(Debug, Args)]
pub struct ResumeCommand {
    #[command(flatten)]
    target: Target,
}

impl Run for ResumeCommand {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        let client = context.client()?;
        let request = self.target.request(&client).await?;
        let answer = client.resume(&self.target.consumer, &request).await?;
        let screen = &context.screen;
        match context.format() {
            Format::Table => {
                let line = Line::new().add(&self.target.consumer, Tone::Strong);
                screen.line(&if answer.resumed {
                    line.add(" resumed", Tone::Good)
                } else {
                    line.plain(" was not paused")
                })?;
                screen.next_command("lazaret status");
            }
            Format::Json | Format::Jsonl => screen.json_line(&answer)?,
            Format::Csv => screen.raw(format!("resumed\n{}\n", answer.resumed).as_bytes())?,
        }
        Ok(Exit::Ok)
    }
}
