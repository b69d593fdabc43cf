//! `pause` and `resume`: a consumer, or a part of it.

use clap::Args;
use lazaret_api::PauseRequest;

use super::Run;
use super::status::pause_line;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::hints::resume_command;
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

impl What {
    fn request(&self) -> Result<PauseRequest> {
        if self.reason.trim().is_empty() {
            return Err(Error::usage("the reason is empty"));
        }
        let request = PauseRequest {
            stream: self.stream.clone(),
            partition: self.partition.clone(),
            sequence: self.sequence.clone(),
            replay: self.replay,
            reason: Some(self.reason.clone()),
        };
        request.scope().map_err(Error::usage)?;
        Ok(request)
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
        let request = self.what.request()?;
        let pause = context.client()?.pause(&self.what.consumer, &request).await?;
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
        let request = self.what.request()?;
        let answer = context.client()?.resume(&self.what.consumer, &request).await?;
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
