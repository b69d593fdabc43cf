//! Layouts: the names of the fields of a letter that people and other tools read.

use std::fmt;
use std::str::FromStr;

/// The layout of the readable fields of a letter. All of a letter is in its field `lazaret`, in either layout, so a store reads letters
/// of both; those that it writes have the layout of its options.
///
/// ```
/// use lazaret_store_mongodb::Layout;
/// assert_eq!("flowwarden".parse(), Ok(Layout::FlowWarden));
/// assert_eq!(Layout::default().as_str(), "lazaret");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Layout {
    /// Lazaret's own names: `queue`, `state`, `reason`, `payload`, `firstFailedAt`.
    #[default]
    Lazaret,
    /// The names of FlowWarden's dead letters: `streamName`, `status`, `fullDocument`, `firstAttemptAt`.
    FlowWarden,
}

impl Layout {
    /// Every layout.
    pub const ALL: [Self; 2] = [Self::Lazaret, Self::FlowWarden];

    /// The name in a URI.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lazaret => "lazaret",
            Self::FlowWarden => "flowwarden",
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The name of a layout that does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownLayout(String);

impl fmt::Display for UnknownLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no layout {:?}: use `lazaret` or `flowwarden`", self.0)
    }
}

impl std::error::Error for UnknownLayout {}

impl FromStr for Layout {
    type Err = UnknownLayout;

    fn from_str(name: &str) -> Result<Self, UnknownLayout> {
        let found = Self::ALL.into_iter().find(|layout| layout.as_str().eq_ignore_ascii_case(name));
        found.ok_or_else(|| UnknownLayout(name.to_owned()))
    }
}
