//! The configuration as typed values for programs.

mod adopt;
mod build;
mod config;
mod console;
mod consumer;
mod enums;
mod io;
mod secret;

pub use adopt::{AdoptTopics, TopicFormat};
pub(crate) use build::{
    breaker_policy, closeness, fuse_policy, grouping, listed_attempts, listed_delays, poison_policy,
    replaced, retry_policy,
};
pub use config::{
    AlertThresholds, Auth, Config, Encryption, KeySource, RequestLimits, Telemetry, Tls, Token, Webhook,
};
pub use console::{Console, Oidc, Proxy, Role};
pub use consumer::{
    Advanced, Approval, Consumer, CopiesCollection, DeadLetter, Order, Replay, Reprocess, Retry, RetryTopics,
};
pub use enums::{
    BeforeChange, FullDocument, HistoryLost, LogFormat, LogLevel, OnInvalidate, OperationType, OutboxAck,
    StartPosition,
};
pub use io::{
    Checkpoint, CommandHandler, CommandMode, Handler, HttpHandler, KafkaSource, MongodbSource,
    PostgresOutboxSource, Restart, Source,
};
pub use secret::Secret;
