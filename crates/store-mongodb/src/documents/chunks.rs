//! The chunks of a part of a letter that is too large for its document.

use bson::raw::RawBinaryRef;
use bson::spec::BinarySubtype;
use bson::{RawDocumentBuf, cstr, rawdoc};
use lazaret_core::letter::LetterId;
use lazaret_core::store::Result;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::error::{corrupt, invalid};
use crate::values::int;

/// The size of a chunk.
const CHUNK_BYTES: usize = 4 << 20;

/// Where a part of a letter is kept that is too large for its document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChunksRef {
    /// The name of its chunks. No two parts ever share one.
    pub(crate) claim: String,
    pub(crate) chunks: i64,
    bytes: i64,
}

/// The chunks of a part of a letter, which are written before the letter refers to them.
pub(super) fn split<T: Serialize>(
    letter: LetterId,
    part: &T,
    chunks: &mut Vec<RawDocumentBuf>,
) -> Result<ChunksRef> {
    let bytes = bson::serialize_to_vec(part).map_err(|error| invalid(error.to_string()))?;
    let claim = Uuid::new_v4().to_string();
    let before = chunks.len();
    for (number, data) in (0_i64..).zip(bytes.chunks(CHUNK_BYTES)) {
        let mut chunk = rawdoc! {
            "_id": format!("{claim}:{number}"),
            "claim": claim.as_str(),
            "letter": letter.to_string(),
            "number": number,
        };
        chunk.append(cstr!("data"), RawBinaryRef { subtype: BinarySubtype::Generic, bytes: data });
        chunks.push(chunk);
    }
    let count = int((chunks.len() - before) as u64);
    Ok(ChunksRef { claim, chunks: count, bytes: int(bytes.len() as u64) })
}

/// A part of a letter from its chunks, in order.
pub(crate) fn join<T: DeserializeOwned>(stored: &ChunksRef, chunks: &[RawDocumentBuf]) -> Result<T> {
    let mut bytes = Vec::with_capacity(usize::try_from(stored.bytes).unwrap_or_default());
    for chunk in chunks {
        let data = chunk.get_binary("data").map_err(|_| corrupt("a chunk has no data"))?;
        bytes.extend_from_slice(data.bytes);
    }
    if int(chunks.len() as u64) != stored.chunks || int(bytes.len() as u64) != stored.bytes {
        return Err(corrupt(format!("chunks of {} are missing", stored.claim)));
    }
    bson::deserialize_from_slice(&bytes).map_err(|error| corrupt(error.to_string()))
}
