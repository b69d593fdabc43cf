//! Claims, renewals and releases, as calls that the redo log can record.
//!
//! Each fails alone, as every call that reads rows of letters: one damaged row must fail one call.

use std::time::Duration;

use lazaret_core::LetterId;
use lazaret_core::store::{Lease, LeaseUse};
use lazaret_core::{QueueName, SequenceId};

use crate::error::Work;
use crate::recorded::Repeatable;
use crate::redo::{Fields, Size, put};
use crate::rows::{id_bytes, nanos, time};
use crate::step::Step;
use crate::undecoded_claims::{UndecodedClaim, UndecodedWork};

/// The size of a call without its texts.
pub(crate) const BASE_BYTES: usize = 128;

fn size(count: usize) -> Size {
    Size { count, bytes: BASE_BYTES * count.max(1) }
}

/// The owner and the length of leases to give.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Claimant {
    queue: QueueName,
    owner: String,
    lease: Duration,
}

impl Claimant {
    fn new(queue: &QueueName, owner: &str, lease: Duration) -> Self {
        Self { queue: queue.clone(), owner: owner.to_owned(), lease }
    }

    fn encode(&self, into: &mut Vec<u8>) {
        put::text(into, self.queue.as_str());
        put::text(into, &self.owner);
        put_duration(into, self.lease);
    }

    fn decode(fields: &mut Fields<'_>) -> Work<Self> {
        let queue = QueueName::from(fields.text()?);
        Ok(Self { queue, owner: fields.text()?.to_owned(), lease: duration(fields)? })
    }
}

fn put_duration(into: &mut Vec<u8>, duration: Duration) {
    put::number(into, duration.as_secs());
    put::number(into, duration.subsec_nanos().into());
}

fn duration(fields: &mut Fields<'_>) -> Work<Duration> {
    let (seconds, nanos) = (fields.number()?, fields.small()?);
    let part = fields.known((nanos < 1_000_000_000).then_some(nanos))?;
    Ok(Duration::new(seconds, part))
}

pub(crate) fn put_lease(into: &mut Vec<u8>, lease: &Lease) {
    put::text(into, lease.queue.as_str());
    put::text(into, lease.sequence.as_str());
    put::text(into, &lease.owner);
    put::number(into, lease.fence);
    put::signed(into, nanos(lease.until));
}

pub(crate) fn read_lease(fields: &mut Fields<'_>) -> Work<Lease> {
    Ok(Lease {
        queue: QueueName::from(fields.text()?),
        sequence: SequenceId::new(fields.text()?),
        owner: fields.text()?.to_owned(),
        fence: fields.number()?,
        until: time(fields.signed()?),
    })
}

fn put_claim(into: &mut Vec<u8>, lease: &Lease, head: LetterId) {
    put::number(into, lease.fence);
    into.extend_from_slice(&id_bytes(head));
}

fn put_undecoded(into: &mut Vec<u8>, claim: &UndecodedClaim) {
    put_claim(into, &claim.lease, claim.head.letter.id);
}

/// Claims sequences that are due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClaimDue {
    by: Claimant,
    limit: usize,
    /// Whether the clock was set back since the last claim: decided when it first runs, as no state in the file tells.
    went_back: Option<bool>,
}

impl ClaimDue {
    pub(crate) fn new(queue: &QueueName, owner: &str, lease: Duration, limit: usize) -> Self {
        Self { by: Claimant::new(queue, owner, lease), limit, went_back: None }
    }
}

impl Repeatable for ClaimDue {
    const KIND: u8 = 4;
    const OPERATION: &'static str = "claim_due";
    const FAILS_ALONE: bool = true;
    type Answer = Vec<UndecodedClaim>;

    fn run(&mut self, step: &mut Step<'_>) -> Work<Vec<UndecodedClaim>> {
        let Claimant { queue, owner, lease } = &self.by;
        let now = time(step.now);
        let went_back = *self.went_back.get_or_insert_with(|| step.cache.clock_went_back(queue, now));
        step.queue(queue, |queue| {
            if went_back {
                queue.clamp_rows(*lease)?;
            }
            queue.claim_due(owner, *lease, self.limit)
        })
    }

    fn outcome(claims: &Vec<UndecodedClaim>, into: &mut Vec<u8>) {
        claims.iter().for_each(|claim| put_undecoded(into, claim));
    }

    fn encode(&self, into: &mut Vec<u8>) {
        self.by.encode(into);
        put::number(into, self.limit as u64);
        into.push(self.went_back.unwrap_or_default().into());
    }

    fn decode(fields: &mut Fields<'_>) -> Work<Self> {
        let (by, limit) = (Claimant::decode(fields)?, fields.number()?);
        let went_back = fields.byte()?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Ok(Self { by, limit, went_back: Some(fields.known((went_back <= 1).then_some(went_back == 1))?) })
    }

    fn size(&self, claims: &Vec<UndecodedClaim>) -> Size {
        size(claims.len())
    }
}

/// Claims one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClaimOne {
    by: Claimant,
    sequence: SequenceId,
}

