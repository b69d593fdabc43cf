//! A store in MongoDB.
