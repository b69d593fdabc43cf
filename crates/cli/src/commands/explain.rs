//! `explain`: prints the page of an error code.

use clap::Args;

use super::Run;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::error_codes::{Origin, find, sentence};
use crate::exit::Exit;
use crate::output::{Format, Line, Tone, csv_header, csv_row};

/// The CSV columns.
const COLUMNS: [&str; 5] = ["code", "title", "kind", "status", "page"];

/// Explain an error code.
#[derive(Debug, Args)]
pub struct Explain {
    /// Explain this code, such as LZ0120
    code: String,
}

impl Run for Explain {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        let found = find(&self.code);
        let code = found.ok_or_else(|| Error::not_found(format!("error code {:?} not found", self.code)))?;
        let screen = &context.screen;
        match context.format() {
            Format::Json => screen.json(&code)?,
            Format::Jsonl => screen.json_line(&code)?,
            Format::Csv => {
                let row = csv_row(&COLUMNS, &serde_json::to_value(code).unwrap_or_default());
                screen.raw(format!("{}\n{row}\n", csv_header(&COLUMNS)).as_bytes())?;
            }
            Format::Table => {
                let title = Line::new().add(code.code, Tone::Strong);
                screen.line(&title.plain(format!(": {}", sentence(code.title))))?;
                screen.line(&Line::of(code.page))?;
                screen.next_command(match code.origin {
                    Origin::Configuration => "lazaret check -c lazaret.yaml",
                    Origin::Api => "lazaret status",
                });
            }
        }
        Ok(Exit::Ok)
    }
}
