//! A callback inside each transaction, for tests that end the process there.

use std::fmt;
use std::sync::Arc;

/// A callback that receives the name of each step of a transaction.
#[derive(Clone, Default)]
pub(crate) struct TransactionHook(pub(crate) Option<Arc<dyn Fn(&'static str) + Send + Sync>>);

impl TransactionHook {
    pub(crate) fn call(&self, step: &'static str) {
        if let Some(hook) = &self.0 {
            hook(step);
        }
    }
}

impl fmt::Debug for TransactionHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "TransactionHook" } else { "no hook" })
    }
}
