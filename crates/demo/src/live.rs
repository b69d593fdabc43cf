//! The demo on a terminal: orders flow, a bank fails, and the viewer repairs it and replays.

use std::ffi::OsString;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::board::Kind;
use crate::error::Error;
use crate::orders::{self, LAST_HEALTHY};
use crate::stage::Stage;
use crate::terminal::Terminal;
use crate::view::{Hints, view};

/// Where the API listens if nobody else does: the place at which the command line looks by itself.
pub(crate) const USUAL_PORT: u16 = 7117;
/// Orders per second.
const RATE: f64 = 70.0;
/// How often the screen is drawn.
const DRAW_EVERY: Duration = Duration::from_millis(100);
/// Ctrl-C, Ctrl-D.
const END_KEYS: [u8; 2] = [3, 4];

/// How the demo is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Show {
    /// How the viewer calls this program.
    pub command: String,
    /// Whether the command line looks at the usual address by itself.
    pub usual_address: bool,
    /// Whether to use colours.
    pub color: bool,
    /// End after so many seconds; otherwise when the viewer wants it.
    pub seconds: Option<u32>,
}

/// What there was to see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// How many orders were sent.
    pub orders: u32,
    /// How many were handled.
    pub handled: usize,
    /// How many letters were open at the end.
    pub open: u64,
    /// How often the process died.
    pub deaths: u32,
}

/// Shows the demo until the viewer quits.
pub(crate) async fn play(program: Vec<OsString>, show: &Show) -> Result<Seen, Error> {
    let mut stage = Stage::open(program, USUAL_PORT)?;
    let seen = play_on(&mut stage, show).await;
    stage.leave().await;
    seen
}

async fn play_on(stage: &mut Stage, show: &Show) -> Result<Seen, Error> {
    let (terminal, mut keys) = Terminal::take()?;
    let interrupted = crate::interrupted();
    tokio::pin!(interrupted);
    let mut ticks = interval(DRAW_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut first_order = None;
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                stage.look()?;
                send(stage, &mut first_order)?;
                terminal.draw(&view(&stage.board, &hints(stage, show), terminal.size(), show.color))?;
                let is_over = show.seconds.is_some_and(|n| stage.board.elapsed().as_secs() >= u64::from(n));
                if is_over {
                    break;
                }
            }
            Some(key) = keys.recv() => {
                if key == b'q' || END_KEYS.contains(&key) {
                    break;
                }
                press(stage, key, show).await?;
                // At once: by the next time, more may have happened than there is room for.
                terminal.draw(&view(&stage.board, &hints(stage, show), terminal.size(), show.color))?;
            }
            () = &mut interrupted => break,
        }
    }
    stage.board.note(Kind::Done, "the process settles what is in flight, and ends");
    terminal.draw(&view(&stage.board, &hints(stage, show), terminal.size(), show.color))?;
    // It may be dying at this moment, which is no reason to complain about the end of a demo.
    let _ = stage.close().await;
    drop(terminal);
    let board = &stage.board;
    Ok(Seen { orders: board.sent, handled: board.handled(), open: board.state.open(), deaths: board.deaths })
}

/// Does what a key says.
async fn press(stage: &mut Stage, key: u8, show: &Show) -> Result<(), Error> {
    match key {
        b'r' if stage.board.is_outage => stage.set_outage(false)?,
        b'b' if !stage.board.is_outage => stage.set_outage(true)?,
        b'p' => {
            let command = hints(stage, show).command;
            let query = crate::watch::REPLAYED;
            let told = format!("$ {command} retry '{query}' --reason 'the bank answers again'");
            stage.board.note(Kind::Done, told);
            stage.worker.replay().await;
        }
        _ => {}
    }
    Ok(())
}

/// Sends the orders that are due. The bank fails at its place in the story; from there on the viewer decides.
fn send(stage: &mut Stage, first_order: &mut Option<Instant>) -> Result<(), Error> {
    if !stage.board.running && first_order.is_none() {
        return Ok(());
    }
    let begun = *first_order.get_or_insert_with(Instant::now);
    let before = stage.sender.sent();
    let due = (begun.elapsed().as_secs_f64() * RATE) as u32;
    if before < LAST_HEALTHY && due >= LAST_HEALTHY {
        stage.sender.send_up_to(LAST_HEALTHY)?;
        stage.set_outage(true)?;
    }
    stage.sender.send_up_to(due.max(before))?;
    let sent = before + 1..=stage.sender.sent();
    for number in sent.filter(|number| orders::poison(*number).is_some()) {
        stage.board.note(Kind::Warning, format!("order {number} of {} is poison", orders::customer(number)));
    }
    Ok(())
}

fn hints(stage: &Stage, show: &Show) -> Hints {
    let url = match stage.board.port {
        Some(port) => format!("http://127.0.0.1:{port}"),
        None => "starts".to_owned(),
    };
    let is_usual = show.usual_address && stage.board.port.is_none_or(|port| port == USUAL_PORT);
    let command = if is_usual { show.command.clone() } else { format!("{} --url {url}", show.command) };
    Hints { command, url }
}
