//! Hand-offs, grants, horizons, look-ups and notes on attempts.

use lazaret_core::store::{
    Act, AttemptNote, ErrorKind, GrantFence, HandOff, Limits, Placed, Placement, Requeue, Settlement, Store,
};
use lazaret_core::{Letter, LetterId, LetterState, Partition};

use super::fixture::{Fixture, failure, kind, operator, requeued, resolve};
use crate::suite::secs;

fn item(letter: Letter, placement: Placement) -> HandOff {
    HandOff { letter, placement, grant: None }
}

pub async fn a_message_handed_off_twice_has_one_letter<S: Store>(t: Fixture<S>) {
    // I8
    let letter = t.retrying("a", "1", secs(5));
    assert_eq!(t.open(letter.clone()).await, Placed::Opened);
    t.advance(secs(1));
    assert_eq!(t.open(letter.clone()).await, Placed::Held(LetterState::Retrying));
    assert_eq!(t.behind(letter).await, Placed::Held(LetterState::Retrying));
    assert_eq!(t.size("a").await, 1);
}

pub async fn a_message_whose_letter_was_closed_is_held_closed<S: Store>(t: Fixture<S>) {
    // I8: redelivery after a resolve is a duplicate, whichever way it is offered.
    for (message, settlement, state) in [
        ("1", resolve(), LetterState::Resolved),
        ("2", Settlement::Evict("why".into()), LetterState::Evicted),
        ("3", Settlement::Skip("why".into()), LetterState::Skipped),
    ] {
        let letter = t.dead("a", message);
        t.open(letter.clone()).await;
        let claim = t.claim("a", "w").await.unwrap();
        t.settle(&claim, &claim.head, settlement).await.unwrap();
        assert_eq!(t.open(letter.clone()).await, Placed::Held(state));
        assert_eq!(t.behind(letter).await, Placed::Held(state));
        assert!(!t.contains("a").await);
    }
}

pub async fn a_held_letter_is_not_changed<S: Store>(t: Fixture<S>) {
    let before = t.enqueue("a", "1").await;
    t.advance(secs(9));
    let mut again = t.retrying("a", "1", secs(1));
    again.diagnostics.insert("new".into(), "1".into());
    assert_eq!(t.open(again).await, Placed::Held(LetterState::Dead));
    assert_eq!(t.get("1").await, before);
}

pub async fn the_store_gives_index_and_times<S: Store>(t: Fixture<S>) {
    let mut letter = t.dead("a", "1");
    letter.index = 77;
    t.advance(secs(10));
    t.open(letter).await;
    t.open(t.dead("a", "2")).await;
    let letters = t.list("a").await;
    assert!(letters[0].index < letters[1].index);
    for letter in letters {
        assert_eq!((letter.enqueued_at, letter.last_touched_at), (t.now(), t.now()));
    }
}

pub async fn the_index_grows_on_after_a_sequence_was_closed<S: Store>(t: Fixture<S>) {
    // Otherwise a letter that is restored could meet another one in its old place.
    let old = t.enqueue("a", "old").await;
    t.act("old", Act::Evict).await.unwrap();
    let new = t.enqueue("a", "new").await;
    assert!(new.index > old.index);
}

pub async fn a_skipped_message_blocks_no_other<S: Store>(t: Fixture<S>) {
    let mut letter = t.waiting("a", "1");
    letter.state = LetterState::Skipped;
    letter.cause = Some(failure("not for us"));
    assert_eq!(t.put(letter.clone(), Placement::Closed).await, Placed::Closed);
    assert!(!t.contains("a").await);
    assert!(t.opened(10).await.is_empty());
    assert_eq!(t.state("1").await, LetterState::Skipped);
    assert_eq!(t.store.counts(&t.queue).await.unwrap().of(LetterState::Skipped), 1);
    assert_eq!(t.put(letter, Placement::Closed).await, Placed::Held(LetterState::Skipped));
    // I11: left out on purpose, with a durable trace that says so. Once.
    let audit = t.audit().await;
    assert_eq!(audit.len(), 1);
    assert_eq!((audit[0].action.as_str(), audit[0].by.who.as_str()), ("skip", "lazaret"));
    assert_eq!(audit[0].subject, t.id_of("1").to_string());
    // The message stays in the letter: an audit can be neither encrypted nor erased.
    assert_eq!(audit[0].by.why, failure("not for us").headline());
    assert_eq!(t.get("1").await.cause.unwrap().message, "not for us");
}

