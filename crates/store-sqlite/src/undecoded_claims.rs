//! Claims as the writer hands them over: their callers decode the letters.
//!
//! A damaged letter fails alone. Its lease keeps it out of the way of the others, until it ends and the letter is claimed again.

use lazaret_core::Letter;
use lazaret_core::store::{Claim, Lease, PolledWork, Result, StoreError};

use crate::rows::UndecodedLetter;

/// A [`Claim`] of a letter that is not decoded.
pub(crate) struct UndecodedClaim {
    pub(crate) lease: Lease,
    pub(crate) head: UndecodedLetter,
    pub(crate) interrupted: bool,
    pub(crate) lost: bool,
}

impl UndecodedClaim {
    /// Decodes the letter.
    pub(crate) fn decode(self, operation: &'static str) -> Result<Claim> {
        let Self { lease, head, interrupted, lost } = self;
        Ok(Claim { lease, head: decode(head, operation)?, interrupted, lost })
    }

    /// Decodes the letters of claims.
    pub(crate) fn decode_all(claims: Vec<Self>, operation: &'static str) -> Result<Vec<Claim>> {
        undamaged(claims.into_iter().map(|claim| claim.decode(operation)))
    }
}

/// [`PolledWork`] with letters that are not decoded.
pub(crate) struct UndecodedWork {
    /// The work. Its letters lack what their bodies hold.
    pub(crate) work: PolledWork,
    /// The bodies of its letters, in their order.
    pub(crate) bodies: Vec<Vec<u8>>,
}

impl UndecodedWork {
    /// Decodes the letters.
    pub(crate) fn decode(self, operation: &'static str) -> Result<PolledWork> {
        let Self { work, bodies } = self;
        let items = work.items.into_iter().zip(bodies).map(|(mut item, body)| {
            let letter = item.claim.head;
            item.claim.head = decode(UndecodedLetter { letter, body }, operation)?;
            Ok(item)
        });
        Ok(PolledWork { items: undamaged(items)?, ..work })
    }
}

fn decode(letter: UndecodedLetter, operation: &'static str) -> Result<Letter> {
    letter.decode().map_err(|fault| {
        let error = fault.into_error(operation);
        // Its lease is durable.
        StoreError::maybe(error.kind(), operation, error.context().to_owned())
    })
}

/// Those that are not damaged, or the error if all are.
fn undamaged<T>(decoded: impl Iterator<Item = Result<T>>) -> Result<Vec<T>> {
    let (mut whole, mut damaged) = (Vec::new(), Vec::new());
    for one in decoded {
        match one {
            Ok(one) => whole.push(one),
            Err(error) => damaged.push(error),
        }
    }
    if whole.is_empty()
        && let Some(error) = damaged.pop()
    {
        return Err(error);
    }
    for error in damaged {
        tracing::error!(%error, "a damaged letter was left out of a claim");
    }
    Ok(whole)
}
