//! `comment` and `assign`: notes on one letter, which change nothing about how it is handled.

use clap::Args;
use lazaret_api::{AssignRequest, CommentRequest, Letter};

use super::Run;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::hints::short_id;
use crate::output::{Format, Line, Tone, print_page};
use crate::selection::resolve_one;

/// Comment on a letter. The comment is shown with the letter; the audit log has who commented and when.
#[derive(Debug, Args)]
pub struct Comment {
    /// Select the letter by id, id prefix, or a query that matches one letter, such as message:e-2
    id: String,

    /// Write this text
    text: String,
}

impl Run for Comment {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        if self.text.trim().is_empty() {
            return Err(Error::usage("the comment is empty"));
        }
        let client = context.client()?;
        let id = resolve_one(&client, &self.id).await?;
        let letter = client.comment(&id, &CommentRequest { text: self.text, reason: None }).await?;
        print(context, &letter, " commented")
    }
}

/// Assign a letter to a person, or set the team that owns it.
#[derive(Debug, Args)]
pub struct Assign {
    /// Select the letter by id, id prefix, or a query that matches one letter, such as message:e-2
    id: String,

    /// Assign it to this person, or with --team to this team
    #[arg(required_unless_present = "none")]
    name: Option<String>,

    /// Assign it to no one
    #[arg(long, conflicts_with = "name")]
    none: bool,

    /// Set the team that owns the letter instead of the person
    #[arg(long)]
    team: bool,

    /// State the reason for the audit log; default: `assignment` or `ownership`
    #[arg(long, short = 'r', value_name = "TEXT")]
    reason: Option<String>,
}

impl Run for Assign {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        let client = context.client()?;
        let id = resolve_one(&client, &self.id).await?;
        let done = match (&self.name, self.team) {
            (Some(name), false) => format!(" assigned to {name}"),
            (None, false) => " assigned to no one".to_owned(),
            (Some(name), true) => format!(" owned by {name}"),
            (None, true) => " owned by no team".to_owned(),
        };
        let request = AssignRequest { name: self.name, reason: self.reason };
        let letter =
            if self.team { client.own(&id, &request).await? } else { client.assign(&id, &request).await? };
        print(context, &letter, &done)
    }
}

fn print(context: &Context, letter: &Letter, done: &str) -> Result<Exit> {
    let screen = &context.screen;
    if context.format() != Format::Table {
        print_page(screen, context.format(), letter, std::slice::from_ref(letter), context.now())?;
        return Ok(Exit::Ok);
    }
    screen.line(&Line::new().add(&letter.id, Tone::Strong).plain(done))?;
    screen.next_command(&format!("lazaret show {}", short_id(&letter.id)));
    Ok(Exit::Ok)
}
