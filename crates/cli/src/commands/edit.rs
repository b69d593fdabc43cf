//! `edit`: replaces the payload of a letter, from a file or from an editor, and reverts that.

use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use clap::Args;
use lazaret_api::{EditRequest, LetterDetail, PayloadState};

use super::Run;
use crate::client::Client;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::hints::short_id;
use crate::output::{Format, Line, Tone, count, plural, print_page};
use crate::prompt;
use crate::selection::resolve_one;

/// Replace the payload of a letter.
#[derive(Debug, Args)]
pub struct Edit {
    /// Select the letter by id, id prefix, or a query that matches one letter, such as message:e-2
    id: String,

    /// State the reason for the audit log
    #[arg(long, short = 'r', value_name = "TEXT")]
    reason: String,

    /// Read the payload from a file, or - for standard input; default: open $VISUAL or $EDITOR
    #[arg(long, value_name = "FILE", conflicts_with_all = ["tombstone", "revert"])]
    payload: Option<String>,

    /// Remove the payload, leaving a tombstone
    #[arg(long, conflicts_with = "revert")]
    tombstone: bool,

    /// Restore the payload as it arrived, before all edits
    #[arg(long)]
    revert: bool,

    /// Accept a payload that is not JSON for a letter whose payload is JSON
    #[arg(long, conflicts_with_all = ["tombstone", "revert"])]
    force: bool,

    /// Skip the confirmation
    #[arg(long, short = 'y')]
    yes: bool,
}

impl Run for Edit {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        if self.reason.trim().is_empty() {
            return Err(Error::usage("the reason is empty"));
        }
        if self.payload.is_none() && !self.tombstone && !self.revert && !prompt::can_ask() {
            return Err(Error::usage_hint(
                "cannot open an editor: standard input is not a terminal",
                "pass the payload with --payload FILE",
            ));
        }
        prompt::needs_yes(self.yes)?;
        let client = context.client()?;
        let id = resolve_one(&client, &self.id).await?;
        let Some(request) = self.request(context, &client, &id).await? else {
            context.screen.info("payload unchanged");
            context.screen.next_command(&show_command(&id));
            return Ok(Exit::Ok);
        };
        let letter = client.edit(&id, &request).await.map_err(with_force_hint)?;
        if context.format() != Format::Table {
            print_page(
                &context.screen,
                context.format(),
                &letter,
                std::slice::from_ref(&letter),
                context.now(),
            )?;
            return Ok(Exit::Ok);
        }
        context.screen.line(&Line::new().add(&letter.id, Tone::Strong).plain(if self.revert {
            " edited: payload as it arrived"
        } else {
            " edited: payload replaced, the original is kept"
        }))?;
        context.screen.next_command(&format!("lazaret retry --ids {} --reason TEXT", short_id(&letter.id)));
        Ok(Exit::Ok)
    }
}

impl Edit {
    /// Builds the request; `None` when the payload is unchanged.
    async fn request(&self, context: &Context, client: &Client, id: &str) -> Result<Option<EditRequest>> {
        let reason = Some(self.reason.clone());
        if self.tombstone {
            self.ask(id, &format!("Remove the payload of {}?", short_id(id)))?;
            return Ok(Some(EditRequest { tombstone: true, reason, ..EditRequest::default() }));
        }
        if self.revert {
            self.ask(id, &format!("Restore the payload of {} as it arrived?", short_id(id)))?;
            return Ok(Some(EditRequest { revert: true, reason, ..EditRequest::default() }));
        }
        let force = self.force;
        let payload = match &self.payload {
            Some(file) => {
                let payload = read(file)?;
                let size = plural(payload.len() as u64, "byte");
                self.ask(id, &format!("Replace the payload of {} ({size})?", short_id(id)))?;
                Some(payload)
            }
            None => self.edited(context, client, id).await?,
        };
        Ok(payload.map(|payload| match String::from_utf8(payload) {
            Ok(text) => EditRequest { payload: Some(text), force, reason, ..EditRequest::default() },
            Err(bytes) => EditRequest {
                payload_base64: Some(STANDARD.encode(bytes.as_bytes())),
                force,
                reason,
                ..EditRequest::default()
            },
        }))
    }

