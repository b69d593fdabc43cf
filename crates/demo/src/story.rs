//! The story from beginning to end, without anybody at the keys: it runs, breaks, repairs, replays, and is then checked.

use std::time::Duration;

use tokio::time::Instant;

use crate::board::{Board, Kind};
use crate::error::Error;
use crate::evidence::Evidence;
use crate::orders::{self, CUSTOMERS, HARBOUR, LAST_HEALTHY};
use crate::outcome::Outcome;
use crate::stage::Stage;

/// Orders per second, unless that were too few for the story.
const USUAL_RATE: u32 = 200;
/// How often orders are sent.
const SEND_EVERY: Duration = Duration::from_millis(25);

/// Tells what happens, a line at a time.
pub(crate) struct Teller<'a> {
    tell: &'a mut (dyn FnMut(&str) + Send),
    told: u64,
}

impl<'a> Teller<'a> {
    pub(crate) fn new(tell: &'a mut (dyn FnMut(&str) + Send)) -> Self {
        Self { tell, told: 0 }
    }

    fn say(&mut self, board: &Board, text: &str) {
        (self.tell)(&format!("{:>5.1} s  {text}", board.elapsed().as_secs_f64()));
    }

    /// Tells what happened since: what concerns all, and poison. Single orders that an outage fails are too many.
    fn follow(&mut self, board: &Board) {
        let (new, told) = board.since(self.told);
        self.told = told;
        for happened in new {
            let is_single = happened.text.starts_with("order ");
            let is_poison = happened.kind == Kind::Bad && !happened.text.ends_with("DEPENDENCY_UNAVAILABLE");
            if !is_single || is_poison {
                (self.tell)(&format!("{:>5.1} s  {}", happened.after.as_secs_f64(), happened.text));
            }
        }
    }
}

/// Plays the story with orders for so many seconds, and checks what it leaves behind.
pub(crate) async fn play(
    stage: &mut Stage,
    seconds: u32,
    command: &str,
    mut teller: Teller<'_>,
) -> Result<Outcome, Error> {
    let rate = rate(seconds);
    let total = rate.saturating_mul(seconds);
    stage.until("the worker does not start", |board| board.running, |_| {}).await?;
    teller.say(
        &stage.board,
        &format!("{total} orders of {CUSTOMERS} customers; the orders of one customer stay in order"),
    );
    if let Some(port) = stage.board.port {
        let url = format!("http://127.0.0.1:{port}");
        teller.say(
            &stage.board,
            &format!("the API is at {url} while this lasts: try {command} --url {url} groups"),
        );
    }
    send(stage, LAST_HEALTHY, rate, &mut teller).await?;
    settled(stage, &mut teller).await?;

    stage.set_outage(true)?;
    send(stage, total, rate, &mut teller).await?;
    settled(stage, &mut teller).await?;
    let at_rest = quiet(stage.board.told);
    stage.until("retries do not end", at_rest, |board| teller.follow(board)).await?;
    tell_groups(stage, &mut teller);

    stage.set_outage(false)?;
    stage.worker.replay().await;
    let at_rest = quiet(stage.board.told);
    let replayed = |board: &Board| {
        board.state.operation.as_ref().is_some_and(|operation| operation.state == "done")
            && board.state.blocked == orders::poisonous().count() as u64
            && at_rest(board)
    };
    stage.until("the replay does not end", replayed, |board| teller.follow(board)).await?;
    tell_replay(stage, &mut teller);

    stage.close().await?;
    let evidence = Evidence::gather(&stage.folder).await?;
    Ok(Outcome::of(&stage.board, &evidence))
}

/// Whether nothing moves by itself, as was told at least twice since.
fn quiet(told: u64) -> impl Fn(&Board) -> bool {
    move |board| board.told >= told + 2 && board.state.of("retrying") == 0 && board.state.in_flight == 0
}

/// How many orders are sent in a second, such that all of the story is told in so many seconds.
fn rate(seconds: u32) -> u32 {
    USUAL_RATE.max(orders::SHORTEST.div_ceil(seconds.max(1)))
}

/// Sends orders up to this one, so many a second.
async fn send(stage: &mut Stage, up_to: u32, rate: u32, teller: &mut Teller<'_>) -> Result<(), Error> {
    let (begun, first) = (Instant::now(), stage.sender.sent());
    while stage.sender.sent() < up_to {
        let due = (begun.elapsed().as_secs_f64() * f64::from(rate)) as u32;
        stage.sender.send_up_to(up_to.min(first.saturating_add(due)))?;
        stage.look()?;
        teller.follow(&stage.board);
        tokio::time::sleep(SEND_EVERY).await;
    }
    Ok(())
}

/// Waits until every order that was sent is handled or a letter.
async fn settled(stage: &mut Stage, teller: &mut Teller<'_>) -> Result<(), Error> {
    let all = |board: &Board| board.settled() >= u64::from(board.sent);
    stage.until("orders are neither handled nor letters", all, |board| teller.follow(board)).await
}

fn tell_groups(stage: &Stage, teller: &mut Teller<'_>) {
    let state = &stage.board.state;
    let flowing = CUSTOMERS.saturating_sub(state.blocked);
    teller.say(
        &stage.board,
        &format!(
            "{} customers are blocked, the other {flowing} were served all the time. Dead letters by cause:",
            state.blocked
        ),
    );
    for group in &state.groups {
        let line = format!(
            "{:>4} dead, {:>3} wait behind  {}: {}",
            group.dead, group.behind, group.reason, group.message
        );
        teller.say(&stage.board, &line);
    }
}

fn tell_replay(stage: &Stage, teller: &mut Teller<'_>) {
    if let Some(done) = &stage.board.state.operation {
        let line = format!(
            "replay {} is done: {} letters handled, {} failed again; the customers of {HARBOUR} are served, in order",
            done.id, done.ok, done.failed_again
        );
        teller.say(&stage.board, &line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_time_is_used_for_the_whole_story() {
        assert_eq!([1, 2, 3, 60].map(rate), [400, 200, 200, 200]);
        assert!((1..100).all(|seconds| rate(seconds) * seconds >= orders::SHORTEST));
    }
}
