//! Judges how a server carries out a statement, by its answer to `explain`.
//!
//! The answer has one of three shapes. The classic engine tells about a `find` at the top level, and about an aggregation in `$cursor`, the
//! stage that reads. The slot-based engine, from MongoDB 5.2 on, also carries out stages of an aggregation: its answer is at the top level
//! if it carries out all of them, and what it returns is then no measure of what was read. A `$group` returns a row for each group.

use bson::{Bson, Document};

use super::{number, part};

/// How many entries more than twice the returned ones a server may look at: it looks one further at the end of each range, and a `$in` has some.
const MORE: i64 = 30;

/// What is wrong with a plan, and its numbers.
pub(super) struct Judgement {
    pub(super) faults: Vec<&'static str>,
    pub(super) numbers: String,
}

/// Judges an answer. The statement skips so many documents, and may look at this many more if it is [bounded](super::Statement::bound).
pub(super) fn judge(explained: &Document, skip: i64, bound: i64) -> Judgement {
    let cursor = explained.get_array("stages").ok().and_then(|stages| stages.first()?.as_document());
    let found = cursor.map_or_else(|| explained.clone(), |stage| part(stage, "$cursor"));
    let (plan, stats) = (part(&found, "queryPlanner"), part(&found, "executionStats"));
    let mut stages = Vec::new();
    walk(&part(&plan, "winningPlan"), &mut |stage| {
        stages.push(stage.get_str("stage").unwrap_or_default().to_owned());
    });
    let used = used(&stats) + skip;
    let (keys, docs) = (number(stats.get("totalKeysExamined")), number(stats.get("totalDocsExamined")));
    let numbers = format!(
        "{keys} keys and {docs} documents for {used}, {} ms, {}",
        number(stats.get("executionTimeMillis")),
        stages.join(" < "),
    );
    let mut faults = Vec::new();
    if stages.is_empty() {
        faults.push("has no plan");
    }
    if stages.iter().any(|stage| stage == "COLLSCAN") {
        faults.push("reads the whole collection");
    }
    // A server may choose to sort what little there is.
    if stages.iter().any(|stage| stage == "SORT") && keys.max(docs) > MORE {
        faults.push("sorts");
    }
    if keys.max(docs) > 2 * used + bound + MORE {
        faults.push("looks at too much");
    }
    Judgement { faults, numbers }
}

/// How many documents or keys a statement has used: those that it returns, changes or groups.
fn used(stats: &Document) -> i64 {
    let mut used = number(stats.get("nReturned"));
    walk(&part(stats, "executionStages"), &mut |stage| {
        for name in ["nMatched", "nWouldModify", "nWouldDelete"] {
            used = used.max(number(stage.get(name)));
        }
        // Only the slot-based engine writes its stages like this.
        if stage.get_str("stage").is_ok_and(|name| name == "group") {
            used = used.max(number(part(stage, "inputStage").get("nReturned")));
        }
    });
    used
}

