//! The event feed: a bounded history, a bounded queue per subscriber, and the latest events for those who look from time to time.

mod feed;
mod latest;
mod observer;

pub(crate) use feed::{Events, Feed, Published, Subscription, frame};
pub(crate) use latest::Latest;
pub(crate) use observer::FeedObserver;
