//! The allocator of the daemon, with a meter that can be switched on.
//!
//! Timed runs pay one relaxed load per call, subject and baseline alike.

#![allow(unsafe_code, reason = "`GlobalAlloc` is an unsafe trait; every call is forwarded unchanged")]

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: Metered = Metered;

static RUNNING: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
/// Bytes allocated minus bytes freed since the meter was started; negative when older memory was freed.
static LIVE: AtomicI64 = AtomicI64::new(0);
static PEAK: AtomicI64 = AtomicI64::new(0);

struct Metered;

// SAFETY: every method forwards its arguments to `MiMalloc` and returns its result; counting uses atomics only.
unsafe impl GlobalAlloc for Metered {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { MiMalloc.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        given_back(layout.size());
        // SAFETY: the caller keeps the contract of `dealloc`, and the block is its own.
        unsafe { MiMalloc.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Count both blocks: a reallocation may copy.
        taken(size);
        // SAFETY: the caller keeps the contract of `realloc`, and the block is its own.
        let moved = unsafe { MiMalloc.realloc(pointer, layout, size) };
        given_back(layout.size());
        moved
    }
}

fn taken(bytes: usize) {
    if RUNNING.load(Ordering::Relaxed) {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        let live = LIVE.fetch_add(bytes as i64, Ordering::Relaxed) + bytes as i64;
        PEAK.fetch_max(live, Ordering::Relaxed);
    }
}

fn given_back(bytes: usize) {
    if RUNNING.load(Ordering::Relaxed) {
        LIVE.fetch_sub(bytes as i64, Ordering::Relaxed);
    }
}

/// Counts the allocations of the whole process while it exists. One at a time.
pub(crate) struct Meter(());

/// The counts of a meter.
#[derive(Clone, Copy)]
pub(crate) struct Reading {
    /// The number of allocations.
    pub(crate) allocations: u64,
    /// The peak of allocated bytes above the start.
    pub(crate) peak_bytes: u64,
    /// The allocated bytes at the end above the start.
    pub(crate) live_bytes: u64,
}

impl Meter {
    /// Starts counting.
    pub(crate) fn start() -> Self {
        ALLOCATIONS.store(0, Ordering::Relaxed);
        LIVE.store(0, Ordering::Relaxed);
        PEAK.store(0, Ordering::Relaxed);
        assert!(!RUNNING.swap(true, Ordering::SeqCst), "one meter at a time");
        Self(())
    }

    /// Stops counting and returns the counts.
    pub(crate) fn read(self) -> Reading {
        RUNNING.store(false, Ordering::SeqCst);
        Reading {
            allocations: ALLOCATIONS.load(Ordering::Relaxed),
            peak_bytes: PEAK.load(Ordering::Relaxed).max(0) as u64,
            live_bytes: LIVE.load(Ordering::Relaxed).max(0) as u64,
        }
    }
}
