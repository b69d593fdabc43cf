//! The options of a file source.

use std::time::Duration;

use lazaret_core::StreamName;

/// The options of a [`FileSource`](crate::FileSource).
///
/// ```
/// use lazaret_source_file::Options;
/// let options = Options { follow: true, ..Options::default() };
/// assert_eq!(options.max_line, 16 * 1024 * 1024);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// If `true`, the source waits for new lines at the end of the file. Otherwise it ends there.
    pub follow: bool,
    /// The name of the stream. Default: the name of the file.
    pub stream: Option<StreamName>,
    /// The maximum length of a line in bytes. A longer line becomes an undecodable message with its
    /// first bytes (I7).
    pub max_line: usize,
    /// The polling interval at the end of a followed file.
    pub poll: Duration,
    /// The maximum number of messages per batch, at least one.
    pub batch: usize,
}

impl Default for Options {
    /// Does not follow the file, and sets 16 MiB per line, 512 messages per batch, and a polling
    /// interval of 100 ms.
    fn default() -> Self {
        Self {
            follow: false,
            stream: None,
            max_line: 16 * 1024 * 1024,
            poll: Duration::from_millis(100),
            batch: 512,
        }
    }
}
