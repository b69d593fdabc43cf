//! The daemon as a process: started, asked, killed, and looked at from outside.

mod api;
mod breaker;
mod consumers;
mod doctor;
mod reload;
mod signals;
mod story;
mod support;
