//! Strategy `topics`: the broker holds failed messages and returns them when they are due. The store is
//! the second line.

mod broker;
mod delays;
mod retries;
mod second_line;
