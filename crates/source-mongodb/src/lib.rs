//! A source for MongoDB change streams.
