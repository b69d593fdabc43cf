//! Decides how reading continues. Ids have a meaning only within one life of the table and its sequence (I1).
//!
//! An id is drawn again when the table is recreated, its sequence is set back, or a replica that lacks
//! the last transactions becomes the primary. Nothing that is known about such an id applies to its new
//! row. With [`Ack::Delete`], every row in the table is an unsettled one, so all rows are read again, in
//! a new incarnation. With [`Ack::Position`], rows stay, and only the row at the position shows whether
//! the rows before it were read. If it cannot be trusted, a person decides.

use std::ops::RangeInclusive;

use crate::checkpoint::Progress;
use crate::options::Ack;

/// The position before all ids.
pub(crate) const START: i64 = -1;

/// The identity in a position that records that other rows have ids of delivered rows. No table has this
/// identity.
pub(crate) const REPLACED: &str = "replaced";

/// The server's view of an outbox before it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Observed {
    /// The identity of the table, its sequence and the server's history.
    pub(crate) identity: String,
    /// The last id that was drawn.
    pub(crate) last_id: i64,
    /// The first row id at or below the position.
    pub(crate) first_settled: Option<i64>,
    /// The fingerprint of the row at the position, if there is one.
    pub(crate) anchor: Option<String>,
}

/// The way in which reading continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Continuation {
    /// After the position.
    Behind(i64),
    /// In a new incarnation, with this progress and this reason.
    Anew(Progress, String),
    /// Not at all, until a person has decided. The text is the reason.
    Refused(String),
}

/// Decides how reading continues. `start_over` is the position that a person gave up.
pub(crate) fn decide(
    ack: Ack,
    known: &Progress,
    observed: &Observed,
    start_over: Option<u64>,
) -> Continuation {
    let Some(highest) = known.highest() else {
        return match is_another(known, observed) {
            true => Continuation::Anew(Progress::default(), changed(known).to_owned()),
            false => Continuation::Behind(START),
        };
    };
    let answer = match ack {
        Ack::Delete => by_deletion(known, observed, highest),
        Ack::Position => by_position(known, observed, highest),
    };
    match answer {
        Continuation::Refused(_) if start_over == Some(highest) => {
            let why = format!("`start-over` gives up the position {highest}");
            Continuation::Anew(Progress::default(), why)
        }
        Continuation::Refused(why) => Continuation::Refused(format!(
            "{why}, or set `start-over: {highest}` to have every row of the table delivered"
        )),
        answer => answer,
    }
}

/// Describes the change of a different identity.
fn changed(known: &Progress) -> &'static str {
    match known.identity.as_deref() {
        Some(REPLACED) => "other rows had the ids of rows that were delivered",
        _ => "the table, its sequence or the history of the server is another one",
    }
}

fn is_another(known: &Progress, observed: &Observed) -> bool {
    known.identity.as_ref().is_some_and(|identity| *identity != observed.identity)
}

/// Returns `true` if fewer ids were drawn than are settled. The last id is [`START`] while none was drawn.
fn is_behind(observed: &Observed, highest: u64) -> bool {
    i128::from(observed.last_id) < i128::from(highest)
}

/// Returns the reason why ids that were already read were drawn again, or may be.
fn reuse(known: &Progress, observed: &Observed, highest: u64) -> Option<String> {
    if !is_behind(observed, highest) {
        return is_another(known, observed).then(|| changed(known).to_owned());
    }
    let Observed { last_id, .. } = observed;
    Some(format!("the last id that was drawn is {last_id}, but rows up to {highest} were read"))
}

/// Decides for deletion: settled rows are deleted, so every row in the table is unsettled.
fn by_deletion(known: &Progress, observed: &Observed, highest: u64) -> Continuation {
    let Observed { first_settled, .. } = observed;
    if let (Some(Ack::Position), Some(first), Some(position)) = (known.ack, first_settled, known.id) {
        return Continuation::Refused(format!(
            "rows from {first} to {position} were acknowledged by `ack: position`, and stay in the table; delete the rows up to {position}"
        ));
    }
    let left =
        first_settled.map(|id| format!("the row {id} is at or below the position, where all were deleted"));
    match reuse(known, observed, highest).or(left) {
        Some(why) => Continuation::Anew(Progress::default(), why),
        None => Continuation::Behind(after(known)),
    }
}

/// Decides for positions: settled rows stay until a job of the service removes them.
fn by_position(known: &Progress, observed: &Observed, highest: u64) -> Continuation {
    let reuse = reuse(known, observed, highest);
    let Observed { first_settled, anchor, .. } = observed;
    if let Some(why) = reuse.as_ref().filter(|_| is_behind(observed, highest)) {
        return Continuation::Refused(format!(
            "{why}: the sequence was set back, the table was created again, or the server lost transactions; rows with such ids would \
             be skipped; set the sequence to a higher value"
        ));
    }
    let is_same_row = anchor.as_ref().zip(known.anchor.as_ref()).map(|(found, known)| found == known);
    let is_trusted = is_same_row.unwrap_or(reuse.is_none());
    match (is_trusted, first_settled, known.id) {
        (false, Some(first), Some(position)) => {
            let what = match is_same_row {
                Some(_) => format!("the row {position} is another one than the one that was read"),
                None => format!("{}, and the row {position} is not there", changed(known)),
            };
            Continuation::Refused(format!(
                "{what}: the rows from {first} to {position} may not have been delivered; delete those that were"
            ))
        }
        _ => match reuse {
            // Ids that were settled beyond the position may belong to other rows by now.
            Some(why) => Continuation::Anew(Progress { settled: Vec::new(), ..known.clone() }, why),
            None => Continuation::Behind(after(known)),
        },
    }
}

