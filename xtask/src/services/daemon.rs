//! Background processes, identified by process id and command line.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::maven::last_lines;

/// The poll interval.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The time for a process to exit before it is killed.
const EXIT_TIMEOUT: Duration = Duration::from_secs(20);

/// Starts a process in its own process group, so that it outlives this one. Its output goes to the log.
pub(super) fn spawn(command: &mut Command, log: &Path) -> Result<Child, String> {
    let file = |what: &str| format!("failed to {what} {}", log.display());
    let output = fs::File::create(log).map_err(|error| format!("{}: {error}", file("create")))?;
    let errors = output.try_clone().map_err(|error| format!("{}: {error}", file("duplicate")))?;
    command
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .spawn()
        .map_err(|error| format!("failed to start {command:?}: {error}"))
}

/// Returns whether a process with this id runs and has this text in its command line: ids are reused.
pub(super) fn is_running(pid: u32, text: &str) -> bool {
    let Ok(command_line) = fs::read(format!("/proc/{pid}/cmdline")) else { return false };
    // A zombie has an empty command line.
    String::from_utf8_lossy(&command_line).contains(text)
}

/// Stops a process and waits until it has exited.
pub(super) fn terminate(pid: u32, text: &str) -> Result<(), String> {
    for signal in ["TERM", "KILL"] {
        let started = Instant::now();
        if is_running(pid, text) {
            signal_to(pid, signal)?;
        }
        while is_running(pid, text) {
            if started.elapsed() > EXIT_TIMEOUT {
                break;
            }
            sleep(POLL_INTERVAL);
        }
    }
    if is_running(pid, text) { Err(format!("process {pid} did not exit")) } else { Ok(()) }
}

/// Sends a signal with the shell's built-in `kill`, which needs no package.
fn signal_to(pid: u32, signal: &str) -> Result<(), String> {
    let status = Command::new("sh").args(["-c", &format!("kill -{signal} {pid}")]).status();
    status.map(|_| ()).map_err(|error| format!("failed to start sh: {error}"))
}

/// Polls until `is_up` returns true. Fails when `child` has exited, or after `limit`.
pub(super) fn wait_until(
    child: &mut Child,
    limit: Duration,
    mut is_up: impl FnMut() -> bool,
) -> Result<(), String> {
    let started = Instant::now();
    while !is_up() {
        if let Ok(Some(status)) = child.try_wait() {
            return Err(format!("it exited with {status}"));
        }
        if started.elapsed() > limit {
            return Err(format!("it did not respond within {} s", limit.as_secs()));
        }
        sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// Formats the error of a process that failed to start: the reason, whether it could be stopped, and the end of its log.
pub(super) fn failed_start(why: &str, stopped: Result<(), String>, log: &Path) -> String {
    let stopped = stopped.err().map_or_else(String::new, |also| format!("; {also}"));
    let end = fs::read(log).map(|text| last_lines(&text)).unwrap_or_default();
    format!("{why}{stopped}; its log is {} and ends with:\n{end}", log.display())
}

/// Returns distinct free ports. All are held while they are allocated, so no two are the same.
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
    fn a_process_is_found_by_id_and_command_line_and_terminated() {
        let _exclusive = crate::services::tests::exclusive();
        let log = std::env::temp_dir().join(format!("lazaret-daemon-{}", std::process::id()));
        let mut child = spawn(Command::new("sleep").arg("600"), &log).unwrap();
        let pid = child.id();
        // Between fork and exec it still has this program's command line.
        wait_until(&mut child, Duration::from_secs(10), || is_running(pid, "sleep")).unwrap();
        assert!(is_running(pid, "sleep") && !is_running(pid, "kafka"));
        terminate(pid, "sleep").unwrap();
        assert!(!is_running(pid, "sleep"));
        assert!(
            wait_until(&mut child, Duration::from_secs(10), || false).unwrap_err().contains("exited with")
        );
        fs::remove_file(log).unwrap();
    }

    #[test]
    fn a_failed_start_shows_the_end_of_the_log() {
        let log = std::env::temp_dir().join(format!("lazaret-failed-start-{}", std::process::id()));
        fs::write(&log, "starting\nthe port is in use\n").unwrap();
        let text = failed_start("it exited", Err("it did not stop".to_owned()), &log);
        assert!(text.starts_with("it exited; it did not stop; its log is "), "{text}");
        assert!(text.ends_with("ends with:\nstarting\nthe port is in use"), "{text}");
        fs::remove_file(log).unwrap();
    }

    #[test]
    fn free_ports_differ() {
        let ports: [u16; 3] = free_ports().unwrap();
        assert!(ports[0] != ports[1] && ports[1] != ports[2] && ports[0] != ports[2]);
    }
}
