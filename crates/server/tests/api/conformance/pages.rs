//! Lists that come in pages, followed from their beginning: cursors are opaque, so nobody can begin elsewhere.

use lazaret_api as api;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::conformance::client::{Answered, Client, Params};

/// The largest page that the server gives.
const LARGEST: usize = 1000;

/// A page of a list.
pub(crate) trait Page: DeserializeOwned + Serialize + Send {
    /// What is listed.
    type Thing: Send;

    /// What stands on the page, and where the next one begins.
    fn split(self) -> (Vec<Self::Thing>, Option<String>);
}

macro_rules! pages {
    ($($page:ident of $field:ident: $thing:ident;)+) => {
        $(impl Page for api::$page {
            type Thing = api::$thing;

            fn split(self) -> (Vec<api::$thing>, Option<String>) {
                (self.$field, self.next)
            }
        })+
    };
}

pages! {
    Sequence of letters: Letter;
    ItemPage of items: Item;
    PlanPage of plans: Plan;
    OperationPage of operations: Operation;
    AuditPage of entries: AuditEntry;
}

impl Client {
    /// The first things of a list that are wanted, at most so many, and whether there is more. None of these lists has an
    /// empty page behind another: what says that there is more has more.
    pub(crate) async fn walk<P: Page>(
        &self,
        path: &str,
        params: Params<'_>,
        limit: usize,
        wanted: impl Fn(&P::Thing) -> bool + Send,
    ) -> Answered<(Vec<P::Thing>, bool)> {
        let size = limit.clamp(1, LARGEST);
        let (mut found, mut after) = (Vec::new(), None::<String>);
        loop {
            let size = size.to_string();
            let paging = [("limit", Some(size.as_str())), ("after", after.as_deref())];
            let (things, next) = self.get::<P>(path, &[params, &paging].concat()).await?.split();
            assert!(things.len() <= limit.max(1), "a page holds at most its limit: {path}");
            assert!(after.is_none() || !things.is_empty(), "the page before promised more: {path}");
            assert!(next.is_none() || next != after, "the list does not go on: {path}");
            found.extend(things.into_iter().filter(&wanted));
            if found.len() >= limit || next.is_none() {
                let more = found.len() > limit || next.is_some();
                found.truncate(limit);
                return Ok((found, more));
            }
            after = next;
        }
    }
}
