//! The choice of colors on the command line.

use clap::ValueEnum;

/// When to use colors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ColorChoice {
    /// On a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    /// Also when the output is not a terminal
    Always,
    /// Never
    Never,
}
