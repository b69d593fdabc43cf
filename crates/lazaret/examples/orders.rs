//! An order stream in memory, with a payment gateway that is down for a moment and a bug in the handler.
//!
//! `cargo run -p lazaret --example orders` shows how Lazaret handles both. It checks its own outcome and
//! returns an error if an invariant is violated.
//!
//! Three customers send ten orders over two partitions. The customer is the key, so each customer's
//! orders stay in their order:
//! - Ada's orders succeed.
//! - Bob's first order fails twice because the payment gateway times out, then succeeds.
//! - Cleo's second order has a voucher of more than 100 percent, and the handler computes a negative price.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lazaret::memory::{MemoryLog, MemoryStore};
use lazaret::prelude::*;
use serde::Deserialize;

/// The consumer's name, which its only component also has.
const SHOP: &str = "shop";
const MAX_ATTEMPTS: u32 = 5;

/// The orders: partition, customer, order number, cents, voucher in percent.
const ORDERS: [(u32, &str, u32, i64, i64); 10] = [
    (0, "ada", 1, 1250, 0),
    (1, "bob", 1, 800, 0),
    (0, "cleo", 1, 4000, 0),
    (0, "cleo", 2, 3000, 120),
    (0, "ada", 2, 600, 10),
    (1, "bob", 2, 950, 0),
    (0, "cleo", 3, 2000, 0),
    (1, "bob", 3, 700, 0),
    (0, "cleo", 4, 1500, 50),
    (0, "ada", 3, 300, 0),
];

#[derive(Deserialize)]
struct Order {
    customer: String,
    number: u32,
    cents: i64,
    voucher: i64,
}

/// Set once the bug is fixed.
static FIXED: AtomicBool = AtomicBool::new(false);
/// All calls of the handler, in order.
static CALLS: Mutex<Vec<Call>> = Mutex::new(Vec::new());

#[derive(Clone)]
struct Call {
    customer: String,
    number: u32,
    attempt: u32,
    /// `true` if the order came from the store, not from the stream.
    stored: bool,
    failed: Option<&'static str>,
}

async fn on_order(
    Json(order): Json<Order>,
    attempt: Attempt,
    letter: Option<StoredLetter>,
) -> Result<(), HandlerError> {
    let charged = charge(&order, attempt);
    calls().push(Call {
        customer: order.customer,
        number: order.number,
        attempt: attempt.0,
        stored: letter.is_some(),
        failed: charged.as_ref().err().map(|(why, _)| *why),
    });
    // The reason decides what happens next: a timeout is retried, a violated domain rule is not.
    charged.map_err(|(why, reason)| HandlerError::msg(why).reason(reason))
}

