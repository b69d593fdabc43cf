//! The mapped file as a slice of atomic words. The only module with `unsafe`.

#![allow(unsafe_code, reason = "a mapping cannot be made without it")]

use std::fs::File;
use std::io;
use std::sync::atomic::AtomicU64;

use memmap2::{MmapOptions, MmapRaw};

/// The size of a word in bytes.
pub(crate) const WORD: usize = size_of::<AtomicU64>();

/// A memory-mapped file. A stored word belongs to the kernel at once and survives the process.
#[derive(Debug)]
pub(crate) struct Map {
    raw: MmapRaw,
    words: usize,
}

impl Map {
    /// Maps the first `words` words of a file that has at least this many.
    pub(crate) fn new(file: &File, words: usize) -> io::Result<Self> {
        let needed = words * WORD;
        if file.metadata()?.len() < needed as u64 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file is too short to be mapped"));
        }
        let raw = MmapOptions::new().len(needed).map_raw(file)?;
        Ok(Self { raw, words })
    }

    /// Returns all words.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: The mapping is readable and writable, has `words` words and begins at a page, so every
        // word is aligned. It lives as long as `self`, and so does the slice. All access in this process
        // goes through this slice of atomics, so there are no data races and no references to plain
        // memory. An `AtomicU64` is valid for any bits, so any content of the file is a valid value. The
        // lock on the file excludes other processes. A process that ignores the lock can change values,
        // which atomics allow, or truncate the file, which ends this process with a signal and not with
        // undefined behaviour.
        unsafe { std::slice::from_raw_parts(self.raw.as_ptr().cast::<AtomicU64>(), self.words) }
    }
}
