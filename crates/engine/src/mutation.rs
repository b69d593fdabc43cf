//! Known bugs behind a switch, so that the simulation can prove that it finds them.

/// A bug that an engine has on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutation {
    /// Runs a message although its sequence is open in the store.
    SkipBlockedCheck,
    /// Settles a failed message before its letter is durable.
    CommitBeforeHandOff,
    /// Settles a failed message when the store refuses its letter.
    DropOnEnqueueError,
    /// Forgets after a restart how often a message was tried.
    ResetAttemptsOnRestart,
}
