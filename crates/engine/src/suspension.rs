//! Stops the tasks of a consumer as a signal stops a process: the tasks are not polled, and time goes
//! on. For the simulation.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Stops and resumes tasks.
#[derive(Clone, Debug, Default)]
pub struct Suspension(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    suspended: bool,
    /// The tasks that were woken while they were stopped, in this order.
    woken: Vec<Waker>,
}

impl Suspension {
    /// Stops the tasks from their next poll on.
    pub fn suspend(&self) {
        self.state().suspended = true;
    }

    /// Resumes the tasks.
    pub fn resume(&self) {
        let woken = {
            let mut state = self.state();
            state.suspended = false;
            std::mem::take(&mut state.woken)
        };
        woken.into_iter().for_each(Waker::wake);
    }

    /// Runs a task, except while it is stopped.
    pub async fn hold<F: Future>(self, task: F) -> F::Output {
        let mut task = pin!(task);
        std::future::poll_fn(|cx| self.poll(task.as_mut(), cx)).await
    }

    fn poll<F: Future>(&self, task: Pin<&mut F>, cx: &mut Context<'_>) -> Poll<F::Output> {
        {
            let mut state = self.state();
            if state.suspended {
                if !state.woken.iter().any(|waker| waker.will_wake(cx.waker())) {
                    state.woken.push(cx.waker().clone());
                }
                return Poll::Pending;
            }
        }
        task.poll(cx)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
