//! Tells what an adoption would do, without writing anything.

use lazaret_core::MessageId;
use lazaret_core::store::LetterStore;

use crate::error::AdoptErrorKind;
use crate::progress::{LISTED_LIMIT, Tally};
use crate::source::{Content, Cursor, DeadLetterSource};
use crate::target::Target;

/// Reads everything, and looks up which messages have a letter. Returns the counts, and the addresses of unknown records: the first
/// hundred. Copies of one message are neighbours in every source.
pub(crate) async fn preview<S, D>(
    store: &S,
    target: &Target,
    source: &mut D,
) -> Result<(Tally, Vec<String>), AdoptErrorKind>
where
    S: LetterStore + ?Sized,
    D: DeadLetterSource<Cursor: Cursor>,
{
    source.open(D::Cursor::default()).await?;
    let (mut counts, mut unknown_at) = (Tally::default(), Vec::new());
    let mut last: Option<MessageId> = None;
    loop {
        let batch = source.read().await?;
        if batch.is_empty() {
            return Ok((counts, unknown_at));
        }
        let mut letters = Vec::new();
        for entry in batch {
            counts.read += 1;
            match entry.content {
                Content::Closed => counts.closed += 1,
                Content::Unknown(reason) => {
                    counts.unknown += 1;
                    if unknown_at.len() < LISTED_LIMIT {
                        let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
                        unknown_at.push(format!("{}{reason}", entry.address));
                    }
                }
                Content::Letter(letter) if target.is_foreign(&letter) => counts.foreign += 1,
                Content::Letter(letter) => letters.push(letter),
            }
        }
        let ids: Vec<MessageId> = letters.iter().map(|letter| letter.message.id.clone()).collect();
        let known = store.lookup(&target.queue, &ids).await.map_err(AdoptErrorKind::Store)?;
        for (letter, known) in letters.into_iter().zip(known) {
            counts.damaged += u64::from(!letter.warnings.is_empty());
            let is_copy = last.as_ref() == Some(&letter.message.id);
            match known.is_some() || is_copy {
                true => counts.already_there += 1,
                false => counts.adopted += 1,
            }
            last = Some(letter.message.id);
        }
    }
}
