//! A stream that was deleted and created again: records of its earlier incarnation do not apply.

use std::collections::BTreeSet;
use std::sync::Arc;

use lazaret_core::store::{HandOff, LetterStore, Limits, Placed, Placement};
use lazaret_core::{Letter, LetterId, LetterState, Message, MessageId, Position, Timestamp};
use lazaret_engine::{DedupeOptions, Options};

use crate::support::{Bench, Reply, Try, at_once, eventually, fatal, one_attempt, secs};

const MESSAGES: usize = 40;

/// Fills partition 0. Every fourth message fails. Each has a key of its own.
fn fill(bench: &Bench, life: &str, id: impl Fn(usize) -> Option<String>) {
    for number in 0..MESSAGES {
        let name =
            if number % 4 == 0 { format!("{life}-bad{number}") } else { format!("{life}-good{number}") };
        bench.log.push_with(0, |mut message| {
            if let Some(id) = id(number) {
                message.id = MessageId::from(id);
            }
            message.with_key(name.clone()).with_payload(name)
        });
    }
}

fn reply(this: &Try) -> Reply {
    if this.name.contains("bad") { Reply::Fail(fatal()) } else { Reply::Done }
}

fn with_options(bench: &Bench, dedupe: bool) -> Options {
    let filter = Arc::new(bench.store.memory().clone());
    let dedupe = dedupe.then(|| DedupeOptions { filter, window: secs(3600) });
    Options { dedupe, ..one_attempt() }
}

/// Returns the number of messages of this incarnation that were handled or are open letters.
fn settled(bench: &Bench, life: &str) -> usize {
    let done = bench.calls.done().into_iter().filter(|name| name.starts_with(life));
    let letters =
        (0..MESSAGES).map(|number| format!("{life}-bad{number}")).flat_map(|name| bench.standing(&name));
    done.chain(letters.map(|(name, _)| name)).collect::<BTreeSet<_>>().len()
}

#[tokio::test(start_paused = true)]
async fn every_message_of_a_recreated_stream_is_handled_or_a_letter() {
    // I1: earlier, its offsets and the ids derived from them belonged to other messages.
    for (dedupe, while_running) in [(false, false), (false, true), (true, false), (true, true)] {
        let bench = Bench::new();
        fill(&bench, "old", |_| None);
        let running = bench.start(with_options(&bench, dedupe), reply);
        eventually("the first life is settled", || bench.committed() == Some(MESSAGES as u64 - 1)).await;
        let running = if while_running {
            bench.log.recreate(1);
            fill(&bench, "new", |_| None);
            running
        } else {
            running.stop().await;
            bench.log.recreate(1);
            fill(&bench, "new", |_| None);
            bench.start(with_options(&bench, dedupe), reply)
        };
        eventually("the second life is settled", || bench.committed() == Some(MESSAGES as u64 - 1)).await;
        running.stop().await;
        assert_eq!(
            [settled(&bench, "old"), settled(&bench, "new")],
            [MESSAGES; 2],
            "{dedupe} {while_running}"
        );
        assert_eq!(bench.counts().of(LetterState::Dead), 2 * (MESSAGES as u64 / 4));
        assert_eq!(bench.events.count("IncarnationBegan"), usize::from(while_running));
        // I5: the messages of the first incarnation keep their identity.
        let letter = bench.letter_at(0).expect("the first letter stays");
        assert_eq!(letter.message.id.as_str(), "events/0/0");
        assert_eq!(bench.letter("new-bad0").message.id.as_str(), "events~1/0/0");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_filled_with_the_same_ids_again_loses_no_message() {
    // I1: the letters of the first incarnation were resolved, purged, or are open. Those of the second
    // are other messages.
    for dedupe in [false, true] {
        let bench = Bench::new();
        let id = |number: usize| Some(format!("evt-{number}"));
        fill(&bench, "old", id);
        let running = bench.start(with_options(&bench, dedupe), reply);
        eventually("the first life is settled", || bench.committed() == Some(MESSAGES as u64 - 1)).await;
        running.stop().await;
        bench.log.recreate(1);
        fill(&bench, "new", id);
        let first = bench.start(with_options(&bench, dedupe), reply);
        eventually("letters of the second life are stored", || !bench.standing("new-bad36").is_empty()).await;
        // Redelivered messages find only the letters of their own incarnation.
        first.crash().await;
        bench.run(with_options(&bench, dedupe), reply).await;
        assert_eq!(settled(&bench, "new"), MESSAGES, "{dedupe}");
        assert_eq!(
            bench.counts().of(LetterState::Dead),
            2 * (MESSAGES as u64 / 4),
            "I8: each has one letter"
        );
        let kept = at_once(
            bench.store.memory().get(&Bench::queue(), LetterId::of(&Bench::queue(), &"evt-4".into())),
        );
        assert_eq!(kept.unwrap().message.payload.as_deref(), Some(&b"old-bad4"[..]), "I5");
        assert_eq!(bench.letter("new-bad4").message.id.as_str(), "events~1/0/4");
    }
}

#[tokio::test(start_paused = true)]
async fn a_letter_of_the_first_life_that_comes_late_swallows_no_message_of_the_second() {
    // I1: an instance that has not seen the end of the first incarnation hands the message off
    // meanwhile.
    let bench = Bench::new();
    bench.log.recreate(1);
    bench.log.push_with(0, |mut message| {
        message.id = MessageId::from("evt-0".to_owned());
        message.with_key("new-bad0").with_payload("new-bad0")
    });
    bench.store.slow_down("hand_off", secs(10));
    let running = bench.start(one_attempt(), reply);
    eventually("the letter is on its way", || bench.store.calls("hand_off") == 1).await;
    let late = Message::new("evt-0", "events", Position::new(0, 7)).with_key("old").with_payload("old");
    let mut letter = Letter::new(Bench::queue(), "old".into(), late.into(), Timestamp::UNIX_EPOCH);
    letter.state = LetterState::Dead;
    let item = HandOff { letter, placement: Placement::Open, grant: None };
    let placed =
        bench.store.memory().hand_off(&Bench::queue(), &Limits::NONE, vec![item]).await.unwrap().remove(0);
    assert_eq!(placed.unwrap(), Placed::Opened);
    eventually("the message is a letter", || !bench.standing("new-bad0").is_empty()).await;
    running.stop().await;
    assert_eq!(bench.letter("new-bad0").message.id.as_str(), "events~1/0/0");
    assert_eq!(bench.counts().of(LetterState::Dead), 2);
}