/// All stages of a plan, the outer ones first.
fn walk(plan: &Document, visit: &mut impl FnMut(&Document)) {
    if plan.contains_key("stage") {
        visit(plan);
    }
    for (_, inner) in plan {
        match inner {
            Bson::Document(inner) => walk(inner, visit),
            Bson::Array(list) => {
                list.iter().filter_map(Bson::as_document).for_each(|inner| walk(inner, visit));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;

    const LETTERS: i32 = 20_000;

    fn scan(stage: &str) -> Document {
        let keys = doc! { "queue": 1, "open": 1 };
        doc! { "stage": stage, "planNodeId": 1, "keyPattern": keys, "direction": "forward" }
    }

    /// An aggregation by the classic engine: the stage that reads is told apart from the others.
    fn classic(read: i32, returned: i32, stage: &str) -> Document {
        let cursor = doc! {
            "queryPlanner": { "winningPlan": { "stage": "PROJECTION_COVERED", "inputStage": scan(stage) } },
            "executionStats": {
                "nReturned": returned, "executionTimeMillis": 9,
                "totalKeysExamined": read, "totalDocsExamined": 0,
                "executionStages": { "stage": "PROJECTION_COVERED", "nReturned": returned },
            },
        };
        let stages =
            [doc! { "$cursor": cursor, "nReturned": returned }, doc! { "$group": {}, "nReturned": 2 }];
        doc! { "explainVersion": "1", "stages": stages.to_vec() }
    }

    /// The same by the slot-based engine, which carries out the `$group`: here two groups of what the index gives.
    fn slot_based(read: i32, grouped: i32, stage: &str) -> Document {
        let slots = |stage: &str, node: i32, returned: i32| {
            doc! { "stage": stage, "planNodeId": node, "nReturned": returned, "opens": 1, "isEOF": 1 }
        };
        let within = |mut outer: Document, inner: Document| {
            outer.insert("inputStage", inner);
            outer
        };
        let seek = within(slots("project", 3, grouped), slots("ixseek", 1, read));
        let group = within(slots("group", 3, 2), seek);
        let covered = doc! { "stage": "PROJECTION_COVERED", "planNodeId": 2, "inputStage": scan(stage) };
        doc! {
            "explainVersion": "2",
            "queryPlanner": {
                "namespace": "shop.lazaret_letters_sequences",
                "winningPlan": {
                    "queryPlan": { "stage": "GROUP", "planNodeId": 3, "inputStage": covered },
                    "slotBasedPlan": { "slots": "$$RESULT=s9", "stages": "[3] group [s7] [1] ixseek" },
                },
                "rejectedPlans": [{ "queryPlan": { "stage": "COLLSCAN" } }],
            },
            "executionStats": {
                "executionSuccess": true, "nReturned": 2, "executionTimeMillis": 12,
                "totalKeysExamined": read, "totalDocsExamined": 0,
                "executionStages": within(slots("project", 3, 2), group),
            },
        }
    }

    #[test]
    fn a_group_of_covered_keys_uses_all_of_them_in_both_engines() {
        for explained in [classic(LETTERS, LETTERS, "IXSCAN"), slot_based(LETTERS, LETTERS, "IXSCAN")] {
            let Judgement { faults, numbers } = judge(&explained, 0, 0);
            assert_eq!(faults, [] as [&str; 0], "{numbers}");
            assert!(numbers.starts_with("20000 keys and 0 documents for 20000"), "{numbers}");
            assert!(numbers.ends_with("PROJECTION_COVERED < IXSCAN"), "{numbers}");
        }
        // A part of an aggregation by one engine, and the rest by the other.
        let cursor = slot_based(LETTERS, LETTERS, "IXSCAN");
        let stages = [doc! { "$cursor": cursor, "nReturned": 2 }, doc! { "$sort": {} }];
        let both = doc! { "explainVersion": "2", "stages": stages.to_vec() };
        assert_eq!(judge(&both, 0, 0).faults, [] as [&str; 0]);
    }

    #[test]
    fn keys_that_no_group_gets_are_too_many_in_both_engines() {
        for explained in [classic(LETTERS, 100, "IXSCAN"), slot_based(LETTERS, 100, "IXSCAN")] {
            assert_eq!(judge(&explained, 0, 0).faults, ["looks at too much"]);
        }
    }

    #[test]
    fn a_collection_that_is_read_as_a_whole_is_found_in_both_engines() {
        for explained in [classic(0, 0, "COLLSCAN"), slot_based(0, 0, "COLLSCAN")] {
            assert_eq!(judge(&explained, 0, 0).faults, ["reads the whole collection"]);
        }
    }

    #[test]
    fn only_what_is_little_may_be_sorted() {
        let sorted = |keys: i32| {
            let sort = doc! { "stage": "SORT", "inputStage": scan("IXSCAN") };
            doc! {
                "queryPlanner": { "winningPlan": sort },
                "executionStats": { "nReturned": keys, "totalKeysExamined": keys, "totalDocsExamined": keys },
            }
        };
        assert_eq!(judge(&sorted(20), 0, 0).faults, [] as [&str; 0]);
        assert_eq!(judge(&sorted(2000), 0, 0).faults, ["sorts"]);
    }

    #[test]
    fn a_statement_uses_what_it_returns_skips_or_changes() {
        let explained = |stage: Document, returned: i32| {
            doc! {
                "queryPlanner": { "winningPlan": { "stage": "FETCH", "inputStage": scan("IXSCAN") } },
                "executionStats": {
                    "nReturned": returned, "totalKeysExamined": 200, "totalDocsExamined": 200,
                    "executionStages": stage,
                },
            }
        };
        let fetch = || doc! { "stage": "FETCH" };
        assert_eq!(judge(&explained(fetch(), 100), 0, 0).faults, [] as [&str; 0]);
        assert_eq!(judge(&explained(fetch(), 10), 90, 0).faults, [] as [&str; 0]);
        assert_eq!(judge(&explained(fetch(), 10), 0, 0).faults, ["looks at too much"]);
        let update = doc! { "stage": "UPDATE", "nMatched": 150, "inputStage": fetch() };
        assert_eq!(judge(&explained(update, 0), 0, 0).faults, [] as [&str; 0]);
        assert_eq!(judge(&explained(fetch(), 10), 0, 150).faults, [] as [&str; 0]);
        assert_eq!(judge(&doc! { "ok": 1 }, 0, 0).faults, ["has no plan"]);
    }
}
