//! Decides where a stream continues, with pure functions of a checkpoint.

use lazaret_core::store::Checkpoint;

use crate::checkpoint::{is_invalidated, is_seen_after_processed};
use crate::position::StreamPosition;

/// An anchor of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnchorKind {
    Processed,
    Seen,
}

/// A position at which the stream may be opened.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Candidate {
    pub(crate) position: StreamPosition,
    pub(crate) kind: AnchorKind,
    /// Whether the position is an invalidation. The server accepts it only to start after it.
    pub(crate) after_invalidation: bool,
}

impl Candidate {
    pub(crate) fn new(position: StreamPosition, kind: AnchorKind) -> Self {
        let after_invalidation = position.is_invalidation();
        Self { position, kind, after_invalidation }
    }
}

/// Returns the positions to try, in order. Empty if the stream was never started.
///
/// No unsettled event may be skipped (I1). The processed anchor never skips one. The seen anchor skips
/// none if it was certified after the stored processed anchor. Otherwise it is older, or this is
/// unknown, and it is not used.
///
/// A server that certifies positions returns the invalidation itself until it has a later position. Both
/// anchors may therefore be invalidations. The processed anchor is marked as one, and on most servers
/// the token also shows it.
pub(crate) fn candidates(checkpoint: &Checkpoint) -> Result<Vec<Candidate>, String> {
    let read = |anchor: &Option<lazaret_core::store::Anchor>, kind| {
        let Some(anchor) = anchor else { return Ok(None) };
        let position = StreamPosition::from_bytes(&anchor.token)?;
        Ok::<_, String>(Some(Candidate::new(position, kind)))
    };
    let processed = read(&checkpoint.processed, AnchorKind::Processed)?;
    let seen = read(&checkpoint.seen, AnchorKind::Seen)?;
    let Some(mut processed) = processed else { return Ok(seen.into_iter().collect()) };
    processed.after_invalidation |= is_invalidated(checkpoint);
    let seen = seen.filter(|seen| is_seen_after_processed(checkpoint) && seen.position != processed.position);
    Ok(seen.into_iter().chain([processed]).collect())
}

#[cfg(test)]
mod tests {
    use bson::doc;
    use jiff::Timestamp;
    use lazaret_core::store::Anchor;

    use super::*;

    fn anchor(data: &str) -> Anchor {
        let token = StreamPosition::After(doc! { "_data": data }).to_bytes();
        Anchor { token, at: Timestamp::UNIX_EPOCH }
    }

    fn kinds(checkpoint: &Checkpoint) -> Vec<AnchorKind> {
        candidates(checkpoint).unwrap().into_iter().map(|candidate| candidate.kind).collect()
    }

    #[test]
    fn a_stream_that_was_never_started_has_no_position() {
        assert_eq!(kinds(&Checkpoint::default()), []);
    }

    #[test]
    fn before_the_first_event_the_seen_anchor_is_the_start() {
        let checkpoint = Checkpoint { seen: Some(anchor("01")), ..Checkpoint::default() };
        assert_eq!(kinds(&checkpoint), [AnchorKind::Seen]);
    }

    #[test]
    fn a_seen_anchor_is_used_only_if_it_was_certified_behind_the_processed_one() {
        // I1
        let mut checkpoint =
            Checkpoint { processed: Some(anchor("02")), seen: Some(anchor("03")), ..Checkpoint::default() };
        assert_eq!(kinds(&checkpoint), [AnchorKind::Processed], "nobody certified it");
        checkpoint.metadata.insert("seen-after".into(), r#"{"_data":"01"}"#.into());
        assert_eq!(kinds(&checkpoint), [AnchorKind::Processed], "events were settled since");
        checkpoint.metadata.insert("seen-after".into(), r#"{"_data":"02"}"#.into());
        assert_eq!(kinds(&checkpoint), [AnchorKind::Seen, AnchorKind::Processed]);
    }

    #[test]
    fn an_invalidated_stream_starts_after_the_invalidation() {
        let mut checkpoint = Checkpoint { processed: Some(anchor("02")), ..Checkpoint::default() };
        checkpoint.metadata.insert("invalidated".into(), "true".into());
        let all = candidates(&checkpoint).unwrap();
        assert!(all.len() == 1 && all[0].after_invalidation);
    }

    #[test]
    fn a_position_that_was_certified_behind_an_invalidation_is_tried_first() {
        let mut checkpoint =
            Checkpoint { processed: Some(anchor("02")), seen: Some(anchor("03")), ..Checkpoint::default() };
        checkpoint.metadata.insert("invalidated".into(), "true".into());
        checkpoint.metadata.insert("seen-after".into(), r#"{"_data":"02"}"#.into());
        let flags = |checkpoint: &Checkpoint| -> Vec<_> {
            let all = candidates(checkpoint).unwrap();
            all.iter().map(|candidate| (candidate.kind, candidate.after_invalidation)).collect()
        };
        assert_eq!(flags(&checkpoint), [(AnchorKind::Seen, false), (AnchorKind::Processed, true)]);
        checkpoint.seen = Some(anchor("02"));
        assert_eq!(flags(&checkpoint), [(AnchorKind::Processed, true)], "it is the invalidation itself");
        checkpoint.metadata.insert("seen-after".into(), r#"{"_data":"01"}"#.into());
        assert_eq!(flags(&checkpoint), [(AnchorKind::Processed, true)], "it was certified before");
    }

    #[test]
    fn the_token_of_an_invalidation_needs_no_mark() {
        let data = "8267C867A2000000192B042C0100296F5A1004D3284E04D8914467A2160201812E4C4C04";
        for checkpoint in [
            Checkpoint { seen: Some(anchor(data)), ..Checkpoint::default() },
            Checkpoint { processed: Some(anchor(data)), ..Checkpoint::default() },
        ] {
            assert!(candidates(&checkpoint).unwrap()[0].after_invalidation);
        }
    }

    #[test]
    fn a_checkpoint_of_another_source_is_refused() {
        let foreign = Anchor { token: r#"{"version":2}"#.into(), at: Timestamp::UNIX_EPOCH };
        assert!(candidates(&Checkpoint { processed: Some(foreign), ..Checkpoint::default() }).is_err());
    }
}
