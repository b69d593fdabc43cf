//! The document of a batch: sequences that one hand-off opens, and what is left to do for them.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::left::Left;
use super::sequence::SequenceDoc;

/// Maximum size of the letters of a batch, in bytes. Its document, which may repeat the messages of their failures, ends at 16 MiB.
const LETTERS_BYTES: usize = 6 << 20;

/// The version of every batch: its document is never changed.
pub(crate) const BATCH_VERSION: i64 = 1;

/// Sequences that are to be inserted, with what is left to do then. It is there until all of it is done.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct BatchDoc {
    #[serde(rename = "_id")]
    pub(crate) id: String,
    #[serde(with = "super::left::packed")]
    pub(crate) sequences: Vec<SequenceDoc>,
}

impl BatchDoc {
    /// A batch of sequences that are not there yet.
    pub(crate) fn new(mut sequences: Vec<SequenceDoc>) -> Self {
        let id = format!("b-{}", Uuid::new_v4().simple());
        for doc in &mut sequences {
            doc.version += 1;
            doc.batch = Some(id.clone());
        }
        Self { id, sequences }
    }
}

/// Whether this is the id of a batch. That of a sequence begins with a digit.
pub(crate) fn is_batch(id: &str) -> bool {
    id.starts_with("b-")
}

/// Sequences in batches that fit into a document.
pub(crate) fn split(docs: Vec<SequenceDoc>) -> Vec<Vec<SequenceDoc>> {
    let (mut batches, mut bytes): (Vec<Vec<SequenceDoc>>, usize) = (Vec::new(), 0);
    for doc in docs {
        let letters = letters_size(&doc);
        match batches.last_mut() {
            Some(batch) if bytes + letters <= LETTERS_BYTES => {
                bytes += letters;
                batch.push(doc);
            }
            _ => {
                bytes = letters;
                batches.push(vec![doc]);
            }
        }
    }
    batches
}

fn letters_size(doc: &SequenceDoc) -> usize {
    let size = |left: &Left| match left {
        Left::Letter { document, .. } => document.as_bytes().len(),
        _ => 0,
    };
    doc.left.iter().map(size).sum()
}

#[cfg(test)]
mod tests {
    use bson::spec::BinarySubtype;
    use bson::{Binary, rawdoc};

    use super::super::sequence::sequence_key;
    use super::*;

    fn sequence(name: &str, bytes: usize) -> SequenceDoc {
        let mut doc = SequenceDoc::new(&"a/b".into(), &name.into());
        let payload = Binary { subtype: BinarySubtype::Generic, bytes: vec![7; bytes] };
        doc.left = vec![Left::Letter { document: rawdoc! { "_id": name, "payload": payload }, new: true }];
        doc
    }

    #[test]
    fn a_batch_comes_back_with_what_is_left_to_do() {
        let batch = BatchDoc::new(vec![sequence("k", 5), sequence("l", 6)]);
        let back: BatchDoc = bson::deserialize_from_slice(&bson::serialize_to_vec(&batch).unwrap()).unwrap();
        assert_eq!(back.id, batch.id);
        let sizes: Vec<_> = back.sequences.iter().map(letters_size).collect();
        assert_eq!(sizes, batch.sequences.iter().map(letters_size).collect::<Vec<_>>());
        for doc in &back.sequences {
            assert_eq!((doc.version, doc.batch.as_deref()), (BATCH_VERSION, Some(batch.id.as_str())));
        }
    }

    #[test]
    fn a_batch_fits_into_a_document() {
        let sizes = [5 << 20, 3 << 20, 2 << 20, 7 << 20, 1, 1];
        let docs = sizes.iter().enumerate().map(|(place, bytes)| sequence(&place.to_string(), *bytes));
        let batches: Vec<usize> = split(docs.collect()).iter().map(Vec::len).collect();
        assert_eq!(batches, [1, 2, 1, 2]);
        assert!(split(Vec::new()).is_empty());
    }

    #[test]
    fn no_sequence_has_the_id_of_a_batch() {
        assert!(is_batch(&BatchDoc::new(Vec::new()).id));
        assert!(!is_batch(&sequence_key(&"b-".into(), &"b-".into())));
    }
}
