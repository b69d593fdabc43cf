//! Known bugs behind a feature, so that the simulation can prove that it finds them.

/// A bug that an engine has on purpose.
#[cfg(feature = "mutations")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutation {
    /// Runs a message although its sequence is open in the store.
    SkipBlockedCheck,
    /// Settles a failed message before its letter is durable.
    CommitBeforeHandOff,
    /// Settles a failed message when the store refuses its letter.
    DropOnEnqueueError,
    /// Forgets the attempts of a message at a restart.
    ResetAttemptsOnRestart,
    /// Does not start the next message of a lane whose first one was abandoned with its partition.
    StallFreedLanes,
    /// Gives all hand-offs the same number.
    UnnumberedHandOffs,
    /// Lists the open sequences before the grant of an assigned partition.
    ListBeforeGrant,
    /// Takes a sequence that was opened again for closed when a stored run ends.
    CloseReopenedSequences,
    /// Takes a sequence for closed after an answer of the store that is older than its list.
    TrustStaleAnswers,
    /// Starts a retry as soon as the store's clock says that it is due.
    TrustStoreClock,
    /// Continues a stored run with the next letter while the consumer is paused or its breaker is open.
    IgnoreGateWithinRuns,
    /// Stores a message that failed for good as skipped.
    SkipFailedMessages,
    /// Replays letters while replays are paused.
    IgnoreReplayPauses,
    /// Runs letters while the consumer is paused.
    IgnoreConsumerPauses,
    /// Returns partitions without a last commit.
    LeaveWithoutCommit,
    /// Lets messages that wait behind a failed one fill the window.
    CountHeldInWindow,
    /// Lets lanes wait in memory, however many messages they hold back.
    NeverMoveEarly,
    /// Claims messages in the duplicate filter for the process, not for one attempt.
    ShareClaims,
    /// Marks no message as handled in the duplicate filter.
    ForgetMarks,
    /// Runs suspects of a crash beside other messages.
    RunSuspectsInCompany,
    /// Gives letters half of the time until they expire.
    ExpireEarly,
    /// Lets dead letters leave their sequences, whatever the policy says.
    LeaveUnasked,
    /// Starts attempts without a look at how long partitions and leases are certainly owned.
    TrustStaleOwnership,
    /// Hands off a message under an id that a letter of an earlier incarnation has.
    ShareLetterIds,
}

/// Evaluates to `true` when the options ask for this bug. Always `false` unless the feature `mutations` is on.
macro_rules! mutated {
    ($options:expr, $mutation:ident) => {{
        #[cfg(feature = "mutations")]
        {
            $options.mutation == Some($crate::mutation::Mutation::$mutation)
        }
        #[cfg(not(feature = "mutations"))]
        {
            let _ = &$options;
            false
        }
    }};
}
pub(crate) use mutated;
