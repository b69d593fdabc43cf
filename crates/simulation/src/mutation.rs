//! Known bugs, switched on to prove that the simulation finds them.

use lazaret_engine::Options;
#[cfg(feature = "mutations")]
use lazaret_engine::mutation::Mutation as EngineMutation;
use lazaret_memory::MemoryStore;

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
    ];

    #[cfg(feature = "mutations")]
    fn of_engine(self) -> Option<EngineMutation> {
        match self {
            Self::SkipBlockedCheck => Some(EngineMutation::SkipBlockedCheck),
            Self::CommitBeforeHandOff => Some(EngineMutation::CommitBeforeHandOff),
            Self::ForgetFences => None,
            Self::DropOnEnqueueError => Some(EngineMutation::DropOnEnqueueError),
            Self::ResetAttemptsOnRestart => Some(EngineMutation::ResetAttemptsOnRestart),
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
    if mutation == Some(Mutation::ForgetFences) {
        store.forget_fences();
    }
}

#[cfg(not(feature = "mutations"))]
pub(crate) fn engine_options(_mutation: Option<Mutation>, options: Options) -> Options {
    options
}

#[cfg(not(feature = "mutations"))]
pub(crate) fn apply_to_store(_mutation: Option<Mutation>, _store: &MemoryStore) {}