impl ClaimOne {
    pub(crate) fn new(queue: &QueueName, sequence: &SequenceId, owner: &str, lease: Duration) -> Self {
        Self { by: Claimant::new(queue, owner, lease), sequence: sequence.clone() }
    }
}

impl Repeatable for ClaimOne {
    const KIND: u8 = 5;
    const OPERATION: &'static str = "claim";
    const FAILS_ALONE: bool = true;
    type Answer = Option<UndecodedClaim>;

    fn run(&mut self, step: &mut Step<'_>) -> Work<Option<UndecodedClaim>> {
        let Claimant { queue, owner, lease } = &self.by;
        step.queue(queue, |queue| queue.claim(&self.sequence, owner, *lease))
    }

    fn outcome(claim: &Option<UndecodedClaim>, into: &mut Vec<u8>) {
        claim.iter().for_each(|claim| put_undecoded(into, claim));
    }

    fn encode(&self, into: &mut Vec<u8>) {
        self.by.encode(into);
        put::text(into, self.sequence.as_str());
    }

    fn decode(fields: &mut Fields<'_>) -> Work<Self> {
        Ok(Self { by: Claimant::decode(fields)?, sequence: SequenceId::new(fields.text()?) })
    }

    fn size(&self, claim: &Option<UndecodedClaim>) -> Size {
        size(claim.iter().len())
    }
}

/// Renews a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Renew {
    pub(crate) lease: Lease,
    pub(crate) duration: Duration,
    pub(crate) used_for: LeaseUse,
}

impl Repeatable for Renew {
    const KIND: u8 = 6;
    const OPERATION: &'static str = "renew";
    const FAILS_ALONE: bool = true;
    type Answer = Lease;

    fn run(&mut self, step: &mut Step<'_>) -> Work<Lease> {
        let Self { lease, duration, used_for } = &*self;
        step.queue(&lease.queue, |queue| queue.renew(lease, *duration, *used_for))
    }

    fn outcome(renewed: &Lease, into: &mut Vec<u8>) {
        put::signed(into, nanos(renewed.until));
    }

    fn encode(&self, into: &mut Vec<u8>) {
        put_lease(into, &self.lease);
        put_duration(into, self.duration);
        into.push((self.used_for == LeaseUse::Wait).into());
    }

    fn decode(fields: &mut Fields<'_>) -> Work<Self> {
        let (lease, duration) = (read_lease(fields)?, duration(fields)?);
        let used_for = match fields.byte()? {
            0 => Some(LeaseUse::Attempt),
            1 => Some(LeaseUse::Wait),
            _ => None,
        };
        Ok(Self { lease, duration, used_for: fields.known(used_for)? })
    }

    fn size(&self, _: &Lease) -> Size {
        size(1)
    }
}

/// Releases a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Release {
    pub(crate) lease: Lease,
}

impl Repeatable for Release {
    const KIND: u8 = 7;
    const OPERATION: &'static str = "release";
    const FAILS_ALONE: bool = true;
    type Answer = ();

    fn run(&mut self, step: &mut Step<'_>) -> Work<()> {
        step.queue(&self.lease.queue, |queue| queue.release(&self.lease))
    }

    fn outcome((): &(), _: &mut Vec<u8>) {}

    fn encode(&self, into: &mut Vec<u8>) {
        put_lease(into, &self.lease);
    }

    fn decode(fields: &mut Fields<'_>) -> Work<Self> {
        Ok(Self { lease: read_lease(fields)? })
    }

    fn size(&self, (): &()) -> Size {
        size(1)
    }
}

/// Polls the letters of operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PollWork {
    by: Claimant,
    limit: usize,
}

impl PollWork {
    pub(crate) fn new(queue: &QueueName, owner: &str, lease: Duration, limit: usize) -> Self {
        Self { by: Claimant::new(queue, owner, lease), limit }
    }
}

impl Repeatable for PollWork {
    const KIND: u8 = 9;
    const OPERATION: &'static str = "poll_work";
    const FAILS_ALONE: bool = true;
    type Answer = UndecodedWork;

    fn run(&mut self, step: &mut Step<'_>) -> Work<UndecodedWork> {
        let Claimant { queue, owner, lease } = &self.by;
        step.queue(queue, |queue| queue.poll_work(owner, *lease, self.limit))
    }

    fn outcome(UndecodedWork { work, .. }: &UndecodedWork, into: &mut Vec<u8>) {
        for item in &work.items {
            put::number(into, item.operation.0);
            put_claim(into, &item.claim.lease, item.claim.head.id);
        }
        put::number(into, work.settled);
        put::option(into, work.again_at.map(nanos), put::signed);
    }

    fn encode(&self, into: &mut Vec<u8>) {
        self.by.encode(into);
        put::number(into, self.limit as u64);
    }

    fn decode(fields: &mut Fields<'_>) -> Work<Self> {
        let (by, limit) = (Claimant::decode(fields)?, fields.number()?);
        Ok(Self { by, limit: usize::try_from(limit).unwrap_or(usize::MAX) })
    }

    fn size(&self, UndecodedWork { work, .. }: &UndecodedWork) -> Size {
        size(work.items.len() + usize::try_from(work.settled).unwrap_or(usize::MAX / 2 / BASE_BYTES))
    }
}
