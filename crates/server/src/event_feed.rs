//! The event feed: a bounded history, and a bounded queue per subscriber.

mod feed;
mod observer;

pub(crate) use feed::{Feed, Numbered, Subscription};
pub(crate) use observer::FeedObserver;