    /// Opens the payload in an editor. Returns `None` when it is unchanged.
    async fn edited(&self, context: &Context, client: &Client, id: &str) -> Result<Option<Vec<u8>>> {
        let letter = client.letter(id).await?;
        let before = match letter.content.payload_state {
            PayloadState::None => Bytes::new(),
            PayloadState::LeftOut => return Err(Error::Other(format!("the payload of {id} is not there"))),
            // For a hidden payload, this route reports the missing scope.
            PayloadState::Hidden | PayloadState::Shown => client.payload(id).await?,
        };
        let after = in_editor(&before, suffix(&letter))?;
        let after = without_added_newline(&before, after);
        if after == before {
            return Ok(None);
        }
        let was_json = serde_json::from_slice::<serde::de::IgnoredAny>(&before).is_ok();
        if was_json && let Err(error) = serde_json::from_slice::<serde::de::IgnoredAny>(&after) {
            let what = format!("the payload is no longer valid JSON: {error}");
            if !self.force {
                let kept = keep(&after, suffix(&letter))?;
                let hint =
                    format!("your text is in {kept}: correct it and pass --payload {kept}, or add --force");
                return Err(Error::usage_hint(what, hint));
            }
            context.screen.warn(&what);
        }
        let sizes = format!("{} bytes, {} before", count(after.len() as u64), count(before.len() as u64));
        self.ask(id, &format!("Save this payload ({sizes})?"))?;
        Ok(Some(after))
    }

    /// Asks for confirmation, unless `--yes` was passed.
    fn ask(&self, id: &str, question: &str) -> Result<()> {
        if self.yes || prompt::confirm(question)? {
            Ok(())
        } else {
            Err(Error::Declined { next: show_command(id) })
        }
    }
}

fn show_command(id: &str) -> String {
    format!("lazaret show {}", short_id(id))
}

fn read(file: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let result = match file {
        "-" => std::io::stdin().lock().read_to_end(&mut bytes),
        path => std::fs::File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)),
    };
    result.map_err(|error| Error::io(format!("cannot read the payload from {file}"), error))?;
    Ok(bytes)
}

/// Returns a file extension, by which editors choose the syntax.
fn suffix(letter: &LetterDetail) -> &'static str {
    let is_json = |text: &str| serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
    match letter.content.payload.as_deref() {
        Some(text) if is_json(text) => ".json",
        Some(_) => ".txt",
        None => ".bin",
    }
}

/// Opens an editor on a file that only this user can read, and waits until it exits.
fn in_editor(payload: &[u8], suffix: &str) -> Result<Vec<u8>> {
    let wrong = |error| Error::io("cannot create a temporary file", error);
    let mut file = tempfile::Builder::new().prefix("lazaret-").suffix(suffix).tempfile().map_err(wrong)?;
    file.write_all(payload).and_then(|()| file.flush()).map_err(wrong)?;
    let editor = editor();
    let status = open(&editor, file.path())
        .map_err(|error| Error::io(format!("cannot start the editor {editor}"), error))?;
    if !status.success() {
        return Err(Error::Other(format!("{editor} failed with {status}; nothing was changed")));
    }
    // Read by path: many editors replace the file.
    std::fs::read(file.path()).map_err(|error| Error::io("cannot read the edited file", error))
}

/// Writes a text that was not stored to a file that only this user can read, so that the work is not lost.
fn keep(payload: &[u8], suffix: &str) -> Result<String> {
    let wrong = |error| Error::io("cannot keep the edited payload", error);
    let mut file =
        tempfile::Builder::new().prefix("lazaret-edit-").suffix(suffix).tempfile().map_err(wrong)?;
    file.write_all(payload).and_then(|()| file.flush()).map_err(wrong)?;
    let (_, path) = file.keep().map_err(|error| wrong(error.error))?;
    Ok(path.display().to_string())
}

/// Replaces the hint of the API by the option of this command.
fn with_force_hint(error: Error) -> Error {
    match error {
        Error::Refused { mut problem, query }
            if problem.hint.as_deref().is_some_and(|hint| hint.contains("force")) =>
        {
            problem.hint = Some("pass --force to store it as it is".to_owned());
            Error::Refused { problem, query }
        }
        other => other,
    }
}

fn editor() -> String {
    let named = |name: &str| std::env::var(name).ok().filter(|editor| !editor.trim().is_empty());
    named("VISUAL").or_else(|| named("EDITOR")).unwrap_or_else(|| "vi".to_owned())
}

/// Starts the editor through a shell, because the variable may contain options.
fn open(editor: &str, path: &Path) -> std::io::Result<std::process::ExitStatus> {
    if cfg!(windows) {
        return Command::new(editor).arg(path).status();
    }
    Command::new("sh").arg("-c").arg(format!("{editor} \"$1\"")).arg("sh").arg(path).status()
}

/// Removes the line break that editors append, when the payload had none (I5).
fn without_added_newline(before: &[u8], mut after: Vec<u8>) -> Vec<u8> {
    if !before.ends_with(b"\n") && after.ends_with(b"\n") {
        after.pop();
    }
    after
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_break_that_the_editor_added_is_not_part_of_the_payload() {
        // I5
        assert_eq!(without_added_newline(b"{}", b"{}\n".to_vec()), b"{}");
        assert_eq!(without_added_newline(b"{}\n", b"{1}\n".to_vec()), b"{1}\n");
        assert_eq!(without_added_newline(b"", b"".to_vec()), b"");
    }
}
