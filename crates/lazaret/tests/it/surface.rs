//! The public interface of the facade: the names that users import must stay in place. If this compiles,
//! they do.

use std::fmt::Debug;

/// Names a type.
fn has<T: ?Sized>() {}

/// All names of the prelude, as users know them. Nothing else is imported here.
mod everything_in_the_prelude {
    use lazaret::prelude::*;

    use super::has;

    #[test]
    fn can_be_named() {
        // The engine.
        has::<BuildError>();
        has::<CancellationToken>();
        has::<Consumer>();
        has::<DeadLetterOptions>();
        has::<dyn Observer>();
        has::<ReplayReport>();
        has::<Replayer>();
        // Parameters of handlers.
        has::<Attempt>();
        has::<Context>();
        has::<StoredLetter>();
        has::<EventType>();
        has::<Headers>();
        has::<Json<u8>>();
        has::<Key>();
        has::<Message>();
        has::<Payload>();
        has::<Router>();
        has::<Router<u8>>();
        has::<State<u8>>();
        has::<Text>();
        fn is_extractor<T: FromDelivery>() {}
        is_extractor::<Option<StoredLetter>>();
        let _ = handler(|_: Context| async {});
        // The methods of `Handler` are in scope, but its name is not.
        async fn stateful(_: State<u8>) {}
        let _ = stateful.layer(lazaret::Timeout::new(std::time::Duration::from_secs(1))).with_state(7_u8);
        // Results of handlers.
        has::<Failure>();
        has::<HandlerError>();
        has::<Phase>();
        has::<Reason>();
        has::<Verdict>();
        // Messages and letters.
        has::<Letter>();
        has::<LetterId>();
        has::<LetterState>();
        has::<MessageId>();
        has::<Operation>();
        has::<Partition>();
        has::<Position>();
        has::<QueueName>();
        has::<SequenceId>();
        has::<Sequencing>();
        has::<Timestamp>();
        // Policies, stores and sources.
        has::<Act>();
        has::<Actor>();
        has::<dyn Audit>();
        has::<Classifier>();
        has::<dyn LetterStore>();
        has::<PauseScope>();
        has::<RetryPolicy>();
        has::<dyn Source>();
        has::<dyn Store>();
        has::<Strategy>();
    }
}

/// Names that programs often define themselves. If the prelude had one of them, it would be ambiguous
/// here.
mod names_that_the_prelude_leaves_out {
    mod of_the_user {
        pub(super) enum Builder {}
        pub(super) enum Error {}
        pub(super) enum Event {}
        pub(super) enum Handle {}
        pub(super) enum Handler {}
        pub(super) enum Layer {}
        pub(super) enum Options {}
        pub(super) enum Stats {}
        pub(super) enum Timeout {}
        pub(super) type Result<T> = std::result::Result<T, Error>;
    }

    use lazaret::prelude::*;
    use of_the_user::*;

    use super::has;

    #[test]
    fn are_the_users() {
        has::<(Builder, Error, Event, Handle, Handler, Layer, Options, Stats, Timeout)>();
        has::<Result<Consumer>>();
    }
}

#[test]
fn the_modules_hold_what_the_prelude_leaves_out() {
    has::<lazaret::Builder>();
    has::<lazaret::Error>();
    has::<lazaret::Event<'_>>();
    has::<lazaret::Handle>();
    has::<lazaret::Options>();
    has::<lazaret::Stats>();
    has::<lazaret::Timeout>();
    has::<dyn lazaret::handler::DeadLetterSink>();
    has::<dyn lazaret::handler::Layer>();
    has::<lazaret::handler::Next>();
    fn is_part<S, T: lazaret::handler::FromRef<S>>() {}
    is_part::<u8, u8>();
    fn is_extractor<S, T: lazaret::handler::FromDeliveryWith<S>>() {}
    is_extractor::<u8, lazaret::handler::State<u8>>();
    let _ = lazaret::handler::layer_fn(|delivery, next| next.run(delivery));
    has::<dyn lazaret::Clock>();
    has::<lazaret::ConsumerName>();
    has::<lazaret::Filter>();
    has::<lazaret::Fingerprint>();
    has::<lazaret::Grouping>();
    has::<lazaret::DedupeOptions>();
    has::<lazaret::Schema>();
    has::<lazaret::StreamName>();
    has::<lazaret::SystemClock>();
    has::<lazaret::UnknownVerdict>();
    has::<lazaret::clock::SystemClock>();
    has::<lazaret::failure::CauseLink>();
    has::<lazaret::fingerprint::Fingerprint>();
    has::<lazaret::fingerprint::GroupPart>();
    has::<lazaret::fingerprint::GroupPattern>();
    has::<dyn lazaret::handler::Handle>();
    has::<lazaret::handler::Delivery>();
    has::<lazaret::letter::AttemptRecord>();
    has::<lazaret::message::Headers>();
    has::<lazaret::policy::BreakerPolicy>();
    has::<lazaret::policy::BudgetPolicy>();
    has::<dyn lazaret::policy::EnqueuePolicy>();
    has::<lazaret::policy::FusePolicy>();
    has::<lazaret::policy::PoisonPolicy>();
    has::<lazaret::sequence::SequenceId>();
    has::<lazaret::source::SourceEvent>();
    has::<dyn lazaret::store::Checkpoints>();
    has::<dyn lazaret::store::Dedupe>();
    has::<lazaret::store::Limits>();
    has::<dyn lazaret::store::Locks>();
    has::<lazaret::store::StoreError>();
}

#[cfg(feature = "memory")]
#[test]
fn the_memory_backends_are_there_by_default() {
    has::<lazaret::memory::MemberId>();
    has::<lazaret::memory::MemoryLog>();
    has::<lazaret::memory::MemorySource>();
    has::<lazaret::memory::MemoryStore>();
}

#[test]
fn counts_are_shown_with_the_names_of_the_states() {
    let mut counts = lazaret::store::Counts { sequences: 1, ..Default::default() };
    counts.by_state[lazaret::LetterState::Dead as usize] = 2;
    assert_eq!(
        format!("{counts:?}"),
        "Counts { sequences: 1, retrying: 0, dead: 2, parked: 0, quarantined: 0, waiting: 0, resolved: 0, \
         evicted: 0, skipped: 0, expired: 0 }"
    );
}

#[test]
fn what_is_shared_between_tasks_can_be() {
    fn shared<T: Clone + Send + Sync + 'static>() {}
    fn sent<T: Send + 'static>() {}
    fn reported<T: std::error::Error + Debug + Send + Sync + 'static>() {}
    shared::<lazaret::Handle>();
    shared::<lazaret::Replayer>();
    shared::<lazaret::Options>();
    sent::<lazaret::Consumer>();
    sent::<lazaret::Builder>();
    reported::<lazaret::BuildError>();
    reported::<lazaret::Error>();
    reported::<lazaret::store::StoreError>();
    reported::<lazaret::source::SourceError>();
}