pub async fn a_state_that_does_not_fit_its_placement_is_refused<S: Store>(t: Fixture<S>) {
    let mut closed = t.dead("a", "1");
    closed.state = LetterState::Resolved;
    assert_eq!(kind(t.try_put(closed, Placement::Open, &Limits::NONE).await), ErrorKind::Invalid);
    let open = t.dead("a", "2");
    assert_eq!(kind(t.try_put(open, Placement::Closed, &Limits::NONE).await), ErrorKind::Invalid);
    assert!(!t.contains("a").await);
}

pub async fn the_answers_of_a_batch_stand_in_its_order<S: Store>(t: Fixture<S>) {
    t.enqueue("open", "0").await;
    let held = t.dead("open", "0");
    let mut skipped = t.waiting("b", "4");
    skipped.state = LetterState::Skipped;
    let limits = Limits { max_sequences: Some(2), max_sequence_size: Some(2) };
    let items = vec![
        item(held, Placement::Open),
        item(t.waiting("absent", "1"), Placement::Behind),
        item(t.waiting("open", "2"), Placement::Behind),
        item(t.waiting("open", "3"), Placement::Behind),
        item(skipped, Placement::Closed),
        item(t.dead("new", "5"), Placement::Open),
        item(t.dead("newer", "6"), Placement::Open),
        item(t.waiting("new", "7"), Placement::Behind),
    ];
    let answers = t.store.hand_off(&t.queue, &limits, items).await.unwrap();
    let shown: Vec<String> = answers
        .iter()
        .map(|answer| match answer {
            Ok(Placed::NotOpen(_)) => "not open".into(),
            Ok(placed) => format!("{placed:?}"),
            Err(error) => format!("{:?}", error.kind()),
        })
        .collect();
    assert_eq!(shown, ["Held(Dead)", "not open", "Appended", "Full", "Closed", "Opened", "Full", "Appended"]);
}

pub async fn a_batch_is_stored_in_its_order<S: Store>(t: Fixture<S>) {
    // I2
    let items = (0..100).map(|n| {
        let sequence = ["a", "b", "c"][n % 3];
        let placement = if n < 3 { Placement::Open } else { Placement::Behind };
        let letter =
            if n < 3 { t.dead(sequence, &n.to_string()) } else { t.waiting(sequence, &n.to_string()) };
        item(letter, placement)
    });
    let answers = t.store.hand_off(&t.queue, &Limits::NONE, items.collect()).await.unwrap();
    assert_eq!(answers.len(), 100);
    for (n, sequence) in ["a", "b", "c"].iter().enumerate() {
        let expected: Vec<String> = (n..100).step_by(3).map(|n| n.to_string()).collect();
        assert_eq!(t.messages(sequence).await, expected);
    }
}

pub async fn an_empty_batch_is_no_error<S: Store>(t: Fixture<S>) {
    assert!(t.store.hand_off(&t.queue, &Limits::NONE, vec![]).await.unwrap().is_empty());
}

pub async fn a_refused_message_leaves_no_trace_and_may_come_again<S: Store>(t: Fixture<S>) {
    // I9
    let limits = Limits { max_sequences: Some(1), max_sequence_size: None };
    t.enqueue("a", "1").await;
    let letter = t.dead("b", "2");
    assert_eq!(kind(t.try_put(letter.clone(), Placement::Open, &limits).await), ErrorKind::Full);
    assert_eq!(t.store.lookup(&t.queue, &["2".into()]).await.unwrap(), [None]);
    t.act("1", Act::Resolve).await.unwrap();
    assert_eq!(t.try_put(letter, Placement::Open, &limits).await.unwrap(), Placed::Opened);
}

pub async fn an_old_grant_can_hand_off_nothing<S: Store>(t: Fixture<S>) {
    // I6
    let old = t.store.assign(&t.queue, &[t.partition()]).await.unwrap().remove(0);
    let new = t.store.assign(&t.queue, &[t.partition()]).await.unwrap().remove(0);
    assert!(new.fence > old.fence);
    for placement in [Placement::Open, Placement::Behind] {
        let late = t.under_grant(t.dead("a", "1"), placement, old.fence).await;
        assert_eq!(kind(late), ErrorKind::Fenced);
    }
    assert!(!t.contains("a").await);
    assert_eq!(t.under_grant(t.dead("a", "1"), Placement::Open, new.fence).await.unwrap(), Placed::Opened);
    // The grant is checked first: a late owner does not learn what is held.
    assert_eq!(kind(t.under_grant(t.dead("a", "1"), Placement::Open, old.fence).await), ErrorKind::Fenced);
}

pub async fn a_grant_that_was_never_given_can_hand_off_nothing<S: Store>(t: Fixture<S>) {
    assert_eq!(kind(t.under_grant(t.dead("a", "1"), Placement::Open, 1).await), ErrorKind::Fenced);
    assert!(!t.contains("a").await);
}

