//! The store shares few connections between many calls, and calls that were given up do not hold up others.

use std::time::Duration;

use lazaret_core::store::KeyValue;
use lazaret_store_mongodb::MongoStore;

use crate::support::relay::Relay;
use crate::support::{TestDatabase, server};

/// How long a call may take before the test counts it as stuck.
const STUCK: Duration = Duration::from_secs(20);

#[tokio::test]
async fn calls_that_were_given_up_do_not_hold_up_later_ones() {
    let Some(server) = server() else { return };
    let relay = Relay::start(&server).await;
    let database = TestDatabase::new(server);
    let store = MongoStore::connect(&relay.uri("maxPoolSize=1"), database.options(None)).await.unwrap();
    relay.hold();
    let calls: Vec<_> = (0..400)
        .map(|number: u32| {
            let store = store.clone();
            tokio::spawn(async move { store.read("test", &number.to_string()).await })
        })
        .collect();
    relay.until_waiting(1).await;
    for call in calls {
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
    }
    relay.release();
    let answer = tokio::time::timeout(STUCK, store.read("test", "x")).await;
    assert_eq!(answer.expect("the store is stuck").unwrap().found, None);
}
