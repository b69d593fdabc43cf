//! Handlers that follow a script and record their calls.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use lazaret_core::handler::{BoxHandler, Context, StoredLetter, handler};
use lazaret_core::{HandlerError, Letter, Message};

use super::PausedClock;

/// The reply of a scripted handler.
pub(crate) enum Reply {
    /// Handles the message.
    Done,
    /// Fails.
    Fail(HandlerError),
    /// Takes this long, then replies this.
    After(Duration, Box<Reply>),
    /// Never returns.
    Hang,
    /// Panics.
    Panic(&'static str),
    /// Sends the message to the dead letters and returns the store's error.
    SendToDlq(&'static str),
}

impl Reply {
    pub(crate) fn after(delay: Duration, reply: Self) -> Self {
        Self::After(delay, Box::new(reply))
    }
}

/// One call, as the script sees it.
pub(crate) struct Try {
    /// The payload.
    pub(crate) name: String,
    /// The number of the attempt as the engine counts it.
    pub(crate) attempt: u32,
    /// How often this payload was tried before, by any engine.
    pub(crate) before: usize,
    /// The letter that is tried, if any.
    pub(crate) letter: Option<Arc<Letter>>,
    pub(crate) replay: Option<String>,
    pub(crate) context: Context,
}

/// One recorded call.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) component: String,
    pub(crate) name: String,
    pub(crate) attempt: u32,
    /// The start time of the call, from the start of the test.
    pub(crate) at: Duration,
    /// `true` if the handler was given a letter.
    pub(crate) letter: bool,
    pub(crate) message: Message,
    /// `true` if the call succeeded.
    pub(crate) done: bool,
}

/// All calls of all handlers of a bench, in the order of their start.
#[derive(Clone)]
pub(crate) struct Calls {
    clock: PausedClock,
    calls: Arc<Mutex<Vec<Call>>>,
    done: Arc<Mutex<Vec<String>>>,
}

impl Calls {
    pub(crate) fn new(clock: PausedClock) -> Self {
        Self { clock, calls: Arc::default(), done: Arc::default() }
    }

    pub(crate) fn all(&self) -> Vec<Call> {
        self.lock().clone()
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Returns the payloads in the order in which they were tried.
    pub(crate) fn tried(&self) -> Vec<String> {
        self.lock().iter().map(|call| call.name.clone()).collect()
    }

    /// Returns the payloads in the order in which they were handled.
    pub(crate) fn done(&self) -> Vec<String> {
        self.done.lock().expect("no test panics here").clone()
    }

    /// Returns the payloads that one component handled, in order.
    pub(crate) fn done_by(&self, component: &str) -> Vec<String> {
        let calls = self.lock();
        calls.iter().filter(|c| c.component == component && c.done).map(|c| c.name.clone()).collect()
    }

    /// Returns the calls for one payload.
    pub(crate) fn of(&self, name: &str) -> Vec<Call> {
        self.lock().iter().filter(|call| call.name == name).cloned().collect()
    }

    /// Returns the start times of the calls for one payload, in seconds.
    pub(crate) fn times_of(&self, name: &str) -> Vec<f64> {
        self.of(name).iter().map(|call| call.at.as_secs_f64()).collect()
    }

    /// Returns the attempt numbers of the calls for one payload.
    pub(crate) fn attempts_of(&self, name: &str) -> Vec<u32> {
        self.of(name).iter().map(|call| call.attempt).collect()
    }

    pub(crate) fn handler(
        &self,
        component: &str,
        script: impl Fn(&Try) -> Reply + Send + Sync + 'static,
    ) -> BoxHandler {
        let (calls, component, script) = (self.clone(), component.to_owned(), Arc::new(script));
        handler(move |context: Context, letter: Option<StoredLetter>| {
            let (calls, component, script) = (calls.clone(), component.clone(), script.clone());
            async move {
                let (number, this) = calls.begin(&component, context, letter);
                let reply = script(&this);
                perform(reply, &this.context).await?;
                calls.end(number, this.name);
                Ok::<(), HandlerError>(())
            }
        })
    }

    fn begin(&self, component: &str, context: Context, letter: Option<StoredLetter>) -> (usize, Try) {
        let message = context.message().clone();
        let name = String::from_utf8_lossy(message.payload.as_deref().unwrap_or_default()).into_owned();
        let mut calls = self.lock();
        let before = calls.iter().filter(|c| c.name == name && c.component == component).count();
        let letter = letter.map(StoredLetter::into_inner);
        calls.push(Call {
            component: component.to_owned(),
            name: name.clone(),
            attempt: context.attempt(),
            at: self.clock.elapsed(),
            letter: letter.is_some(),
            message,
            done: false,
        });
        let replay = context.replay();
        (calls.len() - 1, Try { name, attempt: context.attempt(), before, letter, replay, context })
    }

    fn end(&self, number: usize, name: String) {
        self.lock()[number].done = true;
        self.done.lock().expect("no test panics here").push(name);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Call>> {
        self.calls.lock().expect("no test panics here")
    }
}

async fn perform(mut reply: Reply, context: &Context) -> Result<(), HandlerError> {
    loop {
        match reply {
            Reply::Done => return Ok(()),
            Reply::Fail(error) => return Err(error),
            Reply::After(delay, then) => {
                tokio::time::sleep(delay).await;
                reply = *then;
            }
            Reply::Hang => std::future::pending().await,
            Reply::Panic(text) => panic!("{text}"),
            Reply::SendToDlq(why) => {
                context.send_to_dlq(why).await?;
                return Ok(());
            }
        }
    }
}