pub async fn grants_of_other_partitions_and_queues_stay<S: Store>(t: Fixture<S>) {
    let mine = t.store.assign(&t.queue, &[t.partition()]).await.unwrap().remove(0);
    t.store.assign(&t.queue, &[Partition::new("orders", 1)]).await.unwrap();
    t.store.assign(&t.queue, &[Partition::new("payments", 0)]).await.unwrap();
    t.store.assign(&"other/other".into(), &[t.partition()]).await.unwrap();
    assert_eq!(t.under_grant(t.dead("a", "1"), Placement::Open, mine.fence).await.unwrap(), Placed::Opened);
}

pub async fn grants_stand_in_the_order_of_the_partitions<S: Store>(t: Fixture<S>) {
    let partitions: Vec<Partition> = [2, 0, 1].map(|index| Partition::new("orders", index)).into();
    let grants = t.store.assign(&t.queue, &partitions).await.unwrap();
    let granted: Vec<Partition> = grants.into_iter().map(|grant| grant.partition).collect();
    assert_eq!(granted, partitions);
}

pub async fn one_bad_grant_spoils_no_other_sequence<S: Store>(t: Fixture<S>) {
    let old = t.store.assign(&t.queue, &[t.partition()]).await.unwrap().remove(0);
    let new = t.store.assign(&t.queue, &[t.partition()]).await.unwrap().remove(0);
    let under = |fence, letter| {
        let grant = Some(GrantFence { partition: t.partition(), fence, turn: 0 });
        HandOff { letter, placement: Placement::Open, grant }
    };
    let items = vec![under(new.fence, t.dead("a", "1")), under(old.fence, t.dead("b", "2"))];
    let mut answers = t.store.hand_off(&t.queue, &Limits::NONE, items).await.unwrap();
    assert_eq!(kind(answers.remove(1)), ErrorKind::Fenced);
    assert_eq!(answers.remove(0).unwrap(), Placed::Opened);
}

pub async fn behind_a_refused_message_nothing_of_its_sequence_is_stored<S: Store>(t: Fixture<S>) {
    // I2: otherwise what is behind would overtake what has to come again.
    let old = t.store.assign(&t.queue, &[t.partition()]).await.unwrap().remove(0);
    t.store.assign(&t.queue, &[t.partition()]).await.unwrap();
    t.enqueue("a", "before").await;
    let mut refused = item(t.waiting("a", "refused"), Placement::Behind);
    refused.grant = Some(GrantFence { partition: t.partition(), fence: old.fence, turn: 0 });
    let items = vec![
        item(t.waiting("a", "first"), Placement::Behind),
        refused,
        item(t.waiting("a", "behind"), Placement::Behind),
        item(t.dead("b", "elsewhere"), Placement::Open),
        item(t.dead("a", "last"), Placement::Open),
    ];
    let answers = t.store.hand_off(&t.queue, &Limits::NONE, items).await.unwrap();
    let stored: Vec<bool> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(stored, [true, false, false, true, false]);
    assert_eq!(t.messages("a").await, ["before", "first"]);
    assert_eq!(t.store.lookup(&t.queue, &["behind".into(), "last".into()]).await.unwrap(), [None, None]);
}

pub async fn a_current_grant_stays_behind_a_message_of_an_old_one<S: Store>(t: Fixture<S>) {
    // I6: a writer may hold a message of the assignment before, and one of the same key that was delivered again.
    let old = t.store.assign(&t.queue, &[t.partition()]).await.unwrap().remove(0);
    let new = t.store.assign(&t.queue, &[t.partition()]).await.unwrap().remove(0);
    let under = |fence, letter| {
        let grant = Some(GrantFence { partition: t.partition(), fence, turn: 0 });
        HandOff { letter, placement: Placement::Open, grant }
    };
    let again = under(new.fence, t.dead("a", "2"));
    let items = vec![under(old.fence, t.dead("a", "1")), again.clone()];
    let mut answers = t.store.hand_off(&t.queue, &Limits::NONE, items).await.unwrap();
    assert_eq!(kind(answers.remove(1)), ErrorKind::Conflict);
    assert_eq!(kind(answers.remove(0)), ErrorKind::Fenced);
    let mut answers = t.store.hand_off(&t.queue, &Limits::NONE, vec![again]).await.unwrap();
    assert_eq!(answers.remove(0).unwrap(), Placed::Opened);
}

