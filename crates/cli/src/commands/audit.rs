//! `audit`: prints and verifies the audit log.

use std::collections::VecDeque;

use clap::{Args, Subcommand};
use jiff::Timestamp;
use lazaret_api::{AuditEntry, AuditPage};

use super::Run;
use crate::client::Client;
use crate::context::Context;
use crate::error::Result;
use crate::exit::Exit;
use crate::output::{Cell, Column, Fields, Format, Record, Tone, count, print_page, print_value};
use crate::paging::{Paging, print_list};

/// The page size for `--last`, which reads the whole log (I7).
const PAGE_SIZE: usize = 1000;

/// Show the audit log.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Audit {
    #[command(subcommand)]
    verb: Option<Verb>,

    #[command(flatten)]
    paging: Paging,

    /// Print the last N entries; reads the whole log
    #[arg(long, value_name = "N", conflicts_with_all = ["limit", "after"], value_parser = clap::value_parser!(u32).range(1..=100_000))]
    last: Option<u32>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Verify that no entry was changed or removed
    Verify,
}

impl Run for Audit {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        let client = context.client()?;
        if matches!(self.verb, Some(Verb::Verify)) {
            return verify(context, &client).await;
        }
        if let Some(last) = self.last {
            let entries = last_entries(&client, last as usize).await?;
            let page = AuditPage { entries, next: None };
            if context.format() != Format::Table || !page.entries.is_empty() {
                print_page(&context.screen, context.format(), &page, &page.entries, context.now())?;
            }
            if context.format() == Format::Table {
                conclude(context, page.entries.is_empty(), None);
            }
            return Ok(Exit::Ok);
        }
        let fetch = async |after: Option<String>, limit| client.audit(after.as_deref(), Some(limit)).await;
        let listed = print_list(context, &self.paging, fetch, |_| true).await?;
        if context.format() == Format::Table {
            conclude(context, listed.records.is_empty(), listed.next);
        }
        Ok(Exit::Ok)
    }
}

fn conclude(context: &Context, is_empty: bool, next: Option<String>) {
    let screen = &context.screen;
    match (is_empty, next) {
        (true, _) => {
            screen.info("no audit entries");
            screen.next_command("lazaret status");
        }
        (false, Some(next)) => {
            screen.next_commands(&[
                format!("lazaret audit --after {next}"),
                "lazaret audit --last 50".to_owned(),
            ]);
        }
        (false, None) => screen.next_command("lazaret audit verify"),
    }
}

async fn last_entries(client: &Client, wanted: usize) -> Result<Vec<AuditEntry>> {
    let mut entries = VecDeque::new();
    let mut after = None;
    loop {
        let page = client.audit(after.as_deref(), Some(PAGE_SIZE)).await?;
        entries.extend(page.entries);
        entries.drain(..entries.len().saturating_sub(wanted));
        after = page.next;
        if after.is_none() {
            return Ok(entries.into());
        }
    }
}

async fn verify(context: &Context, client: &Client) -> Result<Exit> {
    let check = client.verify_audit().await?;
    let screen = &context.screen;
    print_value(screen, context.format(), &["ok", "intact", "broken", "hash"], &check, || {
        let mut fields = Fields::new();
        match check.broken {
            None => fields.toned("audit", format!("intact, {} entries", count(check.intact)), Tone::Good),
            Some(number) => fields.toned("audit", format!("broken at entry {number}"), Tone::Bad),
        }
        fields.add("hash", &check.hash);
        for line in fields.lines() {
            screen.line(&line)?;
        }
        if check.ok {
            screen.info("store the hash elsewhere to detect a truncated log");
        } else {
            screen.info(&format!("the {} entries before it are intact", count(check.intact)));
        }
        screen.next_command("lazaret audit --last 50");
        Ok(())
    })?;
    Ok(if check.ok { Exit::Ok } else { Exit::Error })
}

impl Record for AuditEntry {
    const COLUMNS: &'static [Column] = &[
        Column::new("NUMBER").right(),
        Column::new("AT").drop_priority(3),
        Column::new("WHO").min_width(6),
        Column::new("VIA").drop_priority(4),
        Column::new("ACTION").min_width(8),
        Column::new("SUBJECT").min_width(12),
        Column::new("BEFORE").min_width(6).drop_priority(6),
        Column::new("AFTER").min_width(6).drop_priority(5),
        Column::new("WHY").min_width(8).drop_priority(1),
    ];
    const CSV: &'static [&'static str] =
        &["number", "at", "who", "via", "why", "action", "subject", "before", "after"];

    fn cells(&self, _now: Timestamp) -> Vec<Cell> {
        let at = Timestamp::from_second(self.at.as_second()).unwrap_or(self.at);
        vec![
            Cell::new(self.number.to_string()),
            Cell::new(at.to_string()),
            Cell::new(&self.who).tone(Tone::Strong),
            Cell::new(&self.via),
            Cell::new(&self.action),
            Cell::new(&self.subject),
            Cell::or_dash(self.before.as_ref()),
            Cell::or_dash(self.after.as_ref()),
            Cell::new(&self.why),
        ]
    }
}
