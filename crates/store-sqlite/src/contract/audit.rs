//! The audit.

use async_trait::async_trait;
use lazaret_core::store::rules::AuditLine;
use lazaret_core::store::{
    Actor, Audit, AuditCheck, AuditEntry, AuditHead, AuditNote, DigestKey, Result, stored_digest_key,
};

use crate::audit;
use crate::store::SqliteStore;

#[async_trait]
impl Audit for SqliteStore {
    async fn note(&self, note: &AuditNote, by: &Actor) -> Result<()> {
        let (note, by) = (note.clone(), by.clone());
        self.write("note", move |step| {
            let AuditNote { action, subject, after } = &note;
            audit::write(
                step.connection,
                step.now,
                &AuditLine::new(&by, action, subject, None, after.as_deref()),
            )
        })
        .await
    }

    async fn audit(&self, after: u64, limit: usize) -> Result<Vec<AuditEntry>> {
        let found = self.ask("audit", move |view| audit::entries(view.connection, after, limit)).await?;
        Ok(found.into_iter().map(|(entry, ..)| entry).collect())
    }

    async fn audit_about(&self, subjects: &[String], limit: usize) -> Result<Vec<AuditEntry>> {
        let subjects = subjects.to_vec();
        self.ask("audit_about", move |view| audit::about(view.connection, &subjects, limit)).await
    }

    async fn digest_key(&self) -> Result<DigestKey> {
        stored_digest_key(self).await
    }

    async fn audit_head(&self, number: Option<u64>) -> Result<Option<AuditHead>> {
        self.ask("audit_head", move |view| audit::head(view.connection, number)).await
    }

    async fn verify_audit(&self) -> Result<Option<AuditCheck>> {
        let mut check = AuditCheck::default();
        loop {
            let mut next = check;
            let page = self.scan("verify_audit", move |view| {
                let is_last = audit::verify_page(view.connection, &mut next)?;
                Ok((next, is_last))
            });
            let is_last;
            (check, is_last) = page.await?;
            if is_last {
                return Ok(Some(check));
            }
        }
    }
}
