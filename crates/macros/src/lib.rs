//! Attribute macros.
