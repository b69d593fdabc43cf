//! `health`: whether the daemon lives, for containers and scripts that have no other client.

use clap::Args;

use super::Run;
use crate::context::Context;
use crate::error::Result;
use crate::exit::Exit;
use crate::output::{Format, Line};

/// Whether the daemon lives.
#[derive(Debug, Args)]
pub struct HealthCommand {
    /// Ask for more: whether the store answers and every consumer runs or is paused
    #[arg(long)]
    ready: bool,
}

impl Run for HealthCommand {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        let client = context.client()?;
        let screen = &context.screen;
        if !self.ready {
            let health = client.health().await?;
            match context.format() {
                Format::Json | Format::Jsonl => screen.json_line(&health)?,
                Format::Table | Format::Csv => {
                    screen.line(&Line::of(format!("alive, version {}", health.version)))?;
                }
            }
            return Ok(Exit::Ok);
        }
        let readiness = client.readiness().await?;
        match context.format() {
            Format::Json | Format::Jsonl => screen.json_line(&readiness)?,
            Format::Table | Format::Csv => {
                screen.line(&Line::of(if readiness.ready { "ready" } else { "not ready" }))?;
                readiness.reasons.iter().try_for_each(|why| screen.line(&Line::of(why)))?;
            }
        }
        Ok(if readiness.ready { Exit::Ok } else { Exit::Error })
    }
}
