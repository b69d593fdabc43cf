//! Known bugs, switched on to prove that the simulation finds them.

use lazaret_engine::Options;
#[cfg(feature = "mutations")]
use lazaret_engine::mutation::Mutation as EngineMutation;
use lazaret_memory::{MemoryLog, MemoryStore};

/// A known bug. Without the feature `mutations` there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutation {
    /// The engine runs a message although its sequence is open in the store.
    #[cfg(feature = "mutations")]
    SkipBlockedCheck,
    /// The engine settles a failed message before its letter is durable.
    #[cfg(feature = "mutations")]
    CommitBeforeHandOff,
    /// The store accepts the writes of late owners.
    #[cfg(feature = "mutations")]
    ForgetFences,
    /// The engine settles a failed message when the store refuses its letter.
    #[cfg(feature = "mutations")]
    DropOnEnqueueError,
    /// The engine forgets after a restart how often a message was tried.
    #[cfg(feature = "mutations")]
    ResetAttemptsOnRestart,
    /// The engine does not start the next message of a lane whose first one was abandoned with its partition.
    #[cfg(feature = "mutations")]
    StallFreedLanes,
    /// The engine gives all hand-offs the same number.
    #[cfg(feature = "mutations")]
    UnnumberedHandOffs,
    /// The engine lists the open sequences before the grant of an assigned partition.
    #[cfg(feature = "mutations")]
    ListBeforeGrant,
    /// The engine takes a sequence that was opened again for closed when a stored run ends.
    #[cfg(feature = "mutations")]
    CloseReopenedSequences,
    /// The engine takes a sequence for closed after an answer of the store that is older than its list.
    #[cfg(feature = "mutations")]
    TrustStaleAnswers,
    /// The engine starts a retry as soon as the store's clock says that it is due.
    #[cfg(feature = "mutations")]
    TrustStoreClock,
    /// The engine continues a stored run with the next letter while the consumer is paused or its breaker is open.
    #[cfg(feature = "mutations")]
    IgnoreGateWithinRuns,
    /// The engine stores a message that failed for good as skipped.
    #[cfg(feature = "mutations")]
    SkipFailedMessages,
    /// The engine replays letters while replays are paused.
    #[cfg(feature = "mutations")]
    IgnoreReplayPauses,
    /// The engine runs letters while the consumer is paused.
    #[cfg(feature = "mutations")]
    IgnoreConsumerPauses,
    /// The engine returns partitions without a last commit.
    #[cfg(feature = "mutations")]
    LeaveWithoutCommit,
    /// The engine claims messages in the duplicate filter for the process, not for one attempt.
    #[cfg(feature = "mutations")]
    ShareClaims,
    /// The engine marks no message as handled in the duplicate filter.
    #[cfg(feature = "mutations")]
    ForgetMarks,
    /// The engine runs suspects of a crash beside other messages.
    #[cfg(feature = "mutations")]
    RunSuspectsInCompany,
    /// The engine gives letters half of the time until they expire.
    #[cfg(feature = "mutations")]
    ExpireEarly,
    /// The engine lets messages that wait behind a failed one fill its window.
    #[cfg(feature = "mutations")]
    CountHeldInWindow,
    /// The engine lets lanes wait in memory, however many messages they hold back.
    #[cfg(feature = "mutations")]
    NeverMoveEarly,
    /// The engine lets dead letters leave their sequences, whatever the policy says.
    #[cfg(feature = "mutations")]
    LeaveUnasked,
    /// The engine starts attempts without a look at how long partitions and leases are certainly owned.
    #[cfg(feature = "mutations")]
    TrustStaleOwnership,
    /// The source gives messages of a recreated stream the positions of deleted ones.
    #[cfg(feature = "mutations")]
    ForgetIncarnations,
    /// The engine hands off a message under an id that a letter of an earlier incarnation has.
    #[cfg(feature = "mutations")]
    ShareLetterIds,
    /// The store takes back the counts of the last settlement of an operation when it refuses a command.
    #[cfg(feature = "mutations")]
    LoseCountsOnRefusal,
    /// The store sends letters of operations that people have paused.
    #[cfg(feature = "mutations")]
    IgnoreOperationPauses,
    /// The store keeps sequences reserved for operations that are over.
    #[cfg(feature = "mutations")]
    KeepReservations,
}