pub async fn the_horizon_is_the_highest_offset_ever_handed_off<S: Store>(t: Fixture<S>) {
    let grant = t.store.assign(&t.queue, &[t.partition()]).await.unwrap().remove(0);
    assert_eq!(grant.horizon, None);
    let (early, late) = (t.dead("a", "early"), t.dead("a", "late"));
    let (first, last) = (early.message.position.offset, late.message.position.offset);
    assert!(first < last);
    t.under_grant(late, Placement::Open, grant.fence).await.unwrap();
    t.under_grant(early, Placement::Open, grant.fence).await.unwrap();
    let again = t.store.assign(&t.queue, &[t.partition(), Partition::new("orders", 1)]).await.unwrap();
    assert_eq!((again[0].horizon, again[1].horizon), (Some(last), None));
}

pub async fn the_horizon_stays_when_its_letters_are_closed<S: Store>(t: Fixture<S>) {
    // I8: a redelivered message must be looked up, to learn that it was resolved.
    let grant = t.store.assign(&t.queue, &[t.partition()]).await.unwrap().remove(0);
    let letter = t.dead("a", "1");
    let offset = letter.message.position.offset;
    t.under_grant(letter, Placement::Open, grant.fence).await.unwrap();
    t.act("1", Act::Resolve).await.unwrap();
    let again = t.store.assign(&t.queue, &[t.partition()]).await.unwrap().remove(0);
    assert_eq!(again.horizon, Some(offset));
}

pub async fn a_skipped_message_raises_the_horizon<S: Store>(t: Fixture<S>) {
    let grant = t.store.assign(&t.queue, &[t.partition()]).await.unwrap().remove(0);
    let mut letter = t.waiting("a", "1");
    letter.state = LetterState::Skipped;
    let offset = letter.message.position.offset;
    t.under_grant(letter, Placement::Closed, grant.fence).await.unwrap();
    let again = t.store.assign(&t.queue, &[t.partition()]).await.unwrap().remove(0);
    assert_eq!(again.horizon, Some(offset));
}

pub async fn a_message_that_was_not_stored_does_not_raise_the_horizon<S: Store>(t: Fixture<S>) {
    let grant = t.store.assign(&t.queue, &[t.partition()]).await.unwrap().remove(0);
    let placed = t.under_grant(t.waiting("a", "1"), Placement::Behind, grant.fence).await.unwrap();
    assert!(matches!(placed, Placed::NotOpen(_)));
    let again = t.store.assign(&t.queue, &[t.partition()]).await.unwrap().remove(0);
    assert_eq!(again.horizon, None);
}

pub async fn look_ups_answer_in_the_order_of_the_question<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    t.behind(t.waiting("a", "2")).await;
    t.enqueue("b", "3").await;
    t.act("3", Act::Evict).await.unwrap();
    let asked = ["3", "nobody", "2", "1"].map(Into::into);
    let states = t.store.lookup(&t.queue, &asked).await.unwrap();
    assert_eq!(
        states,
        [Some(LetterState::Evicted), None, Some(LetterState::Waiting), Some(LetterState::Dead)]
    );
    assert!(t.store.lookup(&t.queue, &[]).await.unwrap().is_empty());
}

fn note<S>(t: &Fixture<S>, partition: u32, offset: u64, attempts: u32) -> AttemptNote {
    AttemptNote {
        message: format!("m{partition}-{offset}").into(),
        partition: Partition::new("orders", partition),
        offset,
        attempts,
        first_failed_at: t.now(),
        failure: failure("boom"),
        same_failure: attempts,
        due_at: t.now(),
    }
}

async fn noted<S: Store>(t: &Fixture<S>, partition: u32) -> Vec<(u64, u32)> {
    let partitions = [Partition::new("orders", partition)];
    let mut notes = t.store.attempt_notes(&t.queue, &partitions).await.unwrap();
    notes.sort_by_key(|note| note.offset);
    notes.iter().map(|note| (note.offset, note.attempts)).collect()
}

pub async fn a_note_on_attempts_comes_back_as_it_was<S: Store>(t: Fixture<S>) {
    // I4
    let one = note(&t, 0, 5, 2);
    t.store.note_attempts(&t.queue, vec![one.clone()]).await.unwrap();
    assert_eq!(t.store.attempt_notes(&t.queue, &[t.partition()]).await.unwrap(), [one]);
}

