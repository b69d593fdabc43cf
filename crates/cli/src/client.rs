//! The client of a daemon: one function per route, with the types of the API.

mod lines;
mod routes;
mod sse;
mod transport;

pub(crate) use lines::Lines;
pub(crate) use routes::LetterQuery;
pub(crate) use sse::EventStream;
pub(crate) use transport::{Client, user};
