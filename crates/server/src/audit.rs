//! Verification of the audit.

use async_trait::async_trait;
use lazaret_api::AuditCheck;
use lazaret_core::store::{Audit, Result};

/// A store whose audit can be verified.
#[async_trait]
pub trait VerifyAudit: Send + Sync + 'static {
    /// Verifies every entry from the first.
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
