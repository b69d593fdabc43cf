//! The checks of the log find what they are for, and nothing else.

use lazaret_core::policy::RetryPolicy;

use super::*;

/// The violations in a log of lines, a second apart, whose messages all have one key.
fn violations_in(fleet: bool, entries: &[(u32, Entry)]) -> Vec<String> {
    let record = |(line, (process, entry)): (u64, &(u32, Entry))| Record {
        process: *process,
        at: Duration::from_secs(line),
        entry: *entry,
    };
    let records: Vec<Record> = (0..).zip(entries).map(record).collect();
    let plan = Plan { seed: 1, messages: 3, keys: 1 };
    let retry = RetryPolicy { initial_delay: Duration::from_millis(1200), ..RetryPolicy::default() };
    let (scope, mut findings) = (Scope { plan, partitions: 8, retry, fleet }, Findings::default());
    check_log(&scope, &records, &mut findings);
    findings.violations
}

/// Those of one process.
fn violations(entries: &[Entry]) -> Vec<String> {
    violations_in(false, &entries.iter().map(|entry| (1, *entry)).collect::<Vec<_>>())
}

fn begin(message: u64, attempt: u32) -> Entry {
    Entry::Begin { message, attempt }
}

fn end(message: u64, attempt: u32, handled: bool) -> Entry {
    Entry::End { message, attempt, handled }
}

const NONE: Vec<String> = Vec::new();

#[test]
fn an_attempt_that_a_kill_aborted_may_be_repeated_by_the_next_process() {
    let log = [
        (1, begin(0, 1)),
        (1, end(0, 1, false)),
        (1, begin(0, 2)),
        (1, Entry::Killed),
        (2, begin(0, 2)),
        (2, end(0, 2, true)),
        (2, Entry::Killed),
        (3, begin(0, 2)),
        (3, end(0, 2, true)),
        (3, begin(1, 1)),
        (3, end(1, 1, true)),
    ];
    assert_eq!(violations_in(false, &log), NONE);
    assert_eq!(violations_in(true, &log), NONE);
}

#[test]
fn a_lost_lease_explains_one_repetition_of_its_key() {
    let handled = [begin(0, 1), end(0, 1, true)];
    let lost = [Entry::Lost { key: 0 }];
    assert_eq!(violations(&[&handled[..], &lost, &handled].concat()), NONE);
    // Logged beside the attempt, not before it.
    assert_eq!(violations(&[&handled[..], &handled, &lost].concat()), NONE);
    let twice = violations(&[&handled[..], &lost, &handled, &handled].concat());
    assert_eq!(twice.len(), 2, "{twice:?}");
    let other_process = [(1, lost[0]), (2, handled[0]), (2, handled[1]), (2, handled[0]), (2, handled[1])];
    assert_eq!(violations_in(false, &other_process).len(), 2);
    // Dropped in the middle, and closed before it is tried again.
    let dropped = [begin(0, 1), Entry::Lost { key: 0 }, Entry::Close { message: 0 }, begin(1, 1)];
    assert_eq!(violations(&dropped), NONE);
}

#[test]
fn every_violation_of_order_is_found() {
    let table: [(&str, Vec<Entry>); 9] = [
        ("before message 0 has ended", vec![begin(1, 1)]),
        ("before message 0 has ended", vec![begin(0, 1), end(0, 1, false), begin(1, 1)]),
        ("while message 0 is under way", vec![Entry::Close { message: 0 }, begin(0, 1), begin(1, 1)]),
        ("begins attempt 1 twice", vec![begin(0, 1), end(0, 1, false), begin(0, 1)]),
        ("which has handled it", vec![begin(0, 1), end(0, 1, true), begin(0, 2)]),
        ("after attempt 2", vec![begin(0, 1), end(0, 1, false), begin(0, 2), begin(0, 1)]),
        ("begins attempt 5", vec![begin(0, 5)]),
        ("is the least delay", vec![begin(0, 2), end(0, 2, false), begin(0, 3)]),
        ("was altered", vec![Entry::Altered { message: 0 }]),
    ];
    for (expected, log) in table {
        let found = violations(&log);
        assert!(found.iter().any(|violation| violation.contains(expected)), "{expected}: {found:?}");
    }
    let closed = [Entry::Close { message: 0 }, begin(1, 1), end(1, 1, true), begin(2, 1)];
    assert_eq!(violations(&closed), NONE);
    // 0.96 s is the least delay after the first attempt, and a line takes a second.
    assert_eq!(violations(&[begin(0, 1), end(0, 1, false), begin(0, 2)]), NONE);
}

