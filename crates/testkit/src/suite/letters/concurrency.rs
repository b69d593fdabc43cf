//! Many letters, and concurrent workers.

use std::collections::BTreeSet;

use lazaret_core::LetterState;
use lazaret_core::store::{HandOff, Limits, Placed, Placement, Settled, Store};

use super::fixture::{Fixture, LEASE, resolve};
use crate::suite::secs;

pub async fn a_sequence_of_ten_thousand_letters_drains<S: Store>(t: Fixture<S>) {
    t.open(t.retrying("a", "head", secs(0))).await;
    for chunk in 0..10 {
        let items = (0..1000).map(|n| HandOff {
            letter: t.waiting("a", &format!("m{}", chunk * 1000 + n)),
            placement: Placement::Behind,
            grant: None,
        });
        for placed in t.store.hand_off(&t.queue, &Limits::NONE, items.collect()).await.unwrap() {
            assert_eq!(placed.unwrap(), Placed::Appended);
        }
    }
    let claim = t.due_one("w").await;
    let (mut settled, mut count) = (t.settle(&claim, &claim.head, resolve()).await.unwrap(), 0);
    while let Settled::Next(next) = settled {
        assert_eq!(next.message.id.as_str(), format!("m{count}"));
        count += 1;
        settled = t.settle(&claim, &next, resolve()).await.unwrap();
    }
    assert!(matches!(settled, Settled::Closed));
    assert_eq!(count, 10_000);
    assert_eq!(t.store.counts(&t.queue).await.unwrap().of(LetterState::Resolved), 10_001);
}

pub async fn appending_and_closing_exclude_each_other<S: Store>(t: Fixture<S>) {
    // I2: one task appends behind, another works the sequence down and closes it, again and again. A message is
    // either behind the others and handled in their order, or learns that the sequence is closed. None is stranded.
    const MESSAGES: usize = 300;
    t.open(t.retrying("a", "head", secs(0))).await;
    let letters: Vec<_> = (0..MESSAGES).map(|n| t.waiting("a", &format!("m{n:04}"))).collect();
    let (store, queue) = (t.store.clone(), t.queue.clone());
    let appender = tokio::spawn(async move {
        let mut appended = Vec::new();
        for letter in letters {
            let id = letter.message.id.to_string();
            let items = vec![HandOff { letter: letter.clone(), placement: Placement::Behind, grant: None }];
            match store.hand_off(&queue, &Limits::NONE, items).await.unwrap().remove(0).unwrap() {
                Placed::Appended => appended.push(id),
                Placed::NotOpen(_) => {
                    let items = vec![HandOff { letter, placement: Placement::Open, grant: None }];
                    let placed =
                        store.hand_off(&queue, &Limits::NONE, items).await.unwrap().remove(0).unwrap();
                    assert_eq!(placed, Placed::Opened, "only this task opens");
                    appended.push(id);
                }
                other => panic!("{other:?} for a message that never came before"),
            }
            tokio::task::yield_now().await;
        }
        appended
    });
    let (mut handled, mut rounds) = (Vec::new(), 1000);
    while !appender.is_finished() || t.contains("a").await {
        // Once nothing comes any more, what is there is due at once.
        rounds -= u32::from(appender.is_finished());
        assert!(rounds > 0, "a letter is stranded");
        for claim in t.due("w", 1).await {
            let mut letter = claim.head.clone();
            loop {
                handled.push(letter.message.id.to_string());
                tokio::task::yield_now().await;
                match t.settle(&claim, &letter, resolve()).await.unwrap() {
                    Settled::Next(next) => letter = *next,
                    Settled::Closed => break,
                    other => panic!("{other:?} in a sequence of waiting letters"),
                }
            }
        }
        tokio::task::yield_now().await;
    }
    let appended = appender.await.unwrap();
    assert_eq!(appended.len(), MESSAGES);
    assert_eq!(handled[0], "head");
    assert_eq!(handled[1..], appended);
}

pub async fn many_workers_never_share_a_sequence<S: Store>(t: Fixture<S>) {
    // I6
    for n in 0..50 {
        t.open(t.retrying(&format!("s{n}"), &n.to_string(), secs(0))).await;
    }
    let workers: Vec<_> = (0..8)
        .map(|worker| {
            let (store, queue) = (t.store.clone(), t.queue.clone());
            tokio::spawn(async move {
                let mut taken = Vec::new();
                loop {
                    let claims = store.claim_due(&queue, &format!("w{worker}"), LEASE, 3).await.unwrap();
                    if claims.is_empty() {
                        return taken;
                    }
                    taken.extend(claims.into_iter().map(|claim| claim.lease.sequence));
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    let mut taken = Vec::new();
    for worker in workers {
        taken.extend(worker.await.unwrap());
    }
    assert_eq!(taken.len(), 50);
    assert_eq!(taken.iter().collect::<BTreeSet<_>>().len(), 50);
}
