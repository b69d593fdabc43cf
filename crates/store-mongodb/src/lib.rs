//! The MongoDB store: letters that a fleet shares, without multi-document transactions.
//!
//! [`MongoStore`] implements [`lazaret_core::store`] on documents that are changed one at a time, each if it still has the expected
//! version. It needs no replica set for that, but writes wait for the majority where there is one.
//!
//! ```no_run
//! use lazaret_store_mongodb::{MongoStore, MongoStoreOptions};
//!
//! # async fn open() -> Result<(), lazaret_core::store::StoreError> {
//! let store = MongoStore::connect("mongodb://db.example/shop?replicaSet=rs0", MongoStoreOptions::default()).await?;
//! # drop(store);
//! # Ok(())
//! # }
//! ```
//!
//! # The order of writes
//!
//! The document of a sequence holds all that has to be exclusive: its row with the lease, its counts, the number of its last lease. Each
//! call that changes letters makes these writes, in this order:
//!
//! 1. **Chunks** of letters that are too large for a document. Until a letter refers to them, they mean nothing.
//! 2. For hand-offs: the **grant** of the partition, with the horizon raised and the sequences noted as under way. A horizon that is too
//!    high costs a lookup.
//! 3. The document of the **sequence**, if it still has the version on which the rule decided: the new row, and what is left to do
//!    elsewhere, packed into one binary value. A new one is inserted. From here on the call has happened.
//! 4. What is left: at the same time the **letters** in their new form, the counters of **groups**, lines of the **audit** and **outcomes** in
//!    operations; then **ends** for the outbox, if the queue is watched.
//! 5. The document of the sequence again, without what was done; one that was opened gets its revision. One command does this for all
//!    sequences of a call: each is changed for itself, if it still has the version of the decision.
//! 6. Chunks that no letter refers to any more are deleted. For hand-offs: the sequences are not under way any more.
//!
//! A hand-off that opens several sequences for the first time has a shorter way. In place of step 3 it writes one document, the **batch**, with
//! the new sequences and all that is left to do for them; from here on the call has happened, but for sequences that another call
//! opens first. Then it inserts the sequences, with their revisions and the id of the batch, and does step 4. In place of step 5 it
//! deletes the batch (`batches`).
//!
//! A process that dies before step 3 has changed nothing that counts. One that dies after it is finished by the next call that loads
//! the document, or one of the batch, and listings look for such documents first. Each write of step 4 can be repeated, by anybody and
//! late: a letter has the version that decided about it and ignores earlier ones; a group has the versions and batches that it has
//! counted; a line of the audit and an end have tokens; an outcome is written once. The document of a plan works in the same way, and so
//! does that of the pauses of a consumer.
//!
//! Calls of one process do their work together where they can (`together`): settlements of different sequences share each of these steps, and
//! what different calls count in groups, write to the audit or record in an operation is written by one worker. Each sequence still
//! decides for itself, and a process that dies leaves each to be finished.
//!
//! A test cuts the store off after each single write, and goes on with another store (`crash`).
//!
//! # What a batch costs
//!
//! A hand-off of n letters into new sequences waits for about a dozen commands, one after the other, whatever n is, up to 1000 letters or
//! 6 MiB, plus the writes of grants. Reads by id ask for 100 documents each, all at once. The hand-off inserts one document with all letters
//! packed in it, n small documents of sequences, then n letters, updates each group of failures that occurs once, and deletes the first
//! document. A letter is encoded once; its bytes are copied from there on. Letters behind known sequences are packed into those, and one
//! command finishes all of them.
//!
//! # What a letter costs
//!
//! Claims, settlements and polls of n letters take about as many commands as those of one, up to 100: a claim 4, a settlement 10, a
//! poll of an operation 12, a settlement under one 22 (`tests/it/commands.rs`).
//!
//! # Modules
//!
//! - `contract/`, `audit`, `ends`, `key_values`: the traits of [`lazaret_core::store`].
//! - `store`, `options`, `uri`, `error`, `clock`: opening, options, errors of the driver, the server's clock.
//! - `indexes`: one for each way in which the store reads; `sharding`: the keys by which a cluster spreads the collections.
//! - `calls`: the connections, and which calls share them.
//! - `database`: collections, guarded writes, commands with many statements; `database/reads` reads.
//! - `documents/`: what the documents hold; `documents/readable` has the fields that people read, and `documents/flowwarden` those of
//!   FlowWarden, which a [`Layout`] chooses.
//! - `commit`, `batches`, `effects`: the steps above; `together`, `under_way`: what calls of this process share.
//! - `intake`, `grants`, `leases`, `acts`, `operations/`, `pauses`, `notes`: views for the rules.
//! - `letters`, `listing`, `counts`, `due`, `search/`, `occupancy`: reads.

mod acts;
mod audit;
mod batches;
mod calls;
mod clock;
mod commit;
mod contract;
mod counts;
#[cfg(test)]
mod crash;
mod database;
mod documents;
mod due;
mod effects;
mod ends;
mod error;
mod grants;
mod group_expiry;
mod indexes;
mod intake;
mod key_values;
mod layout;
mod leases;
mod letters;
mod listing;
mod notes;
mod occupancy;
mod operations;
mod options;
mod pauses;
mod search;
mod sharding;
#[cfg(test)]
mod statements;
mod store;
mod together;
mod under_way;
mod uri;
mod values;

pub use documents::flowwarden::flowwarden_document;
pub use layout::{Layout, UnknownLayout};
pub use options::{DEFAULT_COLLECTION, DEFAULT_DATABASE, MongoStoreOptions};
pub use sharding::CollectionSharding;
pub use store::{FORMAT_VERSION, MongoStore};
pub use uri::StoreUri;
