//! Handlers of read requests.

pub(crate) mod admin;
mod assignments;
pub(crate) mod audit;
mod audit_view;
pub(crate) mod events;
pub(crate) mod facets;
pub(crate) mod groups;
pub(crate) mod health;
pub(crate) mod letters;
pub(crate) mod operations;
pub(crate) mod page;
pub(crate) mod plan_contents;
pub(crate) mod query;
pub(crate) mod search;
pub(crate) mod status;
