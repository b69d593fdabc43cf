//! Describes errors of the driver concisely.

use std::collections::BTreeSet;

use mongodb::error::{Error as DriverError, ErrorKind};

/// Describes an error of the driver with the text of the server or the network, without the dump of the
/// topology.
///
/// ```
/// use lazaret_source_mongodb::{describe, driver::error::Error};
/// let error = Error::from(std::io::Error::from(std::io::ErrorKind::ConnectionRefused));
/// assert_eq!(describe(&error), "I/O error: connection refused");
/// ```
pub fn describe(error: &DriverError) -> String {
    match error.kind.as_ref() {
        ErrorKind::Command(command) => {
            format!("{} (code {} {})", command.message, command.code, command.code_name)
        }
        ErrorKind::InvalidArgument { message, .. } => message.clone(),
        ErrorKind::ServerSelection { message, .. } => selection(message),
        kind => kind.to_string(),
    }
}

/// Describes why no server was found, from the driver's text about the topology.
fn selection(message: &str) -> String {
    let causes: BTreeSet<&str> = message
        .split("Error: Kind: ")
        .skip(1)
        .map(|cause| cause.split_once(", labels:").map_or(cause, |(cause, _)| cause))
        .map(|cause| cause.trim_start_matches("An invalid argument was provided: "))
        .collect();
    if !causes.is_empty() {
        return format!("no server answered: {}", Vec::from_iter(causes).join("; "));
    }
    let set = message.split_once("Set Name: ").map(|(_, rest)| rest);
    let set = set.map(|rest| rest.split([',', ' ']).next().unwrap_or(rest));
    match set {
        // The driver drops servers of other sets.
        Some(set) if !message.contains("Servers: [") => {
            format!("no server is a member of the replica set `{set}`, which `replicaSet` names")
        }
        Some(set) => format!("the replica set `{set}` has no primary"),
        None => "no server answered in time".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_topology_is_told_in_few_words() {
        for (message, expected) in [
            (
                "Server selection timeout: No available servers. Topology: { Type: Unknown, Servers: [ { Address: 127.0.0.1:1, Type: \
                 Unknown, Error: Kind: I/O error: Connection refused (os error 111), labels: {\"SystemOverloadedError\"} }, { Address: \
                 127.0.0.1:2, Type: Unknown, Error: Kind: I/O error: Connection refused (os error 111), labels: {} } ] }",
                "no server answered: I/O error: Connection refused (os error 111)",
            ),
            (
                "Server selection timeout: No available servers. Topology: { Type: Single, Set Name: rs1, Servers: [ { Address: h:1, \
                 Type: Unknown, Error: Kind: An invalid argument was provided: Connection string replicaSet name \"rs1\" does not match \
                 actual name \"rs0\", labels: {} } ] }",
                "no server answered: Connection string replicaSet name \"rs1\" does not match actual name \"rs0\"",
            ),
            (
                "Server selection timeout: No available servers. Topology: { Type: ReplicaSetNoPrimary, Set Name: rs1 }",
                "no server is a member of the replica set `rs1`, which `replicaSet` names",
            ),
            (
                "Server selection timeout: None of the available servers suitable for criteria. Topology: { Type: ReplicaSetNoPrimary, \
                 Set Name: rs0, Servers: [ { Address: h:1, Type: RsSecondary, Replica Set Name: rs0 } ] }",
                "the replica set `rs0` has no primary",
            ),
        ] {
            assert_eq!(selection(message), expected);
        }
    }
}
