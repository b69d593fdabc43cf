//! What happens, for those who listen: a bounded past, and a bounded queue for each listener.

mod feed;
mod observer;
mod progress;
mod stream;

pub(crate) use feed::Feed;
pub(crate) use observer::FeedObserver;
pub(crate) use progress::{tell, watch_operations};
pub(crate) use stream::events;
