//! Forwards the methods of the store traits to another store: [`forward_store!`](crate::forward_store).

#[doc(hidden)]
pub use async_trait::async_trait;
#[doc(hidden)]
pub use bytes::Bytes;

/// A call that a wrapper forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Call {
    /// The name of the method.
    pub operation: &'static str,
    /// `true` when the method may change the store.
    pub writes: bool,
}

impl Call {
    /// A call of the method with this name.
    pub const fn new(operation: &'static str, writes: bool) -> Self {
        Self { operation, writes }
    }
}

/// Implements store traits for a wrapper by forwarding every method to the store inside.
///
/// An invocation lists the traits to implement, then a rule that all their methods follow:
///
/// - `inner: |this| …` evaluates to a reference to the store inside;
/// - `around: |this, call, run| …` is the body of every method. `call` is a [`Call`](crate::store::Call), and `run` the
///   future of the call of the store inside, which has not started. The body returns what the method returns.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// use lazaret_core::QueueName;
/// use lazaret_core::store::{Counts, LetterStore, Result, Store};
///
/// /// Counts the calls that may change the store.
/// struct CountWrites<S> {
///     inner: S,
///     writes: AtomicU64,
/// }
///
/// lazaret_core::forward_store! {
///     impl<S: Store> LetterStore for CountWrites<S> {
///         counts => Self::empty_counts;
///     }
///     impl<S: Store> Operations for CountWrites<S> {}
///     impl<S: Store> Triage for CountWrites<S> {}
///     impl<S: Store> Audit for CountWrites<S> {}
///
///     inner: |this| &this.inner;
///     around: |this, call, run| {
///         this.writes.fetch_add(u64::from(call.writes), Ordering::Relaxed);
///         run.await
///     };
/// }
///
/// impl<S: Store> CountWrites<S> {
///     async fn empty_counts(&self, _queue: &QueueName) -> Result<Counts> {
///         Ok(Counts::default())
///     }
/// }
/// # fn is_a_store<S: Store>() {}
/// # fn wrapped<S: Store>() { is_a_store::<CountWrites<S>>() }
/// ```
///
/// A method in the braces of a trait is overridden, as `counts` above: it calls the function behind the arrow with the
/// method's own arguments. The override may call the store inside or not; `around` does not apply to it.
///
/// With `shared: |this| …` in place of `inner`, the expression evaluates to an [`Arc`](std::sync::Arc) of the store, the
/// arguments are cloned, and `run` is `'static`: it can be spawned, and outlives the caller.
///
/// The traits are `LetterStore`, `Operations`, `Triage`, `Audit`, `KeyValue` and `Outbox`. A bound
/// of a type parameter is one path.
#[macro_export]
macro_rules! forward_store {
    (
        $(impl $(<$($parameter:ident: $bound:path),+>)? $trait:ident for $type:ty { $($overrides:tt)* })+
        inner: |$store:ident| $inner:expr;
        around: |$this:ident, $call:ident, $run:ident| $around:expr;
    ) => {
        $crate::__forward_each! {
            { inner ($store $inner) ($this $call $run $around) }
            $({ $trait [$($($parameter: $bound),+)?] ($type) { $($overrides)* } })+
        }
    };
    (
        $(impl $(<$($parameter:ident: $bound:path),+>)? $trait:ident for $type:ty { $($overrides:tt)* })+
        shared: |$store:ident| $inner:expr;
        around: |$this:ident, $call:ident, $run:ident| $around:expr;
    ) => {
        $crate::__forward_each! {
            { shared ($store $inner) ($this $call $run $around) }
            $({ $trait [$($($parameter: $bound),+)?] ($type) { $($overrides)* } })+
        }
    };
}

/// Pairs each trait with the rule and with its methods.
#[doc(hidden)]
#[macro_export]
macro_rules! __forward_each {
    ($rule:tt) => {};
    ($rule:tt { $trait:ident $($header:tt)+ } $($rest:tt)*) => {
        $crate::__forward_methods! { $trait { $trait $rule $($header)+ } }
        $crate::__forward_each! { $rule $($rest)* }
    };
}

