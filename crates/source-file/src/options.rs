//! How a file is read.

use std::time::Duration;

use lazaret_core::StreamName;

/// How a [`FileSource`](crate::FileSource) reads.
///
/// ```
/// use lazaret_source_file::Options;
/// let options = Options { follow: true, ..Options::default() };
/// assert_eq!(options.max_line, 16 * 1024 * 1024);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Whether to wait for more at the end of the file. Otherwise the source ends there.
    pub follow: bool,
    /// The name of the stream; without one, the name of the file.
    pub stream: Option<StreamName>,
    /// How many bytes a line may have. A longer one is a message that cannot be decoded, with this many bytes of it (I7).
    pub max_line: usize,
    /// How often to look for more at the end of a file that is followed.
    pub poll: Duration,
    /// How many messages are given at once, at least one.
    pub batch: usize,
}

impl Default for Options {
    /// To the end of the file, 16 MiB a line, 512 messages at once; ten looks a second when following.
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
