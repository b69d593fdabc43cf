//! The handler: charges orders through an unreliable payment service, and has bugs of its own.

use std::sync::Arc;
use std::time::Duration;

use lazaret::prelude::*;

use crate::folder::Folder;
use crate::journal::{Fact, Journal, fnv1a};
use crate::orders::{HARBOUR, Order, mix};

/// One in this many first attempts times out, even when every bank is up.
const TIMEOUT_ONE_IN: u64 = 40;

/// The state of the handler.
pub(crate) struct Shop {
    pub(crate) folder: Folder,
    pub(crate) journal: Arc<Journal>,
}

/// A call of the handler. If the machine stalls for longer than a lease, calls are dropped before they
/// end, and no event reports it.
struct Call<'a> {
    journal: &'a Journal,
    id: &'a str,
    done: bool,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if !self.done {
            // If the journal cannot be written, the next call fails.
            let _ = self.journal.write(self.id, Fact::Left);
        }
    }
}

impl Shop {
    /// Handles one order, and records the call and its success in the journal. The observer records
    /// failures, because a handler that panics cannot.
    pub(crate) async fn handle(
        &self,
        order: Result<Json<Order>, HandlerError>,
        context: Context,
    ) -> Result<(), HandlerError> {
        let id = context.event_id().as_str();
        let payload = context.message().payload.as_deref().unwrap_or_default();
        let begun = Fact::Begun {
            attempt: context.attempt(),
            replay: context.replay().is_some(),
            payload: fnv1a(payload),
        };
        self.journal.write(id, begun)?;
        let mut call = Call { journal: &self.journal, id, done: false };
        let Json(order) = order?;
        self.charge(&order, context.attempt()).await?;
        call.done = true;
        self.journal.write(id, Fact::Done)?;
        Ok(())
    }

    async fn charge(&self, order: &Order, attempt: u32) -> Result<(), HandlerError> {
        let price = price(order)?;
        let tax = tax(&order.country, price);
        self.pay(order, price + tax, attempt).await
    }

    /// Calls the payment service. One of its banks may be down, and some calls time out.
    async fn pay(&self, order: &Order, _cents: i64, attempt: u32) -> Result<(), HandlerError> {
        let drawn = mix(u64::from(order.number) | u64::from(attempt) << 32);
        tokio::time::sleep(Duration::from_millis(2 + drawn % 12)).await;
        if order.bank == HARBOUR && self.folder.is_outage() {
            let error = HandlerError::msg(format!("{HARBOUR} is down")).status(503);
            return Err(error.reason(Reason::DEPENDENCY_UNAVAILABLE).phase(Phase::ExternalCall));
        }
        if attempt == 1 && drawn.is_multiple_of(TIMEOUT_ONE_IN) {
            let error = HandlerError::msg("payment service timed out");
            return Err(error.reason(Reason::TIMEOUT).phase(Phase::ExternalCall));
        }
        Ok(())
    }
}

/// Returns the price after the voucher. Panics for an order without items, which is an intentional bug.
fn price(order: &Order) -> Result<i64, HandlerError> {
    let wrapping = if order.items[0] == "lamp" { 150 } else { 0 };
    let price = order.cents + wrapping - order.cents * order.voucher / 100;
    if price < 0 {
        let error = HandlerError::msg("price is negative after the voucher");
        return Err(error.reason(Reason::DOMAIN_INVALID));
    }
    Ok(price)
}

/// Computes the tax. This stands for native code with a bug that aborts the process.
fn tax(country: &str, cents: i64) -> i64 {
    if country == "Atlantis" {
        std::process::abort();
    }
    cents / 10
}