/// The methods of every store trait: the single list from which wrappers are generated. Keep it in step with the traits.
///
/// `move` precedes an argument that is passed by value, and `@subscribe` the method that is not a call.
#[doc(hidden)]
#[macro_export]
macro_rules! __forward_methods {
    (LetterStore $wrapper:tt) => { $crate::__forward_trait! { $wrapper
        @subscribe changes;
        writes assign(queue: &$crate::QueueName, partitions: &[$crate::Partition]) -> Vec<$crate::store::Grant>;
        reads horizons(queue: &$crate::QueueName, partitions: &[$crate::Partition]) -> Vec<Option<u64>>;
        reads opened_since(queue: &$crate::QueueName, revision: move u64, limit: move usize) -> $crate::store::OpenedPage;
        writes hand_off(queue: &$crate::QueueName, limits: &$crate::store::Limits, items: move Vec<$crate::store::HandOff>) -> Vec<$crate::store::Result<$crate::store::Placed>>;
        reads lookup(queue: &$crate::QueueName, messages: &[$crate::MessageId]) -> Vec<Option<$crate::LetterState>>;
        writes note_attempts(queue: &$crate::QueueName, notes: move Vec<$crate::store::AttemptNote>) -> ();
        reads attempt_notes(queue: &$crate::QueueName, partitions: &[$crate::Partition]) -> Vec<$crate::store::AttemptNote>;
        writes forget_attempts(queue: &$crate::QueueName, partition: &$crate::Partition, up_to: move u64) -> ();
        writes claim_due(queue: &$crate::QueueName, owner: &str, lease: move ::std::time::Duration, limit: move usize) -> Vec<$crate::store::Claim>;
        reads next_due(queue: &$crate::QueueName) -> Option<$crate::Timestamp>;
        writes claim(queue: &$crate::QueueName, sequence: &$crate::SequenceId, owner: &str, lease: move ::std::time::Duration) -> Option<$crate::store::Claim>;
        writes renew(lease: &$crate::store::Lease, duration: move ::std::time::Duration, used_for: move $crate::store::LeaseUse) -> $crate::store::Lease;
        writes release(lease: &$crate::store::Lease) -> ();
        writes settle(lease: &$crate::store::Lease, letter: move $crate::LetterId, settlement: move $crate::store::Settlement) -> $crate::store::Settled;
        writes settle_and_continue(lease: &$crate::store::Lease, letter: move $crate::LetterId, settlement: move $crate::store::Settlement) -> $crate::store::Settled;
        writes act(queue: &$crate::QueueName, letter: move $crate::LetterId, act: move $crate::store::Act, by: &$crate::store::Actor) -> $crate::Letter;
        reads get(queue: &$crate::QueueName, letter: move $crate::LetterId) -> Option<$crate::Letter>;
        reads sequence(queue: &$crate::QueueName, sequence: &$crate::SequenceId, from: move u64, limit: move usize) -> Vec<$crate::Letter>;
        reads heads(queue: &$crate::QueueName, after: Option<&str>, limit: move usize) -> $crate::store::HeadsPage;
        reads counts(queue: &$crate::QueueName) -> $crate::store::Counts;
        reads sequence_size(queue: &$crate::QueueName, sequence: &$crate::SequenceId) -> u64;
        reads is_full(queue: &$crate::QueueName, sequence: &$crate::SequenceId, limits: &$crate::store::Limits) -> bool;
        writes clear(queue: &$crate::QueueName, by: &$crate::store::Actor) -> $crate::store::Cleared;
        writes set_pause(consumer: &$crate::ConsumerName, scope: &$crate::store::PauseScope, paused: move bool, by: &$crate::store::Actor) -> bool;
        reads pauses(consumer: &$crate::ConsumerName) -> Vec<$crate::store::Pause>;
        reads incarnations(consumer: &$crate::ConsumerName) -> $crate::incarnation::Incarnations;
        writes begin_incarnation(consumer: &$crate::ConsumerName, beginning: &$crate::incarnation::Beginning) -> $crate::incarnation::Incarnations;
        reads server_time() -> Option<$crate::Timestamp>;
        reads occupancy() -> $crate::store::Occupancy;
        reads place() -> Option<String>;
        reads capabilities() -> $crate::store::Capabilities;
    } };
    (Operations $wrapper:tt) => { $crate::__forward_trait! { $wrapper
        writes freeze(request: &$crate::store::PlanRequest, by: &$crate::store::Actor) -> $crate::store::Plan;
        reads plan(id: move $crate::store::PlanId) -> Option<$crate::store::Plan>;
        reads drafts(before: move Option<$crate::store::PlanId>, limit: move usize) -> Vec<$crate::store::Plan>;
        reads outcomes(plan: move $crate::store::PlanId, from: move u64, limit: move usize) -> Vec<$crate::store::Item>;
        reads plan_items(id: move $crate::store::PlanId, from: move u64, limit: move usize) -> Vec<$crate::store::Item>;
        writes begin(plan: move $crate::store::PlanId, rollout: &$crate::store::RolloutPolicy, by: &$crate::store::Actor) -> $crate::store::Operation;
        reads operation(id: move $crate::store::OperationId) -> Option<$crate::store::Operation>;
        reads operations(before: move Option<$crate::store::OperationId>, limit: move usize) -> $crate::store::OperationsPage;
        reads under_way(limit: move usize) -> Vec<$crate::store::Operation>;
        reads items(id: move $crate::store::OperationId, from: move u64, limit: move usize) -> Vec<$crate::store::Item>;
        writes command(id: move $crate::store::OperationId, command: move $crate::store::Command, by: &$crate::store::Actor) -> $crate::store::Operation;
        writes poll_work(queue: &$crate::QueueName, owner: &str, lease: move ::std::time::Duration, limit: move usize) -> $crate::store::PolledWork;
    } };
    (Triage $wrapper:tt) => { $crate::__forward_trait! { $wrapper
        reads find(query: &$crate::query::Query, after: Option<&str>, limit: move usize) -> $crate::store::LettersPage;
        reads count(query: &$crate::query::Query) -> $crate::store::Matches;
        reads groups(request: &$crate::store::GroupsRequest) -> $crate::store::GroupsPage;
        reads group(id: &$crate::store::GroupId) -> Option<$crate::store::Group>;
        reads queues() -> Vec<$crate::store::QueueSummary>;
        writes change(queue: &$crate::QueueName, letter: move $crate::LetterId, change: &$crate::store::Change, by: &$crate::store::Actor) -> $crate::Letter;
        writes purge(queue: &$crate::QueueName, letter: move $crate::LetterId, by: &$crate::store::Actor) -> ();
        writes erase(queue: &$crate::QueueName, letter: move $crate::LetterId, by: &$crate::store::Actor) -> $crate::Letter;
        writes scrub() -> $crate::store::Scrubbed;
        reads scrubbed() -> $crate::store::Scrubbed;
        writes expire(queue: &$crate::QueueName, closed_before: move Option<$crate::Timestamp>, limit: move usize) -> $crate::store::Expired;
    } };
    (Audit $wrapper:tt) => { $crate::__forward_trait! { $wrapper
        writes note(note: &$crate::store::AuditNote, by: &$crate::store::Actor) -> ();
        reads audit(after: move u64, limit: move usize) -> Vec<$crate::store::AuditEntry>;
        reads audit_about(subjects: &[String], limit: move usize) -> Vec<$crate::store::AuditEntry>;
        writes digest_key() -> $crate::store::DigestKey;
        reads verify_audit() -> Option<$crate::store::AuditCheck>;
        reads audit_head(number: move Option<u64>) -> Option<$crate::store::AuditHead>;
    } };
    (KeyValue $wrapper:tt) => { $crate::__forward_trait! { $wrapper
        reads read(space: &str, name: &str) -> $crate::store::Reading;
        writes write(space: &str, name: &str, expect: move $crate::store::Expect, value: move Option<$crate::store::forward::Bytes>, ttl: move Option<::std::time::Duration>) -> $crate::store::Written;
    } };
    (Outbox $wrapper:tt) => { $crate::__forward_trait! { $wrapper
        writes watch_ends(queue: &$crate::QueueName) -> ();
        reads ends(queue: &$crate::QueueName, after: move u64, limit: move usize) -> $crate::store::EndsPage;
        writes forget_ends(queue: &$crate::QueueName, up_to: move u64) -> ();
        writes unwatch_ends(queue: &$crate::QueueName) -> ();
    } };
}

