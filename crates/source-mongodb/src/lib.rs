//! A source for MongoDB change streams.

mod checkpoint;
mod context;
mod error;
mod event;
mod extjson;
mod extract;
mod lease;
mod options;
mod pipeline;
mod position;
mod reader;
mod resume;
mod source;
mod status;
mod stream;
mod worker;

pub use error::ErrorClass;
pub use event::headers;
pub use extract::{
    Before, ChangeEvent, Document, DocumentKey, Namespace, OperationType, ResumePoint, Transaction,
    TransactionInfo, TruncatedArray, UpdateDescription,
};
pub use options::{
    BeforeChange, CheckpointOptions, Deployment, FullDocument, LeaseOptions, MongoSourceOptions,
    OnHistoryLost, OnInvalidate, RestartPolicy, Server, Start,
};
pub use source::MongoSource;
pub use status::{Decision, MongoStatus, OplogWindow, StreamState};
