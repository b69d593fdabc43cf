//! The facade as its users see it.

#[cfg(all(feature = "macros", feature = "memory"))]
mod attributes;
#[cfg(all(feature = "anyhow", feature = "memory"))]
mod handlers;
mod surface;
#[cfg(feature = "memory")]
mod whole_way;
