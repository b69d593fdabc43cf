//! A parsed file: the values of the top level, and the values of each consumer merged with `defaults`.

use std::sync::Arc;

use crate::source::{SourceText, Span};
use crate::value::Fields;

/// All values of a file.
#[derive(Debug)]
pub(crate) struct Document {
    pub(crate) source: Arc<SourceText>,
    pub(crate) top: Fields,
    pub(crate) consumers: Vec<ConsumerFields>,
}

/// All values of a consumer.
#[derive(Debug)]
pub(crate) struct ConsumerFields {
    pub(crate) name: String,
    pub(crate) name_span: Span,
    pub(crate) fields: Fields,
}
