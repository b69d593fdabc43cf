//! The loop of `top` over keys, snapshots and responses.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use lazaret_tui::Terminal;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use super::app::{App, Update};
use super::request::Request;
use super::snapshot::Reader;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::exit::Exit;

/// The interval at which ages, due times and the size of the terminal are looked at again.
const DRAW_INTERVAL: Duration = Duration::from_millis(250);
/// The most updates that are not applied yet.
const MAX_UPDATES: usize = 16;

/// Runs until the user quits. The terminal is restored on every way out.
pub(super) async fn run(context: &Context, every: Duration) -> Result<Exit> {
    let client = context.client()?;
    let gone = |error| Error::io("cannot use the terminal", error);
    let (mut terminal, mut keys) = Terminal::open(context.screen.stdout_in_color()).map_err(gone)?;
    let (updates, mut received) = mpsc::channel(MAX_UPDATES);
    let refresh = Arc::new(Notify::new());
    // Dropped at the end, which aborts what is under way.
    let mut tasks = JoinSet::new();
    tasks.spawn(poll(Reader::new(client.clone()), every, refresh.clone(), updates.clone()));
    let mut app = App::new(&context.global.url);
    let mut draw = interval(DRAW_INTERVAL);
    draw.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let terminated = terminated();
    tokio::pin!(terminated);
    loop {
        app.resize(terminal.size());
        terminal.draw(&app.screen(Timestamp::now())).map_err(gone)?;
        let request = tokio::select! {
            key = keys.recv() => match key {
                Some(key) => app.press(key, Timestamp::now()),
                None => break,
            },
            Some(update) = received.recv() => app.apply(update, Timestamp::now()).then_some(Request::Refresh),
            _ = draw.tick() => None,
            () = &mut terminated => break,
        };
        match request {
            None => {}
            Some(Request::Quit) => break,
            Some(Request::Refresh) => refresh.notify_one(),
            Some(request) => {
                let (client, updates, number) = (client.clone(), updates.clone(), app.request_number());
                tasks.spawn(async move {
                    let response = request.send(&client).await;
                    // The loop has ended, or waits for this.
                    let _ = updates.send(Update::Response { number, response }).await;
                });
            }
        }
        while tasks.try_join_next().is_some() {}
    }
    drop(terminal);
    if app.is_changing() {
        context.screen.warn("no response yet: the change may have been applied");
        context.screen.next_command("lazaret status");
    }
    Ok(Exit::Ok)
}

/// Reads snapshots one after the other, at an interval or when it is asked to.
async fn poll(mut reader: Reader, every: Duration, refresh: Arc<Notify>, updates: mpsc::Sender<Update>) {
    loop {
        let snapshot = reader.read().await.map(Box::new);
        if updates.send(Update::Snapshot(snapshot)).await.is_err() {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            () = refresh.notified() => {}
        }
    }
}

/// Waits for a signal that ends the process. Ctrl-C is a key on a terminal in raw mode.
#[cfg(unix)]
async fn terminated() {
    use tokio::signal::unix::{SignalKind, signal};
    let signals = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal);
    let [Ok(mut interrupt), Ok(mut terminate), Ok(mut hang_up)] = signals else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hang_up.recv() => {}
    }
}

#[cfg(not(unix))]
async fn terminated() {
    std::future::pending().await
}
