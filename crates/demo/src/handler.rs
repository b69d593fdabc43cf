//! The handler: charges orders by way of a payment service that fails, and has bugs of its own.

use std::sync::Arc;
use std::time::Duration;

use lazaret::prelude::*;

use crate::folder::Folder;
use crate::journal::{Fact, Journal, mixed_bytes};
use crate::orders::{HARBOUR, Order, mixed};

/// One in so many first attempts times out, even when every bank works.
const FLAKY: u64 = 40;

/// What the handler works with.
pub(crate) struct Shop {
    pub(crate) folder: Folder,
    pub(crate) journal: Arc<Journal>,
}

impl Shop {
    /// Handles one order, and writes down that it was called and how it ended. That an attempt failed is written down by the
    /// observer: a handler that panics cannot.
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
            payload: mixed_bytes(payload),
        };
        self.journal.write(id, begun)?;
        let Json(order) = order?;
        self.charge(&order, context.attempt()).await?;
        self.journal.write(id, Fact::Done)?;
        Ok(())
    }

    async fn charge(&self, order: &Order, attempt: u32) -> Result<(), HandlerError> {
        let price = price(order)?;
        let tax = tax(&order.country, price);
        self.pay(order, price + tax, attempt).await
    }

    /// The payment service. One bank of it may be away, and it is never quite reliable.
    async fn pay(&self, order: &Order, _cents: i64, attempt: u32) -> Result<(), HandlerError> {
        let drawn = mixed(u64::from(order.number) | u64::from(attempt) << 32);
        tokio::time::sleep(Duration::from_millis(2 + drawn % 12)).await;
        if order.bank == HARBOUR && self.folder.is_outage() {
            let error = HandlerError::msg(format!("{HARBOUR} does not answer")).status(503);
            return Err(error.reason(Reason::DEPENDENCY_UNAVAILABLE).phase(Phase::ExternalCall));
        }
        if attempt == 1 && drawn.is_multiple_of(FLAKY) {
            let error = HandlerError::msg("the payment service took too long");
            return Err(error.reason(Reason::TIMEOUT).phase(Phase::ExternalCall));
        }
        Ok(())
    }
}

/// The price after the voucher. That there may be no item was not thought of.
fn price(order: &Order) -> Result<i64, HandlerError> {
    let wrapping = if order.items[0] == "lamp" { 150 } else { 0 };
    let price = order.cents + wrapping - order.cents * order.voucher / 100;
    if price < 0 {
        let error = HandlerError::msg("the price is negative after the voucher");
        return Err(error.reason(Reason::DOMAIN_INVALID));
    }
    Ok(price)
}

/// Stands for native code with a bug: it takes the whole process down.
fn tax(country: &str, cents: i64) -> i64 {
    if country == "Atlantis" {
        std::process::abort();
    }
    cents / 10
}
