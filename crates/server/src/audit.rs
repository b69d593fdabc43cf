//! Checking the audit of a store that can be checked.

use async_trait::async_trait;
use lazaret_api::AuditCheck;
use lazaret_core::store::{Audit, Result};

/// A store whose audit can be checked.
#[async_trait]
pub trait VerifyAudit: Send + Sync + 'static {
    /// Checks every entry from the first one on.
    async fn verify(&self) -> Result<AuditCheck>;
}

#[cfg(feature = "sqlite")]
#[async_trait]
impl VerifyAudit for lazaret_store_sqlite::SqliteStore {
    async fn verify(&self) -> Result<AuditCheck> {
        let check = Audit::verify_audit(self).await?.unwrap_or_default();
        let hash = check.hash.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(AuditCheck { ok: check.broken.is_none(), intact: check.intact, broken: check.broken, hash })
    }
}
