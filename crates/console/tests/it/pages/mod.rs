//! The pages over real connections, on a real store and a running consumer.

mod access;
mod commands;
mod conditions;
mod edits;
mod guards;
mod hostile;
mod operate;
mod panels;
mod screens;
mod support;
