//! Pauses over the wire.

use lazaret_core::store;
use lazaret_core::{Partition, SequenceId, StreamName};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What kind of thing is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PauseScope {
    /// The whole consumer.
    Consumer,
    /// One stream of it.
    Stream,
    /// One partition.
    Partition,
    /// One sequence: its messages go to the store and wait there.
    Sequence,
    /// Replays only.
    Replay,
}

/// A pause, with who, why and since when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Pause {
    /// What kind of thing is paused.
    pub scope: PauseScope,
    /// The stream, of a stream or a partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<String>,
    /// The number of the partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<u32>,
    /// The sequence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence: Option<String>,
    /// Who did it.
    pub who: String,
    /// By what means.
    pub via: String,
    /// Why.
    pub why: String,
    /// Since when.
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

/// What to pause or resume: the whole consumer unless a part is named, and at most one part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PauseRequest {
    /// One stream, or the stream of the partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<String>,
    /// One partition: its number, with the stream, or `stream/number`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// One sequence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence: Option<String>,
    /// Replays only.
    #[serde(default)]
    pub replay: bool,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl PauseRequest {
    /// What is meant.
    ///
    /// # Errors
    /// In words, when it is not one thing.
    pub fn scope(&self) -> Result<store::PauseScope, String> {
        let stream = self.stream.as_deref();
        match (stream, &self.partition, &self.sequence, self.replay) {
            (None, None, None, false) => Ok(store::PauseScope::Consumer),
            (Some(stream), None, None, false) => Ok(store::PauseScope::Stream(StreamName::from(stream))),
            (stream, Some(partition), None, false) => {
                let (stream, number) = match stream {
                    Some(stream) => (stream, partition.as_str()),
                    None => partition.rsplit_once('/').ok_or_else(|| {
                        format!("partition {partition:?} needs a stream: name one, or write stream/number")
                    })?,
                };
                let number = number.parse().map_err(|_| format!("partition {number:?} is not a number"))?;
                Ok(store::PauseScope::Partition(Partition::new(stream, number)))
            }
            (None, None, Some(sequence), false) => {
                Ok(store::PauseScope::Sequence(SequenceId::from(sequence.as_str())))
            }
            (None, None, None, true) => Ok(store::PauseScope::Replay),
            _ => {
                Err("name one of stream, partition, sequence and replay, or none for the consumer".to_owned())
            }
        }
    }
}

/// Whether there was anything to resume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ResumeAnswer {
    /// `false` when it was not paused.
    pub resumed: bool,
}

#[cfg(test)]
mod tests {
    use lazaret_core::store::{Actor, PauseScope as Scope};

    use super::*;

    fn scope(json: &str) -> Result<Scope, String> {
        serde_json::from_str::<PauseRequest>(json).unwrap().scope()
    }

    #[test]
    fn a_request_names_one_thing() {
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
    fn a_pause_says_what_it_is_about() {
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
