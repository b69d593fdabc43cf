//! Checks what the tables saw: only the process that took a partition, a sequence or an inbox last writes what belongs to it.
//!
//! A process that is woken after its lease may still end attempts. What it sends of them must be refused: here is whether it was.

use std::collections::HashMap;

use super::Findings;

/// A note that a transaction left in the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    /// The number of the transaction.
    pub(crate) transaction: i64,
    /// The process; `None` for the operator, who needs no lease.
    pub(crate) process: Option<u32>,
    pub(crate) act: Act,
    /// The kind of thing and its number, such as partition 3.
    pub(crate) thing: (String, i64),
    /// What was written or taken, for people.
    pub(crate) what: String,
}

/// What a transaction did with a thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Act {
    /// It owns the thing from now on.
    Takes,
    /// It writes what only the owner may write.
    Writes,
}

/// Checks the notes, which are in the order of the commits for each thing. Within a transaction what it takes goes first: a claim may
/// charge the letter that it claims.
pub(super) fn check_writes(notes: &[Note], findings: &mut Findings) {
    let mut first: HashMap<i64, usize> = HashMap::new();
    for (place, note) in notes.iter().enumerate() {
        first.entry(note.transaction).or_insert(place);
    }
    let mut ordered: Vec<&Note> = notes.iter().collect();
    // Stable: otherwise in the order of the notes.
    ordered.sort_by_key(|note| (first[&note.transaction], note.act));
    let mut owners: HashMap<&(String, i64), u32> = HashMap::new();
    for note in ordered {
        let Some(process) = note.process else { continue };
        match note.act {
            Act::Takes => {
                owners.insert(&note.thing, process);
            }
            Act::Writes => {
                findings.writes += 1;
                let owner = owners.get(&note.thing).copied();
                if owner != Some(process) {
                    let ((thing, number), what) = (&note.thing, &note.what);
                    let owner = owner.map_or("nobody".to_owned(), |owner| format!("process {owner}"));
                    findings.violated(|| {
                        format!(
                            "I6: process {process} wrote the {what}, and {thing} {number} belonged to {owner}"
                        )
                    });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(transaction: i64, process: Option<u32>, act: Act, partition: i64) -> Note {
        let thing = ("partition".to_owned(), partition);
        Note { transaction, process, act, thing, what: "letter of m-1".to_owned() }
    }

    fn violations(notes: &[Note]) -> Vec<String> {
        let mut findings = Findings::default();
        check_writes(notes, &mut findings);
        findings.violations
    }

    #[test]
    fn the_last_one_that_took_it_may_write() {
        let notes = [
            note(1, Some(1), Act::Takes, 0),
            note(1, Some(1), Act::Takes, 1),
            note(2, Some(1), Act::Writes, 0),
            note(3, Some(2), Act::Takes, 0),
            note(4, Some(2), Act::Writes, 0),
            note(5, Some(1), Act::Writes, 1),
        ];
        assert_eq!(violations(&notes), Vec::<String>::new());
    }

    #[test]
    fn a_woken_process_that_still_writes_is_found() {
        let notes = [
            note(1, Some(1), Act::Takes, 0),
            note(2, Some(2), Act::Takes, 0),
            note(3, Some(1), Act::Writes, 0),
            note(4, Some(2), Act::Writes, 0),
        ];
        let found = violations(&notes);
        assert_eq!(found, ["I6: process 1 wrote the letter of m-1, and partition 0 belonged to process 2"]);
        let found = violations(&[note(1, Some(1), Act::Writes, 0)]);
        assert_eq!(found, ["I6: process 1 wrote the letter of m-1, and partition 0 belonged to nobody"]);
    }

    #[test]
    fn a_transaction_may_take_and_write_and_an_operator_needs_nothing() {
        let notes = [
            note(1, Some(1), Act::Writes, 0),
            note(1, Some(1), Act::Takes, 0),
            note(2, None, Act::Writes, 0),
            note(3, Some(1), Act::Writes, 0),
        ];
        assert_eq!(violations(&notes), Vec::<String>::new());
    }
}
