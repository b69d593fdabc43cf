//! Runs a program once per attempt.

use std::io;

use bytes::Bytes;
use lazaret_core::HandlerError;
use lazaret_core::handler::Delivery;
use tokio::io::AsyncWriteExt;
use tokio::process::ChildStdin;
use tokio::time::timeout;

use super::group::Group;
use super::setup::{Setup, timed_out};
use super::stderr::{AbortOnDrop, Stderr};
use super::{environment, exit};
use crate::attempt_info::AttemptInfo;
use crate::report::Report;

/// Runs one attempt. When it returns, all processes of the program have ended (I2).
pub(super) async fn run(setup: &Setup, delivery: &Delivery) -> Result<(), HandlerError> {
    let info = AttemptInfo::of(setup.caller(), delivery);
    let mut command = setup.command();
    command.envs(environment::variables(setup.caller(), &info)?);
    let mut group = Group::start(&mut command).map_err(|error| setup.not_started(&error))?;
    let pipes = group.stdin().and_then(|stdin| Ok((stdin, Stderr::capture(group.stderr()?)?)));
    let (stdin, stderr) = pipes.map_err(|error| setup.not_started(&error))?;
    let payload = info.message.payload.clone().unwrap_or_default();
    let writing = AbortOnDrop::start(write_payload(stdin, payload));
    let waited = timeout(setup.timeout, group.exited()).await;
    let ended = match &waited {
        Ok(_) => group.kill().await,
        Err(_) => group.terminate(setup.grace).await,
    };
    drop(writing);
    let status = ended.map_err(|error| wait_failed(&error))?;
    match waited {
        Ok(Ok(())) if status.success() => Ok(()),
        // A program that was killed has not completed its report.
        Ok(Ok(())) if status.code().is_none() => exit::classify(status, stderr.text(), Report::default()),
        Ok(Ok(())) => {
            let (stderr, report) = stderr.text_and_report();
            let mut report = report.unwrap_or_default();
            report.keep_diagnostics(delivery);
            exit::classify(status, stderr, report)
        }
        Ok(Err(error)) => Err(wait_failed(&error)),
        Err(_) => Err(timed_out(setup.timeout, &stderr.text())),
    }
}

/// Writes the payload. A program may close its input early.
async fn write_payload(mut stdin: ChildStdin, payload: Bytes) {
    let _ = stdin.write_all(&payload).await;
}

/// Returns the failure of an attempt whose process could not be waited for.
fn wait_failed(error: &io::Error) -> HandlerError {
    HandlerError::foreign("command", format!("failed to wait for the program: {error}"))
}
