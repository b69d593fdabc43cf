//! A program that runs in the background: found again by its number, stopped by it.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How often to look again.
const STEP: Duration = Duration::from_millis(100);
/// How long a program may take to end before it is killed.
const ENDING: Duration = Duration::from_secs(20);

/// Starts a program in the background, in a group of its own, so that it outlives this one. It writes to the log.
pub(super) fn spawn(command: &mut Command, log: &Path) -> Result<Child, String> {
    let file = |what: &str| format!("failed to {what} {}", log.display());
    let output = fs::File::create(log).map_err(|error| format!("{}: {error}", file("make")))?;
    let errors = output.try_clone().map_err(|error| format!("{}: {error}", file("share")))?;
    command
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .spawn()
        .map_err(|error| format!("failed to start {command:?}: {error}"))
}

/// Whether a program with this number runs, and has this text in its command line: numbers are used again.
pub(super) fn is_running(pid: u32, text: &str) -> bool {
    let Ok(command_line) = fs::read(format!("/proc/{pid}/cmdline")) else { return false };
    // One that has ended and was not waited for has an empty command line.
    String::from_utf8_lossy(&command_line).contains(text)
}

/// Ends a program and waits until it is gone.
pub(super) fn end(pid: u32, text: &str) -> Result<(), String> {
    for signal in ["TERM", "KILL"] {
        let started = Instant::now();
        if is_running(pid, text) {
            signal_to(pid, signal)?;
        }
        while is_running(pid, text) {
            if started.elapsed() > ENDING {
                break;
            }
            sleep(STEP);
        }
    }
    if is_running(pid, text) { Err(format!("process {pid} does not end")) } else { Ok(()) }
}

/// The shell has `kill` built in, so no package is needed for it.
fn signal_to(pid: u32, signal: &str) -> Result<(), String> {
    let status = Command::new("sh").args(["-c", &format!("kill -{signal} {pid}")]).status();
    status.map(|_| ()).map_err(|error| format!("failed to start sh: {error}"))
}

/// Asks again and again until the answer is yes. Gives up when `child` has ended, or after `limit`.
pub(super) fn wait_until(
    child: &mut Child,
    limit: Duration,
    mut is_up: impl FnMut() -> bool,
) -> Result<(), String> {
    let started = Instant::now();
    while !is_up() {
        if let Ok(Some(status)) = child.try_wait() {
            return Err(format!("it ended with {status}"));
        }
        if started.elapsed() > limit {
            return Err(format!("it gave no answer for {} s", limit.as_secs()));
        }
        sleep(STEP);
    }
    Ok(())
}

/// Ports that nobody listens on. They are held all at once while they are looked for, so no two are the same.
pub(super) fn free_ports<const N: usize>() -> Result<[u16; N], String> {
    let failed = |error: std::io::Error| format!("failed to find a free port: {error}");
    let mut listeners = Vec::new();
    let mut ports = [0; N];
    for port in &mut ports {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
        *port = listener.local_addr().map_err(failed)?.port();
        listeners.push(listener);
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_by_number_and_text_and_ends() {
        let _turn = crate::services::tests::turn();
        let log = std::env::temp_dir().join(format!("lazaret-daemon-{}", std::process::id()));
        let mut child = spawn(Command::new("sleep").arg("600"), &log).unwrap();
        let pid = child.id();
        // Between fork and exec it still has our own name.
        wait_until(&mut child, Duration::from_secs(10), || is_running(pid, "sleep")).unwrap();
        assert!(is_running(pid, "sleep") && !is_running(pid, "kafka"));
        end(pid, "sleep").unwrap();
        assert!(!is_running(pid, "sleep"));
        assert!(
            wait_until(&mut child, Duration::from_secs(10), || false).unwrap_err().contains("ended with")
        );
        fs::remove_file(log).unwrap();
    }

    #[test]
    fn free_ports_differ() {
        let ports: [u16; 3] = free_ports().unwrap();
        assert!(ports[0] != ports[1] && ports[1] != ports[2] && ports[0] != ports[2]);
    }
}