pub async fn a_message_delivered_again_goes_before_later_ones_of_its_partition<S: Store>(t: Fixture<S>) {
    // I2: after a crash the source repeats what was handled before the letter; it is repeated before it again.
    let fence = t.store.assign(&t.queue, &[t.partition()]).await.unwrap().remove(0).fence;
    let again = ["one", "two", "three"].map(|id| t.waiting("a", id));
    t.under_grant(t.dead("a", "failed"), Placement::Open, fence).await.unwrap();
    t.under_grant(t.waiting("a", "after"), Placement::Behind, fence).await.unwrap();
    let fence = t.store.assign(&t.queue, &[t.partition()]).await.unwrap().remove(0).fence;
    for letter in again {
        t.under_grant(letter, Placement::Behind, fence).await.unwrap();
    }
    assert_eq!(t.messages("a").await, ["one", "two", "three", "failed", "after"]);
    let indexes: Vec<u64> = t.list("a").await.iter().map(|letter| letter.index).collect();
    assert!(indexes.is_sorted_by(|one, next| one < next), "{indexes:?}");
    let claims = t.store.claim_due(&t.queue, "worker", secs(30), 9).await.unwrap();
    assert_eq!(claims[0].head.message.id.as_str(), "one");
}

pub async fn messages_delivered_again_in_any_order_find_their_place<S: Store>(t: Fixture<S>) {
    // I2: no source goes back message by message, but nothing may be lost if one does.
    let fence = t.store.assign(&t.queue, &[t.partition()]).await.unwrap().remove(0).fence;
    let letters: Vec<Letter> = (0..40).map(|n| t.waiting("a", &format!("{n:02}"))).collect();
    let order = [10, 30, 25, 20, 5, 3].into_iter().chain((31..40).rev()).chain((11..20).rev()).chain(21..25);
    for number in order.clone() {
        t.under_grant(letters[number].clone(), Placement::Open, fence).await.unwrap();
    }
    let mut expected: Vec<String> = order.map(|number| format!("{number:02}")).collect();
    expected.sort();
    assert_eq!(t.messages("a").await, expected);
    assert_eq!(t.size("a").await, expected.len() as u64);
}

pub async fn messages_under_no_grant_find_their_place_by_their_offsets<S: Store>(t: Fixture<S>) {
    // I2: an import brings the letters of a key in any order, among those of the live consumer.
    let fence = t.store.assign(&t.queue, &[t.partition()]).await.unwrap().remove(0).fence;
    let letters: Vec<Letter> = (0..6).map(|n| t.dead("a", &n.to_string())).collect();
    t.under_grant(letters[3].clone(), Placement::Open, fence).await.unwrap();
    for number in [5, 1, 4, 0, 2] {
        assert_eq!(t.open(letters[number].clone()).await, Placed::Appended);
    }
    assert_eq!(t.messages("a").await, ["0", "1", "2", "3", "4", "5"]);
    let claim = t.claim("a", "worker").await.unwrap();
    assert_eq!(claim.head.message.id.as_str(), "0");
}

pub async fn a_message_under_no_grant_does_not_go_before_a_head_in_work<S: Store>(t: Fixture<S>) {
    // I2
    let (early, late) = (t.dead("a", "early"), t.dead("a", "late"));
    t.open(late).await;
    let claim = t.claim("a", "worker").await.unwrap();
    assert_eq!(kind(t.try_put(early.clone(), Placement::Open, &Limits::NONE).await), ErrorKind::Conflict);
    t.settle(&claim, &claim.head, resolve()).await.unwrap();
    assert_eq!(t.open(early).await, Placed::Opened);
}

pub async fn a_message_under_no_grant_raises_the_horizon<S: Store>(t: Fixture<S>) {
    // I8: when its source delivers it, it must be looked up, even after it was resolved.
    let letter = t.dead("a", "1");
    let offset = letter.message.position.offset;
    t.open(letter).await;
    t.act("1", Act::Resolve).await.unwrap();
    let grant = t.store.assign(&t.queue, &[t.partition()]).await.unwrap().remove(0);
    assert_eq!(grant.horizon, Some(offset));
}

pub async fn a_letter_from_a_retry_topic_raises_the_horizon_of_its_message<S: Store>(t: Fixture<S>) {
    // I8: the message may be redelivered, if its position was not committed when it was relayed.
    let letter = t.dead("a", "1");
    let offset = letter.message.position.offset;
    let retries = Partition::new("orders.retry", 3);
    let fence = t.store.assign(&t.queue, std::slice::from_ref(&retries)).await.unwrap().remove(0).fence;
    let grant = Some(GrantFence { partition: retries.clone(), fence, turn: 1 });
    let items = vec![HandOff { letter, placement: Placement::Open, grant }];
    let placed = t.store.hand_off(&t.queue, &Limits::NONE, items).await.unwrap().remove(0).unwrap();
    assert_eq!(placed, Placed::Opened);
    let grants = t.store.assign(&t.queue, &[t.partition(), retries.clone()]).await.unwrap();
    assert_eq!((grants[0].horizon, grants[1].horizon), (Some(offset), None));
    let late = Some(GrantFence { partition: retries, fence, turn: 2 });
    let items = vec![HandOff { letter: t.dead("a", "2"), placement: Placement::Open, grant: late }];
    let refused = t.store.hand_off(&t.queue, &Limits::NONE, items).await.unwrap().remove(0);
    assert_eq!(kind(refused), ErrorKind::Fenced, "the grant of the topic still decides");
}