impl Mutation {
    /// Every mutation of this build.
    pub const ALL: &[Self] = &[
        #[cfg(feature = "mutations")]
        Self::SkipBlockedCheck,
        #[cfg(feature = "mutations")]
        Self::CommitBeforeHandOff,
        #[cfg(feature = "mutations")]
        Self::ForgetFences,
        #[cfg(feature = "mutations")]
        Self::DropOnEnqueueError,
        #[cfg(feature = "mutations")]
        Self::ResetAttemptsOnRestart,
        #[cfg(feature = "mutations")]
        Self::StallFreedLanes,
        #[cfg(feature = "mutations")]
        Self::UnnumberedHandOffs,
        #[cfg(feature = "mutations")]
        Self::ListBeforeGrant,
        #[cfg(feature = "mutations")]
        Self::CloseReopenedSequences,
        #[cfg(feature = "mutations")]
        Self::TrustStaleAnswers,
        #[cfg(feature = "mutations")]
        Self::TrustStoreClock,
        #[cfg(feature = "mutations")]
        Self::IgnoreGateWithinRuns,
        #[cfg(feature = "mutations")]
        Self::SkipFailedMessages,
        #[cfg(feature = "mutations")]
        Self::IgnoreReplayPauses,
        #[cfg(feature = "mutations")]
        Self::IgnoreConsumerPauses,
        #[cfg(feature = "mutations")]
        Self::LeaveWithoutCommit,
        #[cfg(feature = "mutations")]
        Self::ShareClaims,
        #[cfg(feature = "mutations")]
        Self::ForgetMarks,
        #[cfg(feature = "mutations")]
        Self::RunSuspectsInCompany,
        #[cfg(feature = "mutations")]
        Self::ExpireEarly,
        #[cfg(feature = "mutations")]
        Self::CountHeldInWindow,
        #[cfg(feature = "mutations")]
        Self::NeverMoveEarly,
        #[cfg(feature = "mutations")]
        Self::LeaveUnasked,
        #[cfg(feature = "mutations")]
        Self::TrustStaleOwnership,
        #[cfg(feature = "mutations")]
        Self::ForgetIncarnations,
        #[cfg(feature = "mutations")]
        Self::ShareLetterIds,
        #[cfg(feature = "mutations")]
        Self::LoseCountsOnRefusal,
        #[cfg(feature = "mutations")]
        Self::IgnoreOperationPauses,
        #[cfg(feature = "mutations")]
        Self::KeepReservations,
    ];

    #[cfg(feature = "mutations")]
    fn of_engine(self) -> Option<EngineMutation> {
        match self {
            Self::SkipBlockedCheck => Some(EngineMutation::SkipBlockedCheck),
            Self::CommitBeforeHandOff => Some(EngineMutation::CommitBeforeHandOff),
            Self::ForgetFences
            | Self::ForgetIncarnations
            | Self::LoseCountsOnRefusal
            | Self::IgnoreOperationPauses
            | Self::KeepReservations => None,
            Self::DropOnEnqueueError => Some(EngineMutation::DropOnEnqueueError),
            Self::ResetAttemptsOnRestart => Some(EngineMutation::ResetAttemptsOnRestart),
            Self::StallFreedLanes => Some(EngineMutation::StallFreedLanes),
            Self::UnnumberedHandOffs => Some(EngineMutation::UnnumberedHandOffs),
            Self::ListBeforeGrant => Some(EngineMutation::ListBeforeGrant),
            Self::CloseReopenedSequences => Some(EngineMutation::CloseReopenedSequences),
            Self::TrustStaleAnswers => Some(EngineMutation::TrustStaleAnswers),
            Self::TrustStoreClock => Some(EngineMutation::TrustStoreClock),
            Self::IgnoreGateWithinRuns => Some(EngineMutation::IgnoreGateWithinRuns),
            Self::SkipFailedMessages => Some(EngineMutation::SkipFailedMessages),
            Self::IgnoreReplayPauses => Some(EngineMutation::IgnoreReplayPauses),
            Self::IgnoreConsumerPauses => Some(EngineMutation::IgnoreConsumerPauses),
            Self::LeaveWithoutCommit => Some(EngineMutation::LeaveWithoutCommit),
            Self::ShareClaims => Some(EngineMutation::ShareClaims),
            Self::ForgetMarks => Some(EngineMutation::ForgetMarks),
            Self::RunSuspectsInCompany => Some(EngineMutation::RunSuspectsInCompany),
            Self::ExpireEarly => Some(EngineMutation::ExpireEarly),
            Self::CountHeldInWindow => Some(EngineMutation::CountHeldInWindow),
            Self::NeverMoveEarly => Some(EngineMutation::NeverMoveEarly),
            Self::LeaveUnasked => Some(EngineMutation::LeaveUnasked),
            Self::TrustStaleOwnership => Some(EngineMutation::TrustStaleOwnership),
            Self::ShareLetterIds => Some(EngineMutation::ShareLetterIds),
        }
    }
}

/// The options of an engine with this mutation.
#[cfg(feature = "mutations")]
pub(crate) fn engine_options(mutation: Option<Mutation>, options: Options) -> Options {
    Options { mutation: mutation.and_then(Mutation::of_engine), ..options }
}

/// Switches the mutation on in the store, if it is one of the store.
#[cfg(feature = "mutations")]
pub(crate) fn apply_to_store(mutation: Option<Mutation>, store: &MemoryStore) {
    match mutation {
        Some(Mutation::ForgetFences) => store.forget_fences(),
        Some(Mutation::LoseCountsOnRefusal) => store.lose_counts_on_refusal(),
        Some(Mutation::IgnoreOperationPauses) => store.ignore_operation_pauses(),
        Some(Mutation::KeepReservations) => store.keep_reservations(),
        _ => {}
    }
}

/// Switches the mutation on in the log, if it is one of the log.
#[cfg(feature = "mutations")]
pub(crate) fn apply_to_log(mutation: Option<Mutation>, log: &MemoryLog) {
    if mutation == Some(Mutation::ForgetIncarnations) {
        log.forget_incarnations();
    }
}

#[cfg(not(feature = "mutations"))]
pub(crate) fn engine_options(_mutation: Option<Mutation>, options: Options) -> Options {
    options
}

#[cfg(not(feature = "mutations"))]
pub(crate) fn apply_to_store(_mutation: Option<Mutation>, _store: &MemoryStore) {}

#[cfg(not(feature = "mutations"))]
pub(crate) fn apply_to_log(_mutation: Option<Mutation>, _log: &MemoryLog) {}
