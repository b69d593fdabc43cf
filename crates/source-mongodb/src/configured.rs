//! Builds the options of a source from its configuration.

use std::time::Duration;

use bson::{Bson, Document};
use lazaret_config::{self as config, MongodbSource};
use lazaret_core::Operation;
use lazaret_core::source::SourceError;
use serde_json::Value;

use crate::options::{
    BeforeChange, CheckpointOptions, Deployment, FullDocument, MongoSourceOptions, OnHistoryLost,
    OnInvalidate, RestartPolicy, Start,
};

/// A placeholder for no interval, with which positions are written only by the number of messages.
const NO_INTERVAL: Duration = Duration::from_secs(365 * 86_400);

impl MongoSourceOptions {
    /// Returns the options of a configured source. `stream` is the name of its consumer. Positions and
    /// leases are kept per consumer, because two consumers may watch the same collection.
    ///
    /// ```
    /// use lazaret_config::{NoEnv, Source, check};
    /// use lazaret_source_mongodb::MongoSourceOptions;
    /// let text = "
    /// consumers:
    ///   orders:
    ///     source: { mongodb: { uri: 'mongodb://127.0.0.1', database: shop, collection: orders } }
    ///     handler: { command: { program: [./handle] } }
    /// ";
    /// let config = check("f", text.as_bytes(), &NoEnv).config.unwrap();
    /// let Source::Mongodb(source) = &config.consumers[0].source else { panic!() };
    /// let options = MongoSourceOptions::from_config("orders", source).unwrap();
    /// assert_eq!(options.collection.as_deref(), Some("orders"));
    /// ```
    ///
    /// # Errors
    /// When a stage of the pipeline is not extended JSON.
    pub fn from_config(stream: &str, from: &MongodbSource) -> Result<Self, SourceError> {
        let checkpoint = &from.checkpoint;
        Ok(Self {
            database: from.database.clone(),
            collection: from.collection.clone(),
            pipeline: Self::stages(&from.pipeline).map_err(SourceError::permanent)?,
            full_document: match from.full_document {
                config::FullDocument::Default => FullDocument::Default,
                config::FullDocument::WhenAvailable => FullDocument::WhenAvailable,
                config::FullDocument::Required => FullDocument::Required,
                _ => FullDocument::UpdateLookup,
            },
            full_document_before_change: match from.before_change {
                config::BeforeChange::WhenAvailable => BeforeChange::WhenAvailable,
                config::BeforeChange::Required => BeforeChange::Required,
                _ => BeforeChange::Off,
            },
            operations: from.operations.iter().map(|operation| operation_of(*operation)).collect(),
            start: match from.start {
                config::StartPosition::Latest => Start::Now,
                config::StartPosition::OplogStart => Start::OplogStart,
                _ => Start::Resume,
            },
            on_history_lost: match from.on_history_lost {
                config::HistoryLost::FromNow => OnHistoryLost::FromNow,
                config::HistoryLost::FromOplogStart => OnHistoryLost::FromOplogStart,
                _ => OnHistoryLost::Fail,
            },
            on_invalidate: match from.on_invalidate {
                config::OnInvalidate::StartAfter => OnInvalidate::StartAfter,
                _ => OnInvalidate::Stop,
            },
            checkpoint: CheckpointOptions {
                every: u32::try_from(checkpoint.every).unwrap_or(u32::MAX),
                interval: checkpoint.interval.unwrap_or(NO_INTERVAL),
                idle_heartbeat: checkpoint.idle_heartbeat.unwrap_or_default(),
            },
            deployment: if from.single_leader { Deployment::SingleLeader } else { Deployment::AllInstances },
            instance: from.instance.clone(),
            restart: RestartPolicy {
                // In the options, 0 means no limit.
                max_attempts: from.restart.max_attempts.unwrap_or(0),
                initial_delay: from.restart.initial_delay,
                multiplier: from.restart.multiplier,
                max_delay: from.restart.max_delay,
            },
            ..Self::deployment(from.uri.reveal(), stream)
        })
    }

    /// Reads the stages of a pipeline as extended JSON.
    ///
    /// # Errors
    /// When a stage is not extended JSON.
    pub fn stages(pipeline: &[Value]) -> Result<Vec<Document>, String> {
        let read = |(index, stage): (usize, &Value)| match serde_json::from_value(stage.clone()) {
            Ok(Bson::Document(stage)) => Ok(stage),
            Ok(_) => Err(format!("stage {} of the pipeline is not an object", index + 1)),
            Err(error) => Err(format!("stage {} of the pipeline is not extended JSON: {error}", index + 1)),
        };
        pipeline.iter().enumerate().map(read).collect()
    }
}

fn operation_of(operation: config::OperationType) -> Operation {
    match operation {
        config::OperationType::Insert => Operation::Insert,
        config::OperationType::Update => Operation::Update,
        config::OperationType::Replace => Operation::Replace,
        config::OperationType::Delete => Operation::Delete,
        config::OperationType::Drop => Operation::Drop,
        config::OperationType::Rename => Operation::Rename,
        config::OperationType::DropDatabase => Operation::DropDatabase,
        config::OperationType::Invalidate => Operation::Invalidate,
        // Opening the source rejects this operation.
        _ => Operation::Other,
    }
}