/// The letter as it is imported.
fn imported<S>(t: &Fixture<S>, letter: Letter) -> Letter {
    Letter { id: LetterId::of_import(&t.queue, &letter.message.id), ..letter }
}

/// A letter that is imported closed.
fn imported_closed<S>(t: &Fixture<S>, sequence: &str, id: &str, state: LetterState) -> Letter {
    imported(t, Letter { state, ..t.dead(sequence, id) })
}

pub async fn an_import_moves_no_horizon<S: Store>(t: Fixture<S>) {
    // Its position may be that of a message that is still to come, and says nothing about what was settled here.
    let (open, closed) =
        (imported(&t, t.dead("a", "open")), imported_closed(&t, "b", "closed", LetterState::Resolved));
    assert_eq!(t.put(open, Placement::Imported).await, Placed::Opened);
    assert_eq!(t.put(closed, Placement::Imported).await, Placed::Closed);
    let grant = t.store.assign(&t.queue, &[t.partition()]).await.unwrap().remove(0);
    assert_eq!(grant.horizon, None);
    let delivered = t.dead("c", "delivered");
    let offset = delivered.message.position.offset;
    t.under_grant(delivered, Placement::Open, grant.fence).await.unwrap();
    t.put(imported(&t, t.dead("c", "later")), Placement::Imported).await;
    let grant = t.store.assign(&t.queue, &[t.partition()]).await.unwrap().remove(0);
    assert_eq!(grant.horizon, Some(offset));
}

pub async fn a_letter_imported_as_closed_absorbs_no_message<S: Store>(t: Fixture<S>) {
    // I1: nobody has handled this message here, whatever became of a letter with its id elsewhere.
    for state in [LetterState::Resolved, LetterState::Evicted, LetterState::Skipped, LetterState::Expired] {
        let id = format!("m-{state}");
        let imported = imported_closed(&t, "a", &id, state);
        assert_eq!(t.put(imported.clone(), Placement::Imported).await, Placed::Closed);
        assert_eq!(t.put(imported.clone(), Placement::Imported).await, Placed::Held(state), "once");
        assert_eq!(t.store.lookup(&t.queue, &[id.as_str().into()]).await.unwrap(), [None]);
        let fence = t.store.assign(&t.queue, &[t.partition()]).await.unwrap().remove(0).fence;
        let delivered = t.dead(&format!("of {id}"), &id);
        assert_eq!(t.under_grant(delivered, Placement::Open, fence).await.unwrap(), Placed::Opened);
        assert_eq!(t.state(&id).await, LetterState::Dead);
        let kept = t.store.get(&t.queue, imported.id).await.unwrap().unwrap();
        assert_eq!((kept.state, kept.message.id.as_str()), (state, id.as_str()));
    }
    let own = Letter { state: LetterState::Resolved, ..t.dead("a", "own") };
    assert_eq!(kind(t.try_put(own, Placement::Imported, &Limits::NONE).await), ErrorKind::Invalid);
}

pub async fn a_letter_imported_as_open_absorbs_no_message_when_it_is_closed<S: Store>(t: Fixture<S>) {
    // I1: what becomes of the import says nothing about the message that the source delivers.
    for (number, act) in [None, Some(Act::Resolve), Some(Act::Evict)].into_iter().enumerate() {
        let (sequence, id) = (format!("s{number}"), format!("m{number}"));
        let letter = imported(&t, t.dead(&sequence, &id));
        assert_eq!(t.put(letter.clone(), Placement::Imported).await, Placed::Opened);
        assert_eq!(t.put(letter.clone(), Placement::Imported).await, Placed::Held(LetterState::Dead), "once");
        if let Some(act) = act {
            t.store.act(&t.queue, letter.id, act, &operator()).await.unwrap();
        }
        assert_eq!(t.store.lookup(&t.queue, &[id.as_str().into()]).await.unwrap(), [None]);
        let fence = t.store.assign(&t.queue, &[t.partition()]).await.unwrap().remove(0).fence;
        // The source delivers it at the same position, and it fails.
        let delivered = Letter { message: letter.message.clone(), ..t.dead(&sequence, &id) };
        let placed = t.under_grant(delivered, Placement::Open, fence).await.unwrap();
        assert_eq!(placed, if act.is_none() { Placed::Appended } else { Placed::Opened });
        assert_eq!(t.state(&id).await, LetterState::Dead);
        // I2: it waits behind an import that is open.
        let ids: Vec<LetterId> = t.list(&sequence).await.iter().map(|letter| letter.id).collect();
        let expected = if act.is_none() { vec![letter.id, t.id_of(&id)] } else { vec![t.id_of(&id)] };
        assert_eq!(ids, expected);
    }
    let own = t.dead("own", "own");
    assert_eq!(kind(t.try_put(own, Placement::Imported, &Limits::NONE).await), ErrorKind::Invalid);
}

