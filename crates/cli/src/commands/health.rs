//! `health`: checks liveness and readiness, for containers and scripts without another HTTP client.

use clap::Args;
use serde::Serialize;

use super::Run;
use crate::context::Context;
use crate::error::Result;
use crate::exit::Exit;
use crate::output::{Line, print_value};

/// Check liveness or readiness of the daemon.
#[derive(Debug, Args)]
pub struct HealthCommand {
    /// Check readiness: the store responds and every consumer is running or paused
    #[arg(long)]
    ready: bool,
}

impl Run for HealthCommand {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        let client = context.client()?;
        if !self.ready {
            let health = client.health().await?;
            print(context, &health, &["status", "version"], &[format!("alive, version {}", health.version)])?;
            return Ok(Exit::Ok);
        }
        let readiness = client.readiness().await?;
        let mut lines = vec![if readiness.ready { "ready" } else { "not ready" }.to_owned()];
        lines.extend(readiness.reasons.iter().cloned());
        print(context, &readiness, &["ready", "reasons"], &lines)?;
        Ok(if readiness.ready { Exit::Ok } else { Exit::Error })
    }
}

fn print(context: &Context, answer: &impl Serialize, columns: &[&str], lines: &[String]) -> Result<()> {
    let screen = &context.screen;
    print_value(screen, context.format(), columns, answer, || {
        lines.iter().try_for_each(|line| screen.line(&Line::of(line)))?;
        screen.next_command("lazaret status");
        Ok(())
    })
}