/// Returns the id after which reading continues.
pub(crate) fn after(progress: &Progress) -> i64 {
    // Ids are signed 64-bit integers.
    progress.id.map_or(START, |id| i64::try_from(id).unwrap_or(i64::MAX))
}

/// Returns the last settled id, including ids beyond the position.
pub(crate) fn highest(id: Option<u64>, settled: &[RangeInclusive<u64>]) -> Option<u64> {
    settled.iter().map(|range| *range.end()).chain(id).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(ack: Ack) -> Progress {
        Progress {
            id: Some(7),
            settled: vec![9..=9],
            identity: Some("a".into()),
            anchor: Some("seven".into()),
            ack: Some(ack),
            incarnation: 0,
        }
    }

    fn observed() -> Observed {
        Observed { identity: "a".into(), last_id: 9, first_settled: None, anchor: None }
    }

    fn anew(continuation: Continuation) -> Progress {
        match continuation {
            Continuation::Anew(progress, _) => progress,
            other => panic!("{other:?}"),
        }
    }

    fn refused(continuation: Continuation) -> String {
        match continuation {
            Continuation::Refused(why) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_outbox_that_nothing_happened_to_is_read_behind_the_position() {
        for ack in [Ack::Delete, Ack::Position] {
            assert_eq!(decide(ack, &known(ack), &observed(), None), Continuation::Behind(7));
            assert_eq!(decide(ack, &Progress::default(), &observed(), None), Continuation::Behind(START));
            // A position of an earlier version has fewer fields.
            let early = Progress { identity: None, anchor: None, ack: None, ..known(ack) };
            assert_eq!(decide(ack, &early, &observed(), None), Continuation::Behind(7));
        }
        let kept = Observed { first_settled: Some(1), anchor: Some("seven".into()), ..observed() };
        assert_eq!(decide(Ack::Position, &known(Ack::Position), &kept, None), Continuation::Behind(7));
    }

    #[test]
    fn by_deletion_no_row_of_the_table_is_skipped() {
        // I1
        let known = known(Ack::Delete);
        for observed in [
            Observed { last_id: 3, ..observed() },
            Observed { last_id: 8, ..observed() },
            Observed { first_settled: Some(7), ..observed() },
            Observed { identity: "b".into(), ..observed() },
        ] {
            let progress = anew(decide(Ack::Delete, &known, &observed, None));
            assert_eq!(progress, Progress::default(), "{observed:?}");
        }
        let empty = Progress { id: None, settled: vec![], ..known };
        let recreated = Observed { identity: "b".into(), ..observed() };
        anew(decide(Ack::Delete, &empty, &recreated, None));
    }

    #[test]
    fn by_deletion_all_is_read_again_after_rows_were_replaced() {
        // I1: this holds for any new leader, even if nothing was settled before.
        for id in [None, Some(7)] {
            let known =
                Progress { id, settled: vec![], identity: Some(REPLACED.to_owned()), ..known(Ack::Delete) };
            let Continuation::Anew(progress, why) = decide(Ack::Delete, &known, &observed(), None) else {
                panic!("rows with ids up to the position would be skipped")
            };
            assert_eq!(progress, Progress::default());
            assert!(why.contains("other rows had the ids"), "{why}");
        }
    }

    #[test]
    fn rows_that_were_acknowledged_by_position_are_for_a_person_to_delete() {
        let observed = Observed { first_settled: Some(2), ..observed() };
        let why = refused(decide(Ack::Delete, &known(Ack::Position), &observed, None));
        assert!(why.contains("delete the rows up to 7") && why.contains("`start-over: 9`"), "{why}");
        assert_eq!(
            decide(Ack::Delete, &known(Ack::Position), &tests::observed(), None),
            Continuation::Behind(7)
        );
    }

    #[test]
    fn by_position_a_sequence_that_was_set_back_stops_the_source() {
        // I1
        let known = known(Ack::Position);
        for last_id in [-1, 3, 8] {
            let back = Observed { last_id, identity: "b".into(), ..observed() };
            let why = refused(decide(Ack::Position, &known, &back, None));
            assert!(why.contains("rows up to 9 were read"), "{why}");
            assert!(matches!(decide(Ack::Position, &known, &back, Some(8)), Continuation::Refused(_)));
            assert_eq!(anew(decide(Ack::Position, &known, &back, Some(9))), Progress::default());
        }
    }

    #[test]
    fn by_position_another_row_at_the_position_stops_the_source() {
        // I1: writers have caught up.
        let known = known(Ack::Position);
        let other = Observed { first_settled: Some(1), anchor: Some("another".into()), ..observed() };
        let why = refused(decide(Ack::Position, &known, &other, None));
        assert!(why.contains("the row 7 is another one") && why.contains("from 1 to 7"), "{why}");
        anew(decide(Ack::Position, &known, &other, Some(9)));
        let gone = Observed { identity: "b".into(), anchor: None, ..other };
        let why = refused(decide(Ack::Position, &known, &gone, None));
        assert!(why.contains("the row 7 is not there"), "{why}");
    }

    #[test]
    fn by_position_a_faithful_copy_is_read_on_and_what_was_settled_beyond_is_forgotten() {
        // I1: a replica may lack the transactions of the rows beyond, and assign their ids again.
        let known = known(Ack::Position);
        let copy = Observed {
            identity: "b".into(),
            first_settled: Some(1),
            anchor: Some("seven".into()),
            ..observed()
        };
        let progress = anew(decide(Ack::Position, &known, &copy, None));
        assert_eq!((progress.id, progress.settled.len()), (Some(7), 0));
        // There is no row at or below the position, so nothing can be skipped.
        let cleaned = Observed { identity: "b".into(), ..observed() };
        assert_eq!(anew(decide(Ack::Position, &known, &cleaned, None)).id, Some(7));
    }
}
