//! How a command ends. The codes are part of the public contract.

use std::process::ExitCode;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// All went well.
    Ok = 0,
    /// Something went wrong.
    Error = 1,
    /// The command line makes no sense.
    Usage = 2,
    /// Some letters failed again, or letters remain.
    Partly = 3,
    /// There is no such thing, or the plan cannot be carried out any more.
    NotFound = 4,
    /// A second person has to approve.
    AwaitingApproval = 5,
    /// The token or a rule does not allow it.
    Denied = 6,
    /// Interrupted. What was begun goes on.
    Interrupted = 130,
}

impl Exit {
    /// Every way to end.
    pub const ALL: [Self; 8] = [
        Self::Ok,
        Self::Error,
        Self::Usage,
        Self::Partly,
        Self::NotFound,
        Self::AwaitingApproval,
        Self::Denied,
        Self::Interrupted,
    ];

    /// The number that the shell sees.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// What it means, for the manual.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Ok => "all went well",
            Self::Error => "something went wrong",
            Self::Usage => "the command line makes no sense",
            Self::Partly => "some letters failed again, or letters remain",
            Self::NotFound => "there is no such thing, or the plan cannot be carried out any more",
            Self::AwaitingApproval => "a second person has to approve",
            Self::Denied => "the token or a rule does not allow it",
            Self::Interrupted => "interrupted; the operation goes on",
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}
