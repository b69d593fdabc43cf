//! The demo on a terminal: orders flow, a bank goes down, and the user repairs it and replays.

use std::ffi::OsString;
use std::time::Duration;

use lazaret_tui::{Key, Terminal};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::console_pages;
use crate::dashboard::Kind;
use crate::error::Error;
use crate::orders::{self, LAST_HEALTHY};
use crate::session::Session;
use crate::view::{Hints, view};

/// The preferred port of the API and the console, which is the default of the command line.
pub(crate) const DEFAULT_PORT: u16 = 7117;
/// Orders per second.
const RATE: f64 = 70.0;
/// The interval of screen updates.
const DRAW_INTERVAL: Duration = Duration::from_millis(100);

/// The options of the demo on a terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveOptions {
    /// The command with which the user calls this program.
    pub command: String,
    /// Whether the command line uses the default address.
    pub is_default_address: bool,
    /// Whether to use colors.
    pub color: bool,
    /// The number of seconds after which the demo ends. Without it, the demo runs until the user quits.
    pub seconds: Option<u32>,
}

/// Counts from a demo on a terminal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveSummary {
    /// The number of orders sent.
    pub orders: u32,
    /// The number of orders handled.
    pub handled: usize,
    /// The number of open letters at the end.
    pub open: u64,
    /// The number of crashes of the process.
    pub deaths: u32,
}

/// Runs the demo until the user quits.
pub(crate) async fn play(program: Vec<OsString>, options: &LiveOptions) -> Result<LiveSummary, Error> {
    let mut session = Session::open(program, DEFAULT_PORT)?;
    let seen = play_on(&mut session, options).await;
    session.shut_down().await;
    seen
}

async fn play_on(session: &mut Session, options: &LiveOptions) -> Result<LiveSummary, Error> {
    let (mut terminal, mut keys) = Terminal::open(options.color)?;
    let interrupted = crate::interrupted();
    tokio::pin!(interrupted);
    let mut ticks = interval(DRAW_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut first_order = None;
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                session.poll()?;
                send(session, &mut first_order)?;
                terminal.draw(&view(&session.dashboard, &hints(session, options)))?;
                let is_over = options.seconds.is_some_and(|n| session.dashboard.elapsed().as_secs() >= u64::from(n));
                if is_over {
                    break;
                }
            }
            key = keys.recv() => {
                match key {
                    None | Some(Key::Char('q') | Key::Interrupt) => break,
                    Some(key) => press(session, key, options).await?,
                }
                // Draws at once: by the next update, newer entries may have pushed this one off the screen.
                terminal.draw(&view(&session.dashboard, &hints(session, options)))?;
            }
            () = &mut interrupted => break,
        }
    }
    session.dashboard.note(Kind::Action, "stopping: the process settles messages in flight");
    terminal.draw(&view(&session.dashboard, &hints(session, options)))?;
    // The worker may be crashing right now, which does not matter at the end of a demo.
    let _ = session.stop_worker().await;
    drop(terminal);
    let dashboard = &session.dashboard;
    Ok(LiveSummary {
        orders: dashboard.sent,
        handled: dashboard.handled(),
        open: dashboard.state.open(),
        deaths: dashboard.deaths,
    })
}

/// Handles a key.
async fn press(session: &mut Session, key: Key, options: &LiveOptions) -> Result<(), Error> {
    match key {
        Key::Char('r') if session.dashboard.is_outage => session.set_outage(false)?,
        Key::Char('b') if !session.dashboard.is_outage => session.set_outage(true)?,
        Key::Char('p') => {
            let command = hints(session, options).command;
            let query = crate::worker_state::REPLAY_QUERY;
            let shown = format!("$ {command} retry '{query}' --reason 'the bank is up again'");
            session.dashboard.note(Kind::Action, shown);
            session.worker.replay().await;
        }
        _ => {}
    }
    Ok(())
}

/// Sends the orders that are due. The bank goes down at its point in the story. Afterwards the user decides.
fn send(session: &mut Session, first_order: &mut Option<Instant>) -> Result<(), Error> {
    if !session.dashboard.running && first_order.is_none() {
        return Ok(());
    }
    let begun = *first_order.get_or_insert_with(Instant::now);
    let before = session.sender.sent();
    let due = (begun.elapsed().as_secs_f64() * RATE) as u32;
    if before < LAST_HEALTHY && due >= LAST_HEALTHY {
        session.sender.send_up_to(LAST_HEALTHY)?;
        session.set_outage(true)?;
    }
    session.sender.send_up_to(due.max(before))?;
    let sent = before + 1..=session.sender.sent();
    for number in sent.filter(|number| orders::poison(*number).is_some()) {
        let text = format!("order {number} of {} is poison", orders::customer(number));
        session.dashboard.note_order(Kind::Warning, text);
    }
    Ok(())
}

fn hints(session: &Session, options: &LiveOptions) -> Hints {
    let Some(port) = session.dashboard.port else {
        return Hints { command: options.command.clone(), console: "starting".to_owned() };
    };
    let is_default = options.is_default_address && port == DEFAULT_PORT;
    let command = match is_default {
        true => options.command.clone(),
        false => format!("{} --url http://127.0.0.1:{port}", options.command),
    };
    Hints { command, console: console_pages::url(port) }
}