/// Writes the implementation of one trait. All methods come from one expansion: `async_trait` has to see their signatures.
#[doc(hidden)]
#[macro_export]
macro_rules! __forward_trait {
    (
        { $trait:ident $rule:tt [$($generics:tt)*] ($type:ty) $overrides:tt }
        $(@subscribe $changes:ident;)?
        $($access:ident $name:ident($(
            $argument:ident $(: &$borrowed:ty)? $(: Option<&$optional:ty>)? $(: move $value:ty)?
        ),*) -> $answer:ty;)+
    ) => {
        #[$crate::store::forward::async_trait]
        impl<$($generics)*> $crate::store::$trait for $type {
            $(
                fn $changes(
                    &self,
                    topics: ::std::vec::Vec<$crate::store::Topic>,
                ) -> $crate::store::Changes {
                    let this = self;
                    $crate::__forward_changes! { $rule $trait $changes this topics }
                }
            )?

            $(
                async fn $name(
                    &self,
                    $($argument: $(&$borrowed)? $(Option<&$optional>)? $($value)?),*
                ) -> $crate::store::Result<$answer> {
                    let this = self;
                    $crate::__forward_method! {
                        $overrides $rule $trait $access $name this (this, $($argument),*)
                        [$($argument $(: &$borrowed)? $(: Option<&$optional>)? $(: move $value)?),*]
                    }
                }
            )+
        }

        $crate::__forward_check! { $trait [$($generics)*] ($type) $overrides }
    };
}