pub async fn delivered_messages_stay_in_order_among_imported_ones<S: Store>(t: Fixture<S>) {
    // I2: imports may have offsets that were not delivered yet.
    let fence = t.store.assign(&t.queue, &[t.partition()]).await.unwrap().remove(0).fence;
    let letters: Vec<Letter> = (0..10).map(|n| t.waiting("a", &n.to_string())).collect();
    t.put(imported(&t, letters[9].clone()), Placement::Imported).await;
    t.under_grant(letters[3].clone(), Placement::Behind, fence).await.unwrap();
    t.put(imported(&t, letters[2].clone()), Placement::Imported).await;
    t.put(imported(&t, letters[7].clone()), Placement::Imported).await;
    t.under_grant(letters[6].clone(), Placement::Behind, fence).await.unwrap();
    // Delivered again after a crash.
    let fence = t.store.assign(&t.queue, &[t.partition()]).await.unwrap().remove(0).fence;
    for number in [1, 4, 5] {
        t.under_grant(letters[number].clone(), Placement::Behind, fence).await.unwrap();
    }
    t.under_grant(letters[8].clone(), Placement::Behind, fence).await.unwrap();
    let order = t.messages("a").await;
    let delivered: Vec<&str> =
        order.iter().map(String::as_str).filter(|id| !["2", "7", "9"].contains(id)).collect();
    assert_eq!(delivered, ["1", "3", "4", "5", "6", "8"], "{order:?}");
    assert_eq!(order.len(), 9);
}

pub async fn a_restored_letter_finds_its_place_among_those_delivered_again<S: Store>(t: Fixture<S>) {
    // I2: the letters of a partition stand in the order of their offsets, whenever they came.
    let fence = t.store.assign(&t.queue, &[t.partition()]).await.unwrap().remove(0).fence;
    let letters: Vec<Letter> = (0..8).map(|n| t.dead("a", &n.to_string())).collect();
    for number in [2, 5, 7] {
        t.under_grant(letters[number].clone(), Placement::Open, fence).await.unwrap();
    }
    for message in ["2", "5"] {
        t.act(message, Act::Evict).await.unwrap();
    }
    // They go before the only one that is left, whatever places the evicted ones had.
    for number in [0, 1, 3, 4, 6] {
        t.under_grant(letters[number].clone(), Placement::Behind, fence).await.unwrap();
    }
    for message in ["5", "2"] {
        t.act(message, Act::Restore).await.unwrap();
    }
    assert_eq!(t.messages("a").await, ["0", "1", "2", "3", "4", "5", "6", "7"]);
    t.act("7", Act::Evict).await.unwrap();
    t.act("7", Act::Restore).await.unwrap();
    assert_eq!(t.messages("a").await.last().map(String::as_str), Some("7"));
}

pub async fn a_message_delivered_again_waits_while_a_later_head_is_in_work<S: Store>(t: Fixture<S>) {
    // I2, I6
    let fence = t.store.assign(&t.queue, &[t.partition()]).await.unwrap().remove(0).fence;
    let again = t.waiting("a", "again");
    t.under_grant(t.retrying("a", "failed", secs(0)), Placement::Open, fence).await.unwrap();
    let claim = t.store.claim_due(&t.queue, "worker", secs(30), 1).await.unwrap().remove(0);
    let refused = t.under_grant(again.clone(), Placement::Behind, fence).await;
    assert_eq!(kind(refused), ErrorKind::Conflict);
    t.store.release(&claim.lease).await.unwrap();
    assert_eq!(t.under_grant(again, Placement::Behind, fence).await.unwrap(), Placed::Appended);
    assert_eq!(t.messages("a").await, ["again", "failed"]);
}

pub async fn a_letter_restored_beside_one_that_was_put_before_it_keeps_its_order<S: Store>(t: Fixture<S>) {
    let fence = t.store.assign(&t.queue, &[t.partition()]).await.unwrap().remove(0).fence;
    let (one, two) = (t.waiting("a", "one"), t.waiting("a", "two"));
    t.under_grant(t.dead("a", "failed"), Placement::Open, fence).await.unwrap();
    t.under_grant(one, Placement::Behind, fence).await.unwrap();
    t.act("one", Act::Evict).await.unwrap();
    t.under_grant(two, Placement::Behind, fence).await.unwrap();
    t.act("one", Act::Restore).await.unwrap();
    let mut messages = t.messages("a").await;
    assert_eq!(messages.pop().as_deref(), Some("failed"));
    messages.sort();
    assert_eq!(messages, ["one", "two"]);
}

