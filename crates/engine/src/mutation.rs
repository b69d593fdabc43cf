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