/// The body of the method that subscribes: always that of the store inside.
#[doc(hidden)]
#[macro_export]
macro_rules! __forward_changes {
    (
        { inner ($store:ident $inner:expr) $around:tt } $trait:ident $name:ident $this:ident $topics:ident
    ) => {{
        let $store = $this;
        $crate::store::$trait::$name($inner, $topics)
    }};
    (
        { shared ($store:ident $inner:expr) $around:tt } $trait:ident $name:ident $this:ident $topics:ident
    ) => {{
        let $store = $this;
        let inner = $inner;
        $crate::store::$trait::$name(&*inner, $topics)
    }};
}

/// Refuses to override a method that the trait does not have.
#[doc(hidden)]
#[macro_export]
macro_rules! __forward_check {
    ($trait:ident $generics:tt $type:tt {}) => {};
    ($trait:ident [$($generics:tt)*] ($type:ty) { $($method:ident => $function:expr;)+ }) => {
        const _: () = {
            #[allow(dead_code)]
            fn overridden<$($generics)*>() {
                $(let _ = <$type as $crate::store::$trait>::$method;)+
            }
        };
    };
}

/// The body of one method: its override, or what the rule says.
#[doc(hidden)]
#[macro_export]
macro_rules! __forward_method {
    ({} $rule:tt $trait:ident $access:ident $name:ident $this:ident $passed:tt $arguments:tt) => {
        $crate::__forward_call! { $rule $trait $access $name $this $arguments }
    };
    (
        { $($method:ident => $function:expr;)+ }
        $rule:tt $trait:ident $access:ident $name:ident $this:ident $passed:tt $arguments:tt
    ) => {{
        // Only a macro can compare two names, and only a local one can have the names of the overrides among its rules.
        macro_rules! body {
            $(($method) => { $function $passed.await };)+
            ($name) => { $crate::__forward_call! { $rule $trait $access $name $this $arguments } };
        }
        body!($name)
    }};
}

