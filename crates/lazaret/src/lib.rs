//! Lazaret.
