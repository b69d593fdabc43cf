//! The way to a daemon: one function a route, typed with the words of the API.

mod lines;
mod routes;
mod sse;
mod wire;

pub(crate) use lines::Lines;
pub(crate) use routes::LetterQuery;
pub(crate) use sse::EventStream;
pub(crate) use wire::{Client, user};
