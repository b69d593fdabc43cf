//! The processes of the fleet: started, killed, stopped and woken.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::witness::session_of;
use super::{Fleet, Plant, Stream};
use crate::driver::RESTART;
use crate::journal::{Entry, Journal};
use crate::plan::Plan;

/// An hour, by which clocks are wrong.
const HOUR: i64 = 3600;

/// One process of the fleet, and its place.
struct Running {
    child: Child,
    process: u32,
    /// When it is woken, if it is stopped.
    wakes: Option<Instant>,
}

/// All of them.
pub(super) struct Processes {
    program: PathBuf,
    folder: PathBuf,
    plan: Plan,
    stream: Stream,
    dsn: String,
    plant: Option<Plant>,
    places: Vec<Running>,
    /// The number of processes that were started.
    pub(super) started: u32,
}

impl Processes {
    pub(super) fn start(fleet: &Fleet, folder: &Path, stream: Stream, dsn: String) -> Result<Self, String> {
        let Fleet { program, plan, plant, processes: count, .. } = fleet.clone();
        let (folder, places) = (folder.to_owned(), Vec::new());
        let mut processes = Self { program, folder, plan, stream, dsn, plant, places, started: 0 };
        for place in 0..count {
            let running = processes.launch(place)?;
            processes.places.push(running);
        }
        Ok(processes)
    }

    fn launch(&mut self, place: u32) -> Result<Running, String> {
        self.started += 1;
        let Plan { seed, messages, keys } = self.plan;
        // Right, an hour fast, an hour slow, and so on.
        let skew = [0, HOUR, -HOUR][place as usize % 3];
        let store = format!("{} application_name={}", self.dsn, session_of(self.started));
        let mut command = Command::new(&self.program);
        command
            .arg("serve")
            .args(["--seed", &seed.to_string(), "--messages", &messages.to_string()])
            .args(["--keys", &keys.to_string(), "--process", &self.started.to_string()])
            .args(["--place", &place.to_string(), "--skew", &skew.to_string(), "--store", &store])
            .arg("--folder")
            .arg(&self.folder);
        if let Stream::Kafka { brokers, topic } = &self.stream {
            command.args(["--brokers", brokers, "--topic", topic]);
        }
        if let Some(plant) = self.plant {
            command.args(["--plant", plant.name()]);
        }
        let child = command.spawn().map_err(|error| format!("no process: {error}"))?;
        Ok(Running { child, process: self.started, wakes: None })
    }

    /// The places whose processes are not stopped.
    fn awake(&self) -> Vec<usize> {
        (0..self.places.len()).filter(|place| self.places[*place].wakes.is_none()).collect()
    }

    /// The place of this process, or any place if it is stopped or dead.
    fn place_of(&self, process: u32) -> usize {
        let awake = self.awake();
        let place = awake.iter().find(|place| self.places[**place].process == process);
        place.copied().unwrap_or_else(|| awake[process as usize % awake.len()])
    }

    /// Kills a process, if it is awake, or another one, and starts one in its place.
    pub(super) fn kill(&mut self, process: u32, journal: &Journal) -> Result<(), String> {
        let place = self.place_of(process);
        let running = &mut self.places[place];
        let killed = running.child.kill().and_then(|()| running.child.wait());
        killed.map_err(|error| format!("process {} cannot be killed: {error}", running.process))?;
        written(journal.write_of(running.process, Entry::Killed))?;
        self.places[place] = self.launch(place as u32)?;
        Ok(())
    }

    /// Stops a process for this time, if it is awake, or another one. At least one goes on. Returns `false` if there is no other.
    pub(super) fn stop(&mut self, process: u32, time: Duration, journal: &Journal) -> Result<bool, String> {
        if self.awake().len() < 2 {
            return Ok(false);
        }
        let place = self.place_of(process);
        let running = &mut self.places[place];
        written(journal.write_of(running.process, Entry::Stopped))?;
        signal(running, Signal::STOP)?;
        running.wakes = Some(Instant::now() + time);
        Ok(true)
    }

    /// Lets those that are stopped be woken now.
    pub(super) fn wake(&mut self) {
        self.places
            .iter_mut()
            .filter_map(|running| running.wakes.as_mut())
            .for_each(|at| *at = Instant::now());
    }

    /// Wakes those whose time has come, and restarts those that found no server. Returns `true` if all are awake.
    pub(super) fn tend(&mut self, journal: &Journal) -> Result<bool, String> {
        for place in 0..self.places.len() {
            let running = &mut self.places[place];
            if running.wakes.is_some_and(|at| at <= Instant::now()) {
                running.wakes = None;
                written(journal.write_of(running.process, Entry::Woken))?;
                signal(running, Signal::CONT)?;
            }
            let process = running.process;
            let ended = running.child.try_wait().map_err(|error| format!("process {process}: {error}"))?;
            match ended {
                None => {}
                Some(status) if status.code() == Some(i32::from(RESTART)) => {
                    self.places[place] = self.launch(place as u32)?;
                }
                Some(status) => return Err(format!("process {process} ended with {status}")),
            }
        }
        Ok(self.places.iter().all(|running| running.wakes.is_none()))
    }

    /// Waits until all have ended, after they were told to.
    pub(super) fn wait(&mut self, deadline: Instant) -> Result<(), String> {
        for running in &mut self.places {
            loop {
                let process = running.process;
                match running.child.try_wait().map_err(|error| format!("process {process}: {error}"))? {
                    Some(status) if status.success() => break,
                    Some(status) => return Err(format!("process {process} ended with {status}")),
                    None if Instant::now() > deadline => {
                        return Err(format!("process {process} does not end"));
                    }
                    None => std::thread::sleep(Duration::from_millis(20)),
                }
            }
        }
        Ok(())
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for running in &mut self.places {
            // A stopped process can be killed, too.
            let _ = running.child.kill();
            let _ = running.child.wait();
        }
    }
}

fn signal(running: &Running, signal: Signal) -> Result<(), String> {
    kill_process(Pid::from_child(&running.child), signal)
        .map_err(|error| format!("process {} cannot be signalled: {error}", running.process))
}

fn written(result: io::Result<()>) -> Result<(), String> {
    result.map_err(|error| format!("failed to write the log: {error}"))
}