pub async fn a_call_that_arrives_after_a_later_one_is_refused<S: Store>(t: Fixture<S>) {
    // What may have happened must not happen any more once a later call was answered.
    let fence = t.store.assign(&t.queue, &[t.partition()]).await.unwrap().remove(0).fence;
    let at_turn = |turn, letter| {
        let grant = Some(GrantFence { partition: t.partition(), fence, turn });
        vec![HandOff { letter, placement: Placement::Open, grant }]
    };
    let (late, next) = (at_turn(7, t.dead("a", "late")), at_turn(8, t.dead("b", "next")));
    let same = at_turn(8, t.dead("c", "same"));
    t.store.hand_off(&t.queue, &Limits::NONE, next).await.unwrap().remove(0).unwrap();
    let refused = t.store.hand_off(&t.queue, &Limits::NONE, late).await.unwrap().remove(0);
    assert_eq!(kind(refused), ErrorKind::Fenced);
    t.store.hand_off(&t.queue, &Limits::NONE, same).await.unwrap().remove(0).unwrap();
    let renewed = t.store.assign(&t.queue, &[t.partition()]).await.unwrap().remove(0).fence;
    t.under_grant(t.dead("d", "fresh"), Placement::Open, renewed).await.unwrap();
}

pub async fn a_note_that_comes_late_takes_no_attempts_back<S: Store>(t: Fixture<S>) {
    // I4
    t.store.note_attempts(&t.queue, vec![note(&t, 0, 5, 2)]).await.unwrap();
    t.store.note_attempts(&t.queue, vec![note(&t, 0, 5, 1)]).await.unwrap();
    assert_eq!(noted(&t, 0).await, [(5, 2)]);
}

pub async fn a_newer_note_replaces_the_older_one<S: Store>(t: Fixture<S>) {
    t.store.note_attempts(&t.queue, vec![note(&t, 0, 5, 1), note(&t, 0, 6, 1)]).await.unwrap();
    t.store.note_attempts(&t.queue, vec![note(&t, 0, 5, 2)]).await.unwrap();
    assert_eq!(noted(&t, 0).await, [(5, 2), (6, 1)]);
}

pub async fn notes_belong_to_their_partition_and_queue<S: Store>(t: Fixture<S>) {
    t.store.note_attempts(&t.queue, vec![note(&t, 0, 5, 1), note(&t, 1, 7, 1)]).await.unwrap();
    t.store.note_attempts(&"other/other".into(), vec![note(&t, 0, 9, 1)]).await.unwrap();
    assert_eq!((noted(&t, 0).await, noted(&t, 1).await), (vec![(5, 1)], vec![(7, 1)]));
    assert!(t.store.attempt_notes(&t.queue, &[]).await.unwrap().is_empty());
}

pub async fn notes_are_forgotten_up_to_and_with_an_offset<S: Store>(t: Fixture<S>) {
    let notes = [3, 4, 5, 6].map(|offset| note(&t, 0, offset, 1));
    t.store.note_attempts(&t.queue, notes.into()).await.unwrap();
    t.store.note_attempts(&t.queue, vec![note(&t, 1, 3, 1)]).await.unwrap();
    t.store.forget_attempts(&t.queue, &t.partition(), 4).await.unwrap();
    assert_eq!((noted(&t, 0).await, noted(&t, 1).await), (vec![(5, 1), (6, 1)], vec![(3, 1)]));
    t.store.forget_attempts(&t.queue, &t.partition(), 99).await.unwrap();
    assert!(noted(&t, 0).await.is_empty());
    t.store.forget_attempts(&t.queue, &t.partition(), 99).await.unwrap();
}

pub async fn a_letter_that_failed_again_does_not_lose_its_place_to_redelivery<S: Store>(t: Fixture<S>) {
    // I2, I8
    let first = t.dead("a", "1");
    t.open(first.clone()).await;
    t.behind(t.waiting("a", "2")).await;
    let claim = t.claim("a", "w").await.unwrap();
    t.settle(&claim, &claim.head, requeued(Requeue::of(&claim.head))).await.unwrap();
    assert_eq!(t.open(first).await, Placed::Held(LetterState::Dead));
    assert_eq!(t.messages("a").await, ["1", "2"]);
}
