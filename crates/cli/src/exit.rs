//! Exit codes. They are part of the public contract.

use std::process::ExitCode;

/// The exit code of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Success.
    Ok = 0,
    /// An error that no other code describes.
    Error = 1,
    /// Usage error.
    Usage = 2,
    /// Partial failure: some letters failed again or could not be changed (such as erased), or letters remain.
    Partly = 3,
    /// Not found, or the plan is stale.
    NotFound = 4,
    /// A second person has to approve the operation.
    AwaitingApproval = 5,
    /// Denied by the token's scopes or by a rule.
    Denied = 6,
    /// Interrupted; a started operation continues in the daemon.
    Interrupted = 130,
}

impl Exit {
    /// Every exit code.
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

    /// Converts an exit code of the daemon.
    pub(crate) const fn of_daemon(code: u8) -> Self {
        match code {
            lazaret_daemon::exit::OK => Self::Ok,
            lazaret_daemon::exit::LETTERS_REMAIN => Self::Partly,
            _ => Self::Error,
        }
    }

    /// Returns the number that the shell sees.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Describes the code, for the reference.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Ok => "success",
            Self::Error => "error",
            Self::Usage => "usage error",
            Self::Partly => {
                "partial failure: some letters failed again or could not be changed (such as erased), or letters remain"
            }
            Self::NotFound => "not found, or the plan is stale",
            Self::AwaitingApproval => "waiting for a second person's approval",
            Self::Denied => "denied by the token's scopes or by a rule",
            Self::Interrupted => "interrupted; a started operation continues in the daemon",
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}
