//! Pauses.

use lazaret_core::store;
use lazaret_core::{Partition, SequenceId, StreamName};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The scope of a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PauseScope {
    /// The whole consumer.
    Consumer,
    /// One stream.
    Stream,
    /// One partition.
    Partition,
    /// One sequence: its messages wait in the store.
    Sequence,
    /// Replays only.
    Replay,
}

/// An active pause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Pause {
    /// The scope.
    pub scope: PauseScope,
    /// The stream, for the scopes `stream` and `partition`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<String>,
    /// The partition number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<u32>,
    /// The sequence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence: Option<String>,
    /// Who paused it.
    pub who: String,
    /// The client.
    pub via: String,
    /// The reason.
    pub why: String,
    /// When the pause began.
    pub since: jiff::Timestamp,
}

impl From<&store::Pause> for Pause {
    fn from(pause: &store::Pause) -> Self {
        let mut wire = Self {
            scope: PauseScope::Consumer,
            stream: None,
            partition: None,
            sequence: None,
            who: pause.by.who.clone(),
            via: pause.by.via.clone(),
            why: pause.by.why.clone(),
            since: pause.since,
        };
        match &pause.scope {
            store::PauseScope::Consumer => {}
            store::PauseScope::Stream(stream) => {
                (wire.scope, wire.stream) = (PauseScope::Stream, Some(stream.to_string()));
            }
            store::PauseScope::Partition(partition) => {
                wire.scope = PauseScope::Partition;
                wire.stream = Some(partition.stream.to_string());
                wire.partition = Some(partition.index);
            }
            store::PauseScope::Sequence(sequence) => {
                (wire.scope, wire.sequence) = (PauseScope::Sequence, Some(sequence.to_string()));
            }
            store::PauseScope::Replay => wire.scope = PauseScope::Replay,
        }
        wire
    }
}

/// The scope to pause or resume: the whole consumer by default, or one part of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PauseRequest {
    /// One stream, or the stream of the partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<String>,
    /// One partition: its number together with `stream`, or `stream/number`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// One sequence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence: Option<String>,
    /// Replays only.
    #[serde(default)]
    pub replay: bool,
    /// The reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = true)]
    pub reason: Option<String>,
}

/// The error for a request that does not name exactly one scope.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidPauseScope {
    /// A partition without its stream.
    #[error("partition {partition:?} has no stream: name the stream, or write stream/number")]
    NoStream {
        /// The partition as given.
        partition: String,
    },
    /// A partition that is not a number.
    #[error("partition {partition:?} is not a number")]
    NotANumber {
        /// The partition as given.
        partition: String,
    },
    /// Several parts at once.
    #[error("give at most one of stream, partition, sequence and replay")]
    SeveralParts,
}

impl PauseRequest {
    /// Returns the scope that the request names.
    ///
    /// # Errors
    /// When the request names several parts, or an invalid partition.
    pub fn scope(&self) -> Result<store::PauseScope, InvalidPauseScope> {
        let stream = self.stream.as_deref();
        match (stream, &self.partition, &self.sequence, self.replay) {
            (None, None, None, false) => Ok(store::PauseScope::Consumer),
            (Some(stream), None, None, false) => Ok(store::PauseScope::Stream(StreamName::from(stream))),
            (stream, Some(partition), None, false) => {
                let (stream, number) = match stream {
                    Some(stream) => (stream, partition.as_str()),
                    None => partition
                        .rsplit_once('/')
                        .ok_or_else(|| InvalidPauseScope::NoStream { partition: partition.clone() })?,
                };
                let number = number
                    .parse()
                    .map_err(|_| InvalidPauseScope::NotANumber { partition: number.to_owned() })?;
                Ok(store::PauseScope::Partition(Partition::new(stream, number)))
            }
            (None, None, Some(sequence), false) => {
                Ok(store::PauseScope::Sequence(SequenceId::from(sequence.as_str())))
            }
            (None, None, None, true) => Ok(store::PauseScope::Replay),
            _ => Err(InvalidPauseScope::SeveralParts),
        }
    }
}

/// The result of a resume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ResumeAnswer {
    /// `false` if the scope was not paused.
    pub resumed: bool,
}

#[cfg(test)]
mod tests {
    use lazaret_core::store::{Actor, PauseScope as Scope};

    use super::*;

    fn scope(json: &str) -> Result<Scope, InvalidPauseScope> {
        serde_json::from_str::<PauseRequest>(json).unwrap().scope()
    }

    #[test]
    fn a_request_names_one_scope() {
        assert_eq!(scope("{}"), Ok(Scope::Consumer));
        assert_eq!(scope(r#"{"stream": "a/b"}"#), Ok(Scope::Stream("a/b".into())));
        let partition = Scope::Partition(Partition::new("a/b", 3));
        assert_eq!(scope(r#"{"stream": "a/b", "partition": "3"}"#), Ok(partition.clone()));
        assert_eq!(scope(r#"{"partition": "a/b/3"}"#), Ok(partition));
        assert_eq!(scope(r#"{"sequence": "x/ü"}"#), Ok(Scope::Sequence("x/ü".into())));
        assert_eq!(scope(r#"{"replay": true}"#), Ok(Scope::Replay));
        for wrong in [
            r#"{"partition": "3"}"#,
            r#"{"stream": "a", "partition": "x"}"#,
            r#"{"stream": "a", "replay": true}"#,
            r#"{"sequence": "a", "partition": "b/1"}"#,
        ] {
            assert!(scope(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_pause_names_its_scope() {
        for request in [
            r#"{}"#,
            r#"{"stream":"a"}"#,
            r#"{"partition":"a/1"}"#,
            r#"{"sequence":"s"}"#,
            r#"{"replay":true}"#,
        ] {
            let scope = scope(request).unwrap();
            let pause = store::Pause {
                scope: scope.clone(),
                by: Actor::new("ada", "cli", "x"),
                since: jiff::Timestamp::UNIX_EPOCH,
            };
            let wire = Pause::from(&pause);
            let back = PauseRequest {
                stream: wire.stream,
                partition: wire.partition.map(|number| number.to_string()),
                sequence: wire.sequence,
                replay: wire.scope == PauseScope::Replay,
                reason: None,
            };
            assert_eq!(back.scope().unwrap(), scope);
        }
    }
}