#[test]
fn a_delay_ends_sooner_by_as_much_as_the_clock_was_set_forward() {
    let clock = |millis: i64| Entry::Clock { ahead: 1000 * millis };
    // 1.92 s is the least delay after the second attempt, and a line takes a second.
    let log = |set_to| [clock(0), begin(0, 2), clock(set_to), end(0, 2, false), begin(0, 3)];
    assert_eq!(violations(&log(1000)), NONE);
    for too_little in [500, 0, -1000] {
        assert_eq!(violations(&log(too_little)).len(), 1, "{too_little}");
    }
}

#[test]
fn two_processes_that_work_on_one_key_are_found() {
    let both = [(1, begin(0, 1)), (2, begin(0, 1))];
    let found = violations_in(true, &both);
    assert!(found.iter().any(|violation| violation.starts_with("I6")), "{found:?}");
    // One of them was dead, or stopped, or finds out that it has lost the key.
    let assigned = (1, Entry::Assigned { partition: 0 });
    for excuse in [(1, Entry::Killed), (1, Entry::Stopped), (1, Entry::Lost { key: 0 })] {
        assert_eq!(violations_in(true, &[assigned, both[0], excuse, both[1]]), NONE, "{excuse:?}");
    }
    for notice in [Entry::Lost { key: 0 }, Entry::Dropped { partition: 0 }, Entry::Assigned { partition: 0 }]
    {
        assert_eq!(violations_in(true, &[assigned, both[0], both[1], (1, notice)]), NONE, "{notice:?}");
    }
    // Revoked in good order, but only afterwards.
    let revoked = [assigned, both[0], both[1], (1, Entry::Revoked { partition: 0 })];
    assert_eq!(violations_in(true, &revoked).len(), 1);
}

#[test]
fn a_late_process_is_not_held_against_the_others() {
    let log = [
        (1, Entry::Assigned { partition: 0 }),
        (1, begin(0, 1)),
        (1, Entry::Stopped),
        (2, Entry::Assigned { partition: 0 }),
        (2, begin(0, 1)),
        (2, end(0, 1, false)),
        (2, begin(0, 2)),
        (2, end(0, 2, true)),
        // Woken.
        (1, end(0, 1, false)),
        (2, begin(1, 1)),
        (1, begin(1, 1)),
        (1, Entry::Dropped { partition: 0 }),
        (2, end(1, 1, true)),
    ];
    assert_eq!(violations_in(true, &log), NONE);
    let again = [&log[..], &[(1, begin(2, 1)), (2, begin(2, 1))]].concat();
    assert_eq!(violations_in(true, &again).len(), 1, "it knows now");
}

#[test]
fn a_woken_process_may_begin_one_lost_attempt_in_each_shard() {
    // I6
    let stopped =
        [(1, Entry::Assigned { partition: 0 }), (1, Entry::Stopped), (2, Entry::Assigned { partition: 0 })];
    let woken = |attempts| [&stopped[..], &vec![(1, begin(0, 1)); attempts][..]].concat();
    let (one_each, two_in_one) = (woken(shards()), woken(shards() + 1));
    assert_eq!(violations_in(true, &one_each), NONE);
    let found = violations_in(true, &two_in_one);
    assert_eq!(found, ["I6: process 1 was woken, and begins attempts of partitions that it has lost"]);
    let more = violations_in(true, &woken(3 * shards() + 1));
    assert_eq!(more.len(), 1, "told once for each stop: {more:?}");
    // Nobody took the partition, or it has it again.
    let kept = violations_in(true, &[&two_in_one[..2], &two_in_one[3..]].concat());
    assert!(!kept.iter().any(|violation| violation.contains("was woken")), "{kept:?}");
    let back = [&one_each[..], &[(1, Entry::Assigned { partition: 0 }), (1, begin(0, 1))]].concat();
    assert_eq!(violations_in(true, &back), NONE);
    // Each stop counts alone.
    assert_eq!(violations_in(true, &[&back[..], &one_each[1..]].concat()), NONE);
    assert_eq!(violations_in(true, &[&back[..], &two_in_one[1..]].concat()).len(), 1);
}