/// The body of one method that is not overridden.
#[doc(hidden)]
#[macro_export]
macro_rules! __forward_call {
    (
        { inner ($store:ident $inner:expr) ($caller:ident $call:ident $run:ident $around:expr) }
        $trait:ident $access:ident $name:ident $this:ident [$(
            $argument:ident $(: &$borrowed:ty)? $(: Option<&$optional:ty>)? $(: move $value:ty)?
        ),*]
    ) => {{
        let $store = $this;
        let $run = $crate::store::$trait::$name($inner, $($argument),*);
        let $caller = $this;
        let $call = $crate::store::Call::new(stringify!($name), $crate::__forward_access!($access));
        $around
    }};
    (
        { shared ($store:ident $inner:expr) ($caller:ident $call:ident $run:ident $around:expr) }
        $trait:ident $access:ident $name:ident $this:ident [$(
            $argument:ident $(: &$borrowed:ty)? $(: Option<&$optional:ty>)? $(: move $value:ty)?
        ),*]
    ) => {{
        let $store = $this;
        let inner = $inner;
        $(
            $(let $argument: <$borrowed as ToOwned>::Owned = ToOwned::to_owned($argument);)?
            $(let $argument: Option<<$optional as ToOwned>::Owned> = $argument.map(ToOwned::to_owned);)?
            $(let $argument: $value = $argument;)?
        )*
        let $run = async move {
            $crate::store::$trait::$name(&*inner, $(
                $(::std::borrow::Borrow::<$borrowed>::borrow(&$argument))?
                $($argument.as_ref().map(::std::borrow::Borrow::<$optional>::borrow))?
                $(::std::convert::identity::<$value>($argument))?
            ),*).await
        };
        let $caller = $this;
        let $call = $crate::store::Call::new(stringify!($name), $crate::__forward_access!($access));
        $around
    }};
}

/// `true` for a method that may change the store.
#[doc(hidden)]
#[macro_export]
macro_rules! __forward_access {
    (reads) => {
        false
    };
    (writes) => {
        true
    };
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{Counts, KeyValue, Outbox, Result, Store};
    use crate::QueueName;

    struct Borrowing<S>(S);

    crate::forward_store! {
        impl<S: Store> LetterStore for Borrowing<S> {
            counts => Self::no_counts;
        }
        impl<S: Store> Operations for Borrowing<S> {}
        impl<S: Store> Triage for Borrowing<S> {}
        impl<S: Store> Audit for Borrowing<S> {}
        impl<S: KeyValue> KeyValue for Borrowing<S> {}
        impl<S: Outbox> Outbox for Borrowing<S> {}
        inner: |this| &this.0;
        around: |_this, _call, run| run.await;
    }

    impl<S: Store> Borrowing<S> {
        async fn no_counts(&self, _queue: &QueueName) -> Result<Counts> {
            Ok(Counts::default())
        }
    }

    struct Sharing<S: ?Sized>(Arc<S>);

    crate::forward_store! {
        impl LetterStore for Sharing<dyn Store> {}
        impl Operations for Sharing<dyn Store> {}
        impl Triage for Sharing<dyn Store> {}
        impl Audit for Sharing<dyn Store> {}
        impl KeyValue for Sharing<dyn KeyValue> {}
        impl Outbox for Sharing<dyn Outbox> {}
        shared: |this| this.0.clone();
        around: |_this, _call, run| is_static(run).await;
    }

    fn is_static<F: Future + Send + 'static>(run: F) -> F {
        run
    }

    fn is_store<S: Store>() {}

    /// The list of methods is that of the traits: without one of them, or with one too many, this does not compile.
    #[test]
    fn a_wrapper_of_a_store_is_a_store() {
        fn wrapped<S: Store>() {
            is_store::<Borrowing<S>>();
        }
        wrapped::<Sharing<dyn Store>>();
        is_store::<Sharing<dyn Store>>();
    }
}
