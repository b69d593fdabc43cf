//! Runs a program once per attempt.

use std::io;

use bytes::Bytes;
use lazaret_core::HandlerError;
use lazaret_core::handler::Delivery;
use tokio::io::AsyncWriteExt;
use tokio::process::ChildStdin;
use tokio::time::timeout;

use super::group::Group;
use super::setup::{Setup, late};
use super::stderr::{Beside, Stderr};
use super::{environment, exit};
use crate::facts::Facts;

/// One attempt. When it is over, so is everything that the program started (I2): nothing goes on with a message that the
/// consumer has done with.
pub(super) async fn run(setup: &Setup, delivery: &Delivery) -> Result<(), HandlerError> {
    let facts = Facts::of(setup.caller(), delivery);
    let mut command = setup.command();
    command.envs(environment::variables(setup.caller(), &facts)?);
    let mut group = Group::start(&mut command).map_err(|error| setup.not_started(&error))?;
    let pipes = group.stdin().and_then(|stdin| Ok((stdin, Stderr::listen(group.stderr()?)?)));
    let (stdin, stderr) = pipes.map_err(|error| setup.not_started(&error))?;
    let payload = facts.message.payload.clone().unwrap_or_default();
    let feeding = Beside::start(feed(stdin, payload));
    let waited = timeout(setup.timeout, group.exited()).await;
    let ended = match &waited {
        Ok(_) => group.end().await,
        Err(_) => group.stop(setup.grace).await,
    };
    drop(feeding);
    let said = stderr.words();
    let status = ended.map_err(|error| lost(&error))?;
    match waited {
        Ok(Ok(())) => exit::judge(status, said),
        Ok(Err(error)) => Err(lost(&error)),
        Err(_) => Err(late(setup.timeout, &said)),
    }
}

/// Writes the payload. A program that does not want it all may close its end.
async fn feed(mut stdin: ChildStdin, payload: Bytes) {
    let _ = stdin.write_all(&payload).await;
}

/// The failure of a message whose process cannot be waited for.
fn lost(error: &io::Error) -> HandlerError {
    HandlerError::foreign("command", format!("failed to wait for the program: {error}"))
}
