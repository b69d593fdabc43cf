//! Decrypts what a store returns: letters that are shown, and letters that are executed.
//!
//! A letter that cannot be decrypted is shown without the content that is missing, and is never executed.

use std::collections::BTreeSet;

use lazaret_core::store::{
    AttemptNote, Certainty, Claim, EndsPage, PolledWork, Result, Settled, StoreError, WorkItem,
};
use lazaret_core::{Letter, LetterId, QueueName};

use crate::content::{Content, Opener, QueueNote, Unreadable};
use crate::error::NotOpened;
use crate::key_ring::{KeyError, KeyRing};

impl KeyRing {
    /// Decrypts content. A value under a data key that is not known makes the ring be read again, once. Returns what cannot be decrypted.
    pub(crate) async fn open_content<T: Content + Send>(
        &self,
        content: &mut T,
    ) -> std::result::Result<Vec<Unreadable>, KeyError> {
        let known = self.current();
        let (mut unreadable, is_all_known, waiting) = {
            let mut opener = Opener::new(&known);
            content.open(&mut opener);
            (opener.unreadable, opener.unknown.is_empty(), opener.waiting)
        };
        if is_all_known {
            return Ok(unreadable);
        }
        let newer = self.refresh(&known).await?.unwrap_or_default();
        let all = known.with_newer(&newer);
        let mut opener = Opener::again(&newer, &all, waiting);
        content.open(&mut opener);
        unreadable.extend(opener.unreadable);
        Ok(unreadable)
    }

    /// Decrypts what is shown.
    pub(crate) async fn open_shown<T: Content + Send>(
        &self,
        content: &mut T,
        operation: &'static str,
    ) -> Result<()> {
        let opened = self.open_content(content).await;
        opened.map(drop).map_err(|error| NotOpened::Keys(error).during(operation, Certainty::NotDone))
    }

    /// Decrypts letters whose content is looked at, and removes those that cannot be decrypted.
    pub(crate) async fn open_readable(
        &self,
        letters: &mut Vec<Letter>,
        operation: &'static str,
    ) -> Result<()> {
        let opened = self.open_content(letters).await;
        let unreadable =
            opened.map_err(|error| NotOpened::Keys(error).during(operation, Certainty::NotDone))?;
        let closed: BTreeSet<LetterId> = unreadable.iter().filter_map(|one| one.letter).collect();
        letters.retain(|letter| !closed.contains(&letter.id));
        Ok(())
    }

    /// Decrypts the notes of a queue.
    pub(crate) async fn open_notes(
        &self,
        queue: &QueueName,
        notes: Vec<AttemptNote>,
    ) -> Result<Vec<AttemptNote>> {
        let mut notes: Vec<QueueNote<'_>> = notes.into_iter().map(|note| QueueNote(queue, note)).collect();
        self.open_shown(&mut notes, "attempt_notes").await?;
        Ok(notes.into_iter().map(|QueueNote(_, note)| note).collect())
    }

    /// Decrypts a letter that a person has changed.
    pub(crate) async fn open_changed(&self, letter: &mut Letter, operation: &'static str) -> Result<()> {
        self.withheld.forget(letter.id);
        let opened = self.open_content(letter).await;
        // The change is durable.
        opened.map(drop).map_err(|error| NotOpened::Keys(error).during(operation, Certainty::MaybeDone))
    }

    /// Decrypts the letter of a claim.
    pub(crate) async fn open_claim(&self, claim: Claim, operation: &'static str) -> Result<Claim> {
        // The lease is durable.
        self.executable(claim).await.map_err(|error| error.during(operation, Certainty::MaybeDone))
    }

    /// Decrypts the letters of claims, and leaves out those that cannot be decrypted: their leases keep them out of the way of the others.
    pub(crate) async fn open_claims(
        &self,
        claims: Vec<Claim>,
        operation: &'static str,
    ) -> Result<Vec<Claim>> {
        let mut opened = Vec::with_capacity(claims.len());
        for claim in claims {
            opened.push(self.executable(claim).await);
        }
        undamaged(opened, operation)
    }

    /// Decrypts the letters of operations, as those of claims.
    pub(crate) async fn open_work(&self, work: PolledWork, operation: &'static str) -> Result<PolledWork> {
        let mut opened = Vec::with_capacity(work.items.len());
        for WorkItem { operation, claim } in work.items {
            let claim = self.executable(claim).await;
            opened.push(claim.map(|claim| WorkItem { operation, claim }));
        }
        Ok(PolledWork { items: undamaged(opened, operation)?, ..work })
    }

    /// Decrypts the letter behind a settled one. The settlement is durable and does not fail: a letter that cannot be decrypted may not run
    /// now, and the lease keeps it aside until it ends.
    pub(crate) async fn open_next(&self, settled: Settled) -> Settled {
        match settled {
            Settled::Next(mut next) => match self.whole(&mut next).await {
                Ok(()) => Settled::Next(next),
                Err(error) => {
                    let error = error.during("settle", Certainty::MaybeDone);
                    tracing::error!(%error, "letter behind a settled one not decrypted");
                    Settled::Blocked
                }
            },
            other => other,
        }
    }

    /// Decrypts the letters that ended. One that is damaged is left out; one whose key is missing waits for the key.
    pub(crate) async fn open_ends(&self, page: &mut EndsPage, operation: &'static str) -> Result<()> {
        let not_done = |error: NotOpened| error.during(operation, Certainty::NotDone);
        for end in &mut page.ends {
            let opened = self.open_content(&mut end.letter).await;
            let unreadable = opened.map_err(|error| not_done(NotOpened::Keys(error)))?;
            if let Some(first) = unreadable.iter().find(|unreadable| unreadable.needs_key()) {
                return Err(not_done(NotOpened::Unreadable(first.clone())));
            }
            if let Some(first) = unreadable.first() {
                tracing::error!(error = %first, "letter left out of the copies of dead letters");
                end.letter = None;
            }
        }
        Ok(())
    }

    async fn executable(&self, mut claim: Claim) -> std::result::Result<Claim, NotOpened> {
        self.whole(&mut claim.head).await?;
        Ok(claim)
    }

    /// Decrypts a letter that is executed: all of it, or it is withheld.
    async fn whole(&self, letter: &mut Letter) -> std::result::Result<(), NotOpened> {
        let id = letter.id;
        let unreadable = self.open_content(letter).await.map_err(NotOpened::Keys)?;
        match unreadable.into_iter().next() {
            None => {
                self.withheld.forget(id);
                Ok(())
            }
            Some(first) => {
                self.withheld.add(&letter.queue, id, &first);
                Err(NotOpened::Unreadable(first))
            }
        }
    }
}

/// Those that are decrypted. An error only if the data keys could not be read, and so none was.
fn undamaged<T>(opened: Vec<std::result::Result<T, NotOpened>>, operation: &'static str) -> Result<Vec<T>> {
    let (mut whole, mut failed) = (Vec::new(), None::<StoreError>);
    for one in opened {
        match one {
            Ok(one) => whole.push(one),
            Err(error) => {
                let is_damaged = matches!(error, NotOpened::Unreadable(_));
                // The lease is durable.
                let error = error.during(operation, Certainty::MaybeDone);
                tracing::error!(%error, "letter left out of a claim, not decrypted");
                if !is_damaged {
                    failed = Some(error);
                }
            }
        }
    }
    match failed {
        Some(error) if whole.is_empty() => Err(error),
        _ => Ok(whole),
    }
}
