//! Free ports for tests that start a server as another program, and have to know its port before it listens.
//!
//! A port that the system has given to a listener, which is closed again, may be given to a connection of another test before the server
//! takes it. So these are ports that the system gives to nobody: those below the range of such ports.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

const FIRST: u32 = 15_000;
/// Up to the ports that Linux gives to connections, from 32,768 on.
const PORTS: u32 = 17_000;
/// Processes whose ids follow each other begin this far from each other.
const STEP: u32 = 61;

/// A port of the loopback interface that nobody uses, another one for each call.
///
/// ```
/// let port = lazaret_port_testkit::free_port();
/// assert_ne!(port, lazaret_port_testkit::free_port());
/// ```
///
/// # Panics
/// If all ports are in use.
pub fn free_port() -> u16 {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let start = std::process::id().wrapping_mul(STEP) % PORTS;
    for _ in 0..PORTS {
        let call = CALLS.fetch_add(1, Ordering::Relaxed) % PORTS;
        let port = u16::try_from(FIRST + (start + call) % PORTS).unwrap_or(u16::MAX);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("all ports from {FIRST} to {} are in use", FIRST + PORTS - 1)
}
