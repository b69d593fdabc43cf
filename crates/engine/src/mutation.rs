//! Known bugs behind a feature, so that the simulation can prove that it finds them.

/// A deliberate bug of an engine.
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
    /// Does not start the next message of a lane after the first one was abandoned with its partition.
    StallFreedLanes,
    /// Gives all hand-offs the same number.
    UnnumberedHandOffs,
    /// Lists the open sequences before the grant of an assigned partition.
    ListBeforeGrant,
    /// Treats a reopened sequence as closed when a stored run ends.
    CloseReopenedSequences,
    /// Treats a sequence as closed after a store response that is older than the store's list.
    TrustStaleAnswers,
    /// Starts a retry as soon as it is due by the store's clock.
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
    /// Counts messages that wait behind a failed one towards the window.
    CountHeldInWindow,
    /// Lets lanes wait in memory, however many messages they hold back.
    NeverMoveEarly,
    /// Claims messages in the duplicate filter for the process, not for one attempt.
    ShareClaims,
    /// Marks no message as handled in the duplicate filter.
    ForgetMarks,
    /// Runs suspects of a crash together with other messages.
    RunSuspectsInCompany,
    /// Halves the time until letters expire.
    ExpireEarly,
    /// Lets dead letters leave their sequences regardless of the policy.
    LeaveUnasked,
    /// Starts attempts without checking how long the ownership of partitions and leases is certain.
    TrustStaleOwnership,
    /// Hands off a message under the id of a letter from an earlier incarnation.
    ShareLetterIds,
}

/// Evaluates to `true` if the options select this bug. Without the feature `mutations` it is always
/// `false`.
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
