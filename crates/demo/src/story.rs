//! The story without a user: orders, outage, repair, replay, and the verification at the end.

use std::time::Duration;

use tokio::time::Instant;

use crate::console_pages::{self, ConsolePages};
use crate::dashboard::{Dashboard, Subject};
use crate::error::Error;
use crate::evidence::Evidence;
use crate::orders::{self, CUSTOMERS, HARBOUR, LAST_HEALTHY};
use crate::outcome::Outcome;
use crate::session::Session;

/// The default rate of orders per second. It is raised if it is too low for a complete story.
const DEFAULT_RATE: u32 = 200;
/// The interval between batches of orders.
const SEND_INTERVAL: Duration = Duration::from_millis(25);

/// Prints log lines.
pub(crate) struct LogWriter<'a> {
    print: &'a mut (dyn FnMut(&str) + Send),
    printed: u64,
}

impl<'a> LogWriter<'a> {
    pub(crate) fn new(print: &'a mut (dyn FnMut(&str) + Send)) -> Self {
        Self { print, printed: 0 }
    }

    fn line(&mut self, dashboard: &Dashboard, text: &str) {
        (self.print)(&format!("{:>5.1} s  {text}", dashboard.elapsed().as_secs_f64()));
    }

    /// Prints new log entries about the demo as a whole and about poison orders. Too many other orders
    /// fail in the outage.
    fn follow(&mut self, dashboard: &Dashboard) {
        let (new, printed) = dashboard.since(self.printed);
        self.printed = printed;
        for entry in new {
            if entry.subject != Subject::Order {
                (self.print)(&format!("{:>5.1} s  {}", entry.after.as_secs_f64(), entry.text));
            }
        }
    }
}

/// Runs the story and verifies the guarantees. Orders are sent for this many seconds.
pub(crate) async fn play(
    session: &mut Session,
    seconds: u32,
    command: &str,
    mut log: LogWriter<'_>,
) -> Result<Outcome, Error> {
    let rate = rate(seconds);
    let total = rate.saturating_mul(seconds);
    session.until("the worker did not start", |dashboard| dashboard.running, |_| {}).await?;
    log.line(
        &session.dashboard,
        &format!("sending {total} orders of {CUSTOMERS} customers; orders of one customer stay in order"),
    );
    if let Some(port) = session.dashboard.port {
        let url = format!("http://127.0.0.1:{port}");
        log.line(&session.dashboard, &format!("serving the API at {url}: try {command} --url {url} groups"));
        log.line(&session.dashboard, &format!("open the console in a browser: {}", console_pages::url(port)));
    }
    send(session, LAST_HEALTHY, rate, &mut log).await?;
    settled(session, &mut log).await?;

    session.set_outage(true)?;
    send(session, total, rate, &mut log).await?;
    settled(session, &mut log).await?;
    let at_rest = quiet(session.dashboard.reports);
    session.until("retries did not end", at_rest, |dashboard| log.follow(dashboard)).await?;
    print_groups(session, &mut log);
    let port = session.dashboard.port.unwrap_or_default();
    let console = ConsolePages::read(port, &session.dashboard.state.groups).await;

    session.set_outage(false)?;
    session.worker.replay().await;
    let at_rest = quiet(session.dashboard.reports);
    let replayed = |dashboard: &Dashboard| {
        dashboard.state.operation.as_ref().is_some_and(|operation| operation.state == "done")
            && dashboard.state.blocked == orders::poison_orders().count() as u64
            && at_rest(dashboard)
    };
    session.until("the replay did not end", replayed, |dashboard| log.follow(dashboard)).await?;
    print_replay(session, &mut log);

    session.stop_worker().await?;
    let evidence = Evidence::gather(&session.folder, console).await?;
    Ok(Outcome::of(&session.dashboard, &evidence))
}

/// Returns a condition that holds when two reports have arrived after the first `reports` ones, and
/// nothing is retried or in flight.
fn quiet(reports: u64) -> impl Fn(&Dashboard) -> bool {
    move |dashboard| {
        dashboard.reports >= reports + 2
            && dashboard.state.of("retrying") == 0
            && dashboard.state.in_flight == 0
    }
}

/// Returns the rate of orders per second that completes the story within this many seconds.
fn rate(seconds: u32) -> u32 {
    DEFAULT_RATE.max(orders::MIN_ORDERS.div_ceil(seconds.max(1)))
}

/// Sends orders up to this one, at a rate per second.
async fn send(session: &mut Session, up_to: u32, rate: u32, log: &mut LogWriter<'_>) -> Result<(), Error> {
    let (begun, first) = (Instant::now(), session.sender.sent());
    while session.sender.sent() < up_to {
        let due = (begun.elapsed().as_secs_f64() * f64::from(rate)) as u32;
        session.sender.send_up_to(up_to.min(first.saturating_add(due)))?;
        session.poll()?;
        log.follow(&session.dashboard);
        tokio::time::sleep(SEND_INTERVAL).await;
    }
    Ok(())
}

/// Waits until every order sent is handled or has become a letter.
async fn settled(session: &mut Session, log: &mut LogWriter<'_>) -> Result<(), Error> {
    let all = |dashboard: &Dashboard| dashboard.settled() >= u64::from(dashboard.sent);
    session.until("orders were neither handled nor stored", all, |dashboard| log.follow(dashboard)).await
}

fn print_groups(session: &Session, log: &mut LogWriter<'_>) {
    let state = &session.dashboard.state;
    let flowing = CUSTOMERS.saturating_sub(state.blocked);
    log.line(
        &session.dashboard,
        &format!(
            "{} customers blocked, the other {flowing} not affected; dead letters by cause:",
            state.blocked
        ),
    );
    for group in &state.groups {
        let line = format!(
            "{:>4} dead, {:>3} waiting behind  {}: {}",
            group.dead, group.behind, group.reason, group.message
        );
        log.line(&session.dashboard, &line);
    }
}

fn print_replay(session: &Session, log: &mut LogWriter<'_>) {
    if let Some(done) = &session.dashboard.state.operation {
        let line = format!(
            "replay {} done: {} letters handled in order, {} failed again; customers of {HARBOUR} unblocked",
            done.id, done.ok, done.failed_again
        );
        log.line(&session.dashboard, &line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_run_still_sends_the_complete_story() {
        assert_eq!([1, 2, 3, 60].map(rate), [400, 200, 200, 200]);
        assert!((1..100).all(|seconds| rate(seconds) * seconds >= orders::MIN_ORDERS));
    }
}
