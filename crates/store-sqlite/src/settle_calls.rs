//! Settlements, as calls that the redo log can record.

use lazaret_core::letter::LetterId;
use lazaret_core::store::{Lease, Settled, Settlement};

use crate::error::{Fault, Work};
use crate::lease_calls::{BASE_BYTES, put_lease, read_lease};
use crate::recorded::Repeatable;
use crate::redo::{Fields, Size, put};
use crate::rows::{id_bytes, letter_id};
use crate::step::Step;

/// Settles the head of a leased sequence.
#[derive(Clone, Debug)]
pub(crate) struct Settle {
    lease: Lease,
    letter: LetterId,
    /// `None` once it has run: a repetition decodes it.
    settlement: Option<Settlement>,
    /// The settlement in the log.
    encoded: Vec<u8>,
}

impl Settle {
    pub(crate) fn new(lease: &Lease, letter: LetterId, settlement: Settlement) -> Work<Self> {
        let encoded = serde_json::to_vec(&settlement)
            .map_err(|error| Fault::Corrupt(format!("failed to encode a settlement: {error}")))?;
        Ok(Self { lease: lease.clone(), letter, settlement: Some(settlement), encoded })
    }

    /// `take_next`: an operation takes the letter behind, if it may.
    fn settle(&mut self, step: &mut Step<'_>, take_next: bool) -> Work<Settled> {
        let settlement = self.settlement.take().map_or_else(|| decode_settlement(&self.encoded), Ok)?;
        let (lease, letter) = (&self.lease, self.letter);
        step.queue(&lease.queue, |queue| queue.settle(lease, letter, settlement, take_next))
    }
}

fn decode_settlement(encoded: &[u8]) -> Work<Settlement> {
    serde_json::from_slice(encoded)
        .map_err(|error| Fault::Corrupt(format!("failed to decode a settlement: {error}")))
}

impl Repeatable for Settle {
    const KIND: u8 = 8;
    const OPERATION: &'static str = "settle";
    const FAILS_ALONE: bool = true;
    type Answer = Settled;

    fn run(&mut self, step: &mut Step<'_>) -> Work<Settled> {
        self.settle(step, false)
    }

    fn outcome(settled: &Settled, into: &mut Vec<u8>) {
        into.push(match settled {
            Settled::Next(_) => b'n',
            Settled::Closed => b'c',
            Settled::Blocked => b'b',
            Settled::Requeued => b'r',
        });
        if let Settled::Next(next) = settled {
            into.extend_from_slice(&id_bytes(next.id));
        }
    }

    fn encode(&self, into: &mut Vec<u8>) {
        put_lease(into, &self.lease);
        put::bytes(into, &id_bytes(self.letter));
        put::bytes(into, &self.encoded);
    }

    fn decode(fields: &mut Fields<'_>) -> Work<Self> {
        let (lease, letter) = (read_lease(fields)?, letter_id(fields.bytes()?)?);
        let encoded = fields.bytes()?.to_vec();
        let settlement = fields.known(decode_settlement(&encoded).ok())?;
        Ok(Self { lease, letter, settlement: Some(settlement), encoded })
    }

    fn size(&self, _: &Settled) -> Size {
        Size { count: 1, bytes: BASE_BYTES + self.encoded.len() }
    }
}

/// Settles the head of a leased sequence, and lets its operation take the letter behind.
#[derive(Clone, Debug)]
pub(crate) struct SettleAndContinue(pub(crate) Settle);

impl Repeatable for SettleAndContinue {
    const KIND: u8 = 10;
    const OPERATION: &'static str = "settle_and_continue";
    const FAILS_ALONE: bool = true;
    type Answer = Settled;

    fn run(&mut self, step: &mut Step<'_>) -> Work<Settled> {
        self.0.settle(step, true)
    }

    fn outcome(settled: &Settled, into: &mut Vec<u8>) {
        Settle::outcome(settled, into);
    }

    fn encode(&self, into: &mut Vec<u8>) {
        self.0.encode(into);
    }

    fn decode(fields: &mut Fields<'_>) -> Work<Self> {
        Settle::decode(fields).map(Self)
    }

    fn size(&self, settled: &Settled) -> Size {
        self.0.size(settled)
    }
}
