//! The calls that the state machine draws.

use lazaret_core::LetterState::{self, Dead, Parked, Retrying, Skipped, Waiting};
use lazaret_core::store::{Act, Placement};
use proptest::prelude::*;

use super::{MESSAGES, detached};

/// A call, or the passing of time.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Assign,
    HandOff { items: Vec<Item>, grant: Under, limited: bool },
    ClaimDue { one: bool },
    Claim { sequence: usize },
    Settle { lease: usize, second: bool, how: How },
    Renew { lease: usize },
    Release { lease: usize },
    Act { message: u64, act: Act },
    Clear,
    Pause { sequence: usize },
    Resume { sequence: usize },
    Advance { seconds: u64 },
}

#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) message: u64,
    pub(super) placement: Placement,
    pub(super) state: LetterState,
    pub(super) delay: u64,
}

/// The grant of a hand-off.
#[derive(Clone, Copy, Debug)]
pub(super) enum Under {
    None,
    Current,
    Old,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum How {
    Resolve,
    Evict,
    Skip,
    Requeue(LetterState, u64),
    /// It dies and leaves its sequence.
    Leave,
}

fn items() -> impl Strategy<Value = Vec<Item>> {
    let open = prop_oneof![
        3 => Just((Placement::Open, Retrying)),
        2 => Just((Placement::Open, Dead)),
        1 => Just((Placement::Open, Parked)),
        2 => Just((Placement::Open, Waiting)),
        4 => Just((Placement::Behind, Waiting)),
        1 => Just((Placement::Closed, Skipped)),
    ];
    let item = (0..MESSAGES, open, 0..50_u64);
    let item =
        item.prop_map(|(message, (placement, state), delay)| Item { message, placement, state, delay });
    proptest::collection::vec(item, 1..6)
}

fn how() -> impl Strategy<Value = How> {
    let state = prop_oneof![3 => Just(Retrying), 1 => Just(Dead), 1 => Just(Parked), 1 => Just(Waiting)];
    prop_oneof![
        4 => Just(How::Resolve),
        1 => Just(How::Evict),
        1 => Just(How::Skip),
        2 => Just(How::Leave),
        3 => (state, 0..50_u64).prop_map(|(state, delay)| How::Requeue(state, delay)),
    ]
}

/// Any step, where this many leases have been given.
pub(super) fn steps(leases: usize) -> impl Strategy<Value = Step> {
    let act = prop_oneof![
        Just(Act::Evict),
        Just(Act::Resolve),
        Just(Act::Park),
        Just(Act::Quarantine),
        Just(Act::Release),
        Just(Act::Restore),
    ];
    let grant = prop_oneof![6 => Just(Under::None), 3 => Just(Under::Current), 1 => Just(Under::Old)];
    // The newest leases are the ones that may still hold.
    let lease = || (0..4_usize).prop_map(move |back| leases.saturating_sub(1 + back));
    prop_oneof![
        1 => Just(Step::Assign),
        8 => (items(), grant, any::<bool>())
            .prop_map(|(items, grant, limited)| Step::HandOff { items, grant, limited }),
        5 => any::<bool>().prop_map(|one| Step::ClaimDue { one }),
        3 => (0..4_usize).prop_map(|sequence| Step::Claim { sequence }),
        1 => (0..MESSAGES).prop_map(|message| Step::Claim { sequence: detached(message) }),
        8 => (lease(), prop::bool::weighted(0.1), how())
            .prop_map(|(lease, second, how)| Step::Settle { lease, second, how }),
        2 => lease().prop_map(|lease| Step::Renew { lease }),
        1 => lease().prop_map(|lease| Step::Release { lease }),
        6 => (0..MESSAGES, act).prop_map(|(message, act)| Step::Act { message, act }),
        1 => Just(Step::Clear),
        2 => (0..4_usize).prop_map(|sequence| Step::Pause { sequence }),
        2 => (0..4_usize).prop_map(|sequence| Step::Resume { sequence }),
        4 => prop_oneof![1..5_u64, 10..40_u64].prop_map(|seconds| Step::Advance { seconds }),
    ]
}