fn charge(order: &Order, attempt: Attempt) -> Result<(), (&'static str, Reason)> {
    if order.customer == "bob" && order.number == 1 && attempt < Attempt(3) {
        return Err(("payment gateway timed out", Reason::TIMEOUT));
    }
    let price = order.cents - order.cents * order.voucher / 100;
    if price < 0 && !FIXED.load(Ordering::Relaxed) {
        return Err(("negative price", Reason::DOMAIN_INVALID));
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let log = send_orders();
    let store = Arc::new(MemoryStore::default());

    println!("Ten orders of three customers. The shop handles them until nothing is left to do.\n");
    let shop = consumer(&log, &store)?;
    let queue = shop.queue().clone();
    let stats = shop.run(CancellationToken::new()).await?;
    let live = calls().clone();
    print_calls(&live);
    println!("\nBob's later orders waited for his first one. Ada's did not wait.");
    check_order(&live)?;
    let last_of_ada = live.iter().rposition(|call| call.customer == "ada");
    let bob_is_served = live.iter().position(|call| call.customer == "bob" && call.failed.is_none());
    check(last_of_ada < bob_is_served, "I3: no sequence waits for another one")?;
    check(live.iter().all(|call| call.attempt <= MAX_ATTEMPTS), "I4: attempts are bounded")?;

    println!("\nCleo's letters:");
    let letters = store.sequence(&queue, &"cleo".into(), 0, 10).await?;
    print_letters(&letters);
    let states: Vec<_> = letters.iter().map(|letter| letter.state).collect();
    let expected = [LetterState::Dead, LetterState::Waiting, LetterState::Waiting];
    check(states == expected, "I2: later orders wait behind the dead one")?;
    print_positions(&log);
    check(
        log.committed(0) == Some(6) && log.committed(1) == Some(2),
        "I1: everything is settled and committed",
    )?;
    check(stats.handled == 7, "seven of ten orders are handled")?;

    println!("\nThe bug is fixed, the shop is started again, and Cleo's letters are replayed.\n");
    FIXED.store(true, Ordering::Relaxed);
    let consumer = consumer(&log, &store)?;
    let replayer = consumer.handle().replayer(SHOP).ok_or("the shop has a component of its own name")?;
    let report = replayer.process_all("vouchers are fixed").await?;
    let stats = consumer.run(CancellationToken::new()).await?;
    let all = calls().clone();
    print_calls(&all[live.len()..]);
    check_order(&all)?;
    check(
        (report.closed, report.held, report.skipped) == (1, 0, 0),
        "the replay ends the one open sequence",
    )?;
    check(stats.read == 0, "I1: no order that was committed is read again")?;

    let counts = store.counts(&queue).await?;
    let handled = all.iter().filter(|call| call.failed.is_none()).count();
    let (open, resolved) = (counts.open(), counts.of(LetterState::Resolved));
    println!("\n{handled} orders handled, {open} letters open, {resolved} letters resolved.");
    check(handled == ORDERS.len(), "I8: every order is handled, none is handled twice")?;
    check((open, resolved) == (0, 6), "I11: every letter ends in a recorded state")
}

/// Writes all orders to a log and closes it.
fn send_orders() -> MemoryLog {
    let log = MemoryLog::new("orders", 2);
    for (partition, customer, number, cents, voucher) in ORDERS {
        let order =
            format!(r#"{{"customer":"{customer}","number":{number},"cents":{cents},"voucher":{voucher}}}"#);
        log.push(partition, customer, order);
    }
    log.close();
    log
}

fn consumer(log: &MemoryLog, store: &Arc<MemoryStore>) -> Result<Consumer, BuildError> {
    let retry = RetryPolicy {
        max_attempts: MAX_ATTEMPTS,
        initial_delay: Duration::from_millis(50),
        // The first retry is due within this time and waits in memory. The second is due later and waits
        // in the store.
        hold: Duration::from_millis(80),
        jitter: 0.0,
        ..RetryPolicy::default()
    };
    Consumer::builder(SHOP)
        .source(log.join())
        .store(store.clone())
        .handler(on_order)
        .retry(retry)
        .until_idle()
        .build()
}

fn calls() -> MutexGuard<'static, Vec<Call>> {
    CALLS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn by_customer(calls: &[Call]) -> BTreeMap<&str, Vec<&Call>> {
    let mut customers = BTreeMap::<_, Vec<_>>::new();
    for call in calls {
        customers.entry(&*call.customer).or_default().push(call);
    }
    customers
}

/// Prints the calls for each customer. There is no order between customers.
fn print_calls(calls: &[Call]) {
    for (customer, calls) in by_customer(calls) {
        for Call { number, attempt, stored, failed, .. } in calls {
            let whence = if *stored { "from the store" } else { "live" };
            let how = failed.map_or_else(|| "ok".to_owned(), |why| format!("failed: {why}"));
            println!("  {customer:<5} order {number}  attempt {attempt}  {whence:<15} {how}");
        }
    }
}

fn print_letters(letters: &[Letter]) {
    for letter in letters {
        let (id, state) = (&letter.message.id, letter.state.as_str());
        let cause = letter.cause.as_ref().map(|cause| format!("{}: {}", cause.reason, cause.message));
        println!("  {id}  {state:<8}  {}", cause.unwrap_or_else(|| "behind the first".to_owned()));
    }
}

fn print_positions(log: &MemoryLog) {
    for partition in 0..log.partitions() {
        let committed = log.committed(partition).map_or(0, |offset| offset + 1);
        println!("Partition {partition}: {committed} of {} messages committed.", log.next_offset(partition));
    }
}

/// Checks that no order of a customer is tried before the previous one was handled.
fn check_order(calls: &[Call]) -> Result<(), Box<dyn Error>> {
    for (customer, calls) in by_customer(calls) {
        let mut handled = 0;
        for call in calls {
            check(call.number == handled + 1, &format!("I2: the orders of {customer} keep their order"))?;
            handled += u32::from(call.failed.is_none());
        }
    }
    Ok(())
}

fn check(holds: bool, promise: &str) -> Result<(), Box<dyn Error>> {
    if holds { Ok(()) } else { Err(format!("broken: {promise}").into()) }
}
