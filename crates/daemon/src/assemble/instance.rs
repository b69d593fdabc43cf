//! The name of this process in a fleet.

/// Returns a name that people recognize, and no other process of a fleet has: the host and the process.
pub(crate) fn instance_name() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}-{}", std::process::id())
}
