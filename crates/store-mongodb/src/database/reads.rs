//! The few kinds of reads that the store uses.

use bson::{Bson, Document, RawDocumentBuf, doc};
use futures_util::{TryStreamExt, future};
use lazaret_core::store::Result;
use mongodb::action::Action;
use serde::de::DeserializeOwned;

use super::decode;
use crate::calls::Documents;
use crate::error::reading;

/// The number of ids of one read. As many documents fit into a server's first answer, and a server that compares each document with
/// every id has few to compare.
pub(crate) const IDS: usize = 100;

/// The first document that fits, reduced to some fields.
pub(crate) async fn find_one(
    from: &Documents,
    filter: Document,
    fields: Document,
) -> Result<Option<RawDocumentBuf>> {
    let found = from.call(|from| async move { from.find_one(filter).projection(fields).await });
    found.await.map_err(reading)
}

/// The document with this id.
pub(crate) async fn get<T: DeserializeOwned>(from: &Documents, id: impl Into<Bson>) -> Result<Option<T>> {
    first(from, doc! { "_id": id.into() }, Document::new()).await
}

/// The first document that fits, in this order.
pub(crate) async fn first<T: DeserializeOwned>(
    from: &Documents,
    filter: Document,
    sort: Document,
) -> Result<Option<T>> {
    let found = from.call(|from| async move { from.find_one(filter).sort(sort).await });
    found.await.map_err(reading)?.map(decode).transpose()
}

/// How many documents fit, counted no further than the limit.
pub(crate) async fn count(of: &Documents, filter: Document, limit: Option<u64>) -> Result<u64> {
    let counted = of.call(|of| async move {
        of.count_documents(filter).optional(limit, |count, limit| count.limit(limit)).await
    });
    counted.await.map_err(reading)
}

/// The documents that fit, in this order, at most `limit`.
pub(crate) async fn list<T: DeserializeOwned>(
    from: &Documents,
    filter: Document,
    sort: Document,
    limit: usize,
) -> Result<Vec<T>> {
    list_fields(from, filter, Document::new(), sort, limit).await
}

/// The documents that fit, in this order, at most `limit`, reduced to some fields.
pub(crate) async fn list_fields<T: DeserializeOwned>(
    from: &Documents,
    filter: Document,
    fields: Document,
    sort: Document,
    limit: usize,
) -> Result<Vec<T>> {
    let limit = i64::try_from(limit.max(1)).unwrap_or(i64::MAX);
    let found = from.call(|from| async move {
        let found = from.find(filter).projection(fields).sort(sort).limit(limit).await?;
        found.try_collect::<Vec<_>>().await
    });
    found.await.map_err(reading)?.into_iter().map(decode).collect()
}

/// The documents that fit, in this order, reduced to some fields.
pub(crate) async fn project<T: DeserializeOwned>(
    from: &Documents,
    filter: Document,
    fields: Document,
    sort: Document,
) -> Result<Vec<T>> {
    let found = from.call(|from| async move {
        from.find(filter).projection(fields).sort(sort).await?.try_collect::<Vec<_>>().await
    });
    found.await.map_err(reading)?.into_iter().map(decode).collect()
}

/// The documents with these ids, reduced to some fields. They are asked for by several reads at once, and by nothing else: beside a second
/// condition, a server may use another index, or none.
pub(crate) async fn by_ids<T: DeserializeOwned>(
    from: &Documents,
    ids: &[String],
    fields: Document,
) -> Result<Vec<T>> {
    let reads = ids
        .chunks(IDS)
        .map(|ids| project(from, doc! { "_id": { "$in": ids } }, fields.clone(), Document::new()));
    let found: Vec<Vec<T>> = future::try_join_all(reads).await?;
    Ok(found.into_iter().flatten().collect())
}
