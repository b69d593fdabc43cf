//! Walks down the chain of causes of an error.

use std::error::Error as StdError;
use std::io;

/// The number of links that are examined: a bound for endless chains.
const CHAIN_DEPTH: usize = 128;

/// The error and its sources, outermost first.
pub(crate) fn causes<'a>(
    outermost: Option<&'a (dyn StdError + 'static)>,
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(outermost, |error| beneath(*error)).take(CHAIN_DEPTH)
}

fn beneath<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a (dyn StdError + 'static)> {
    // An I/O error that wraps another leaves it out of its chain of sources.
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(inner) => Some(inner),
        None => error.source(),
    }
}
