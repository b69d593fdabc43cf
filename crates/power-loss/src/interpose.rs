//! The functions of the C library that change files. They forward to the kernel, and note changes in the recorded folder.
//!
//! The linker prefers a definition in the program to one in a shared library. So the standard library of Rust and SQLite, which are
//! linked statically, call these. `open` and its variants are variadic in C; on Linux the optional mode arrives as an ordinary third or fourth argument.

#![allow(unsafe_code, reason = "functions of the C library cannot be replaced without it")]

use std::ffi::CStr;
use std::path::{Path, PathBuf};

use libc::{c_char, c_int, c_long, c_uint, c_void, iovec, mode_t, off_t, size_t, ssize_t};

use crate::session::{self, Identity};

/// The addresses of all functions. A program that refers to them contains them.
pub(crate) fn addresses() -> Vec<usize> {
    vec![
        write as *const () as usize,
        pwrite as *const () as usize,
        pwrite64 as *const () as usize,
        writev as *const () as usize,
        pwritev as *const () as usize,
        pwritev64 as *const () as usize,
        copy_file_range as *const () as usize,
        sendfile as *const () as usize,
        sendfile64 as *const () as usize,
        splice as *const () as usize,
        ftruncate as *const () as usize,
        ftruncate64 as *const () as usize,
        fallocate as *const () as usize,
        fallocate64 as *const () as usize,
        posix_fallocate as *const () as usize,
        posix_fallocate64 as *const () as usize,
        fsync as *const () as usize,
        fdatasync as *const () as usize,
        open as *const () as usize,
        open64 as *const () as usize,
        openat as *const () as usize,
        openat64 as *const () as usize,
        unlink as *const () as usize,
        unlinkat as *const () as usize,
        rename as *const () as usize,
        renameat as *const () as usize,
        renameat2 as *const () as usize,
    ]
}

/// The identity of an open file, and whether it is a regular one.
pub(crate) fn identity(fd: c_int) -> Option<(Identity, bool)> {
    // SAFETY: `stat` is plain data, for which zeros are valid, and the kernel fills it.
    let (stat, result) = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        let result = libc::fstat(fd, &raw mut stat);
        (stat, result)
    };
    (result == 0).then_some(((stat.st_dev, stat.st_ino), stat.st_mode & libc::S_IFMT == libc::S_IFREG))
}

/// Where the next `write` to a file goes.
fn place(fd: c_int) -> u64 {
    // SAFETY: These calls take no pointers.
    let at = unsafe {
        let appends = libc::fcntl(fd, libc::F_GETFL) & libc::O_APPEND != 0;
        if appends {
            let before = libc::lseek(fd, 0, libc::SEEK_CUR);
            let end = libc::lseek(fd, 0, libc::SEEK_END);
            libc::lseek(fd, before, libc::SEEK_SET);
            end
        } else {
            libc::lseek(fd, 0, libc::SEEK_CUR)
        }
    };
    u64::try_from(at).unwrap_or_default()
}

fn set_errno(errno: c_int) {
    // SAFETY: The C library returns the address of the thread's own variable.
    unsafe { *libc::__errno_location() = errno }
}

fn errno() -> c_int {
    // SAFETY: As above.
    unsafe { *libc::__errno_location() }
}

/// Performs a write, and notes what was written at this place.
///
/// # Safety
/// The pieces must be readable, as `writev` demands.
unsafe fn written(
    fd: c_int,
    at: Option<off_t>,
    pieces: &[iovec],
    forward: impl FnOnce() -> ssize_t,
) -> ssize_t {
    let Some(mut entered) = session::enter(fd) else { return forward() };
    let at = at.map_or_else(|| place(fd), |at| u64::try_from(at).unwrap_or_default());
    let written = forward();
    let mut left = usize::try_from(written).unwrap_or_default();
    let mut bytes = Vec::with_capacity(left);
    for piece in pieces {
        let taken = left.min(piece.iov_len);
        if taken > 0 {
            // SAFETY: The kernel has just read these bytes from here.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(piece.iov_base.cast(), taken) });
        }
        left -= taken;
    }
    entered.wrote(at, bytes);
    written
}

/// The pieces of a vectored write.
///
/// # Safety
/// `pieces` must point to `count` pieces, as `writev` demands.
unsafe fn all<'a>(pieces: *const iovec, count: c_int) -> &'a [iovec] {
    let count = usize::try_from(count).unwrap_or_default();
    // SAFETY: As the caller promises.
    if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(pieces, count) } }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn write(fd: c_int, bytes: *const c_void, length: size_t) -> ssize_t {
    let piece = iovec { iov_base: bytes.cast_mut(), iov_len: length };
    // SAFETY: The arguments are passed on.
    unsafe { written(fd, None, &[piece], || libc::syscall(libc::SYS_write, fd, bytes, length) as ssize_t) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite64(fd: c_int, bytes: *const c_void, length: size_t, at: off_t) -> ssize_t {
    let piece = iovec { iov_base: bytes.cast_mut(), iov_len: length };
    // SAFETY: The arguments are passed on.
    unsafe {
        written(fd, Some(at), &[piece], || {
            libc::syscall(libc::SYS_pwrite64, fd, bytes, length, at) as ssize_t
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite(fd: c_int, bytes: *const c_void, length: size_t, at: off_t) -> ssize_t {
    // SAFETY: The arguments are passed on.
    unsafe { pwrite64(fd, bytes, length, at) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn writev(fd: c_int, pieces: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: The arguments are passed on.
    unsafe {
        written(fd, None, all(pieces, count), || {
            libc::syscall(libc::SYS_writev, fd, pieces, count) as ssize_t
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwritev64(fd: c_int, pieces: *const iovec, count: c_int, at: off_t) -> ssize_t {
    // SAFETY: The arguments are passed on. The kernel takes the place in two halves, and ignores the upper one on 64 bits.
    unsafe {
        written(fd, Some(at), all(pieces, count), || {
            libc::syscall(libc::SYS_pwritev, fd, pieces, count, at, 0) as ssize_t
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwritev(fd: c_int, pieces: *const iovec, count: c_int, at: off_t) -> ssize_t {
    // SAFETY: The arguments are passed on.
    unsafe { pwritev64(fd, pieces, count, at) }
}

/// Refuses a copy inside of the kernel while a recording runs: callers then read and write.
fn no_copy(forward: impl FnOnce() -> c_long) -> ssize_t {
    if session::is_running() {
        set_errno(libc::ENOSYS);
        return -1;
    }
    forward() as ssize_t
}

#[unsafe(no_mangle)]
unsafe extern "C" fn copy_file_range(
    from: c_int,
    from_at: *mut off_t,
    to: c_int,
    to_at: *mut off_t,
    length: size_t,
    flags: c_uint,
) -> ssize_t {
    // SAFETY: The arguments are passed on.
    no_copy(|| unsafe { libc::syscall(libc::SYS_copy_file_range, from, from_at, to, to_at, length, flags) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile64(to: c_int, from: c_int, at: *mut off_t, length: size_t) -> ssize_t {
    // SAFETY: The arguments are passed on.
    no_copy(|| unsafe { libc::syscall(libc::SYS_sendfile, to, from, at, length) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile(to: c_int, from: c_int, at: *mut off_t, length: size_t) -> ssize_t {
    // SAFETY: The arguments are passed on.
    unsafe { sendfile64(to, from, at, length) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn splice(
    from: c_int,
    from_at: *mut off_t,
    to: c_int,
    to_at: *mut off_t,
    length: size_t,
    flags: c_uint,
) -> ssize_t {
    // SAFETY: The arguments are passed on.
    no_copy(|| unsafe { libc::syscall(libc::SYS_splice, from, from_at, to, to_at, length, flags) })
}

#[unsafe(no_mangle)]
extern "C" fn ftruncate64(fd: c_int, length: off_t) -> c_int {
    // SAFETY: No pointers.
    let forward = || unsafe { libc::syscall(libc::SYS_ftruncate, fd, length) as c_int };
    let Some(mut entered) = session::enter(fd) else { return forward() };
    let result = forward();
    if result == 0 {
        entered.resized(u64::try_from(length).unwrap_or_default());
    }
    result
}

#[unsafe(no_mangle)]
extern "C" fn ftruncate(fd: c_int, length: off_t) -> c_int {
    ftruncate64(fd, length)
}

#[unsafe(no_mangle)]
extern "C" fn fallocate64(fd: c_int, mode: c_int, at: off_t, length: off_t) -> c_int {
    // SAFETY: No pointers.
    let forward = || unsafe { libc::syscall(libc::SYS_fallocate, fd, mode, at, length) as c_int };
    let Some(mut entered) = session::enter(fd) else { return forward() };
    let result = forward();
    if result == 0 {
        // Other modes, such as holes, are told by the comparison at the end of the recording.
        if mode == 0 {
            entered.allocated(u64::try_from(at + length).unwrap_or_default());
        }
    }
    result
}

#[unsafe(no_mangle)]
extern "C" fn fallocate(fd: c_int, mode: c_int, at: off_t, length: off_t) -> c_int {
    fallocate64(fd, mode, at, length)
}

#[unsafe(no_mangle)]
extern "C" fn posix_fallocate64(fd: c_int, at: off_t, length: off_t) -> c_int {
    if fallocate64(fd, 0, at, length) == 0 { 0 } else { errno() }
}

#[unsafe(no_mangle)]
extern "C" fn posix_fallocate(fd: c_int, at: off_t, length: off_t) -> c_int {
    posix_fallocate64(fd, at, length)
}

/// Syncs a file or the folder. What was written meanwhile is not known to be on the disk, so nothing is written meanwhile.
fn synced(fd: c_int, number: c_long) -> c_int {
    // SAFETY: No pointers.
    let forward = || unsafe { libc::syscall(number, fd) as c_int };
    session::before_sync(fd);
    let Some(mut entered) = session::enter(fd) else { return forward() };
    let result = forward();
    if result == 0 {
        entered.synced();
    }
    result
}

#[unsafe(no_mangle)]
extern "C" fn fsync(fd: c_int) -> c_int {
    synced(fd, libc::SYS_fsync)
}

#[unsafe(no_mangle)]
extern "C" fn fdatasync(fd: c_int) -> c_int {
    synced(fd, libc::SYS_fdatasync)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn openat64(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: The arguments are passed on.
    let forward = || unsafe { libc::syscall(libc::SYS_openat, folder, path, flags, mode) as c_int };
    let Some(mut names) = session::names() else { return forward() };
    let fd = forward();
    if fd >= 0 {
        names.opened(fd, flags & libc::O_TRUNC != 0);
    }
    fd
}

#[unsafe(no_mangle)]
unsafe extern "C" fn openat(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: The arguments are passed on.
    unsafe { openat64(folder, path, flags, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: The arguments are passed on.
    unsafe { openat64(libc::AT_FDCWD, path, flags, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: The arguments are passed on.
    unsafe { openat64(libc::AT_FDCWD, path, flags, mode) }
}

/// The path that a call names.
///
/// # Safety
/// `path` must be a string, or null.
unsafe fn path_of(folder: c_int, path: *const c_char) -> Option<PathBuf> {
    if path.is_null() {
        return None;
    }
    // SAFETY: As the caller promises.
    let path = unsafe { CStr::from_ptr(path) }.to_str().ok()?;
    if folder == libc::AT_FDCWD || Path::new(path).is_absolute() {
        return std::path::absolute(path).ok();
    }
    Some(std::fs::read_link(format!("/proc/self/fd/{folder}")).ok()?.join(path))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn unlinkat(folder: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: The arguments are passed on.
    let forward = || unsafe { libc::syscall(libc::SYS_unlinkat, folder, path, flags) as c_int };
    let Some(mut names) = session::names() else { return forward() };
    // SAFETY: The caller passes a string.
    let path = unsafe { path_of(folder, path) };
    let result = forward();
    if let (0, Some(path)) = (result, path) {
        names.removed(&path);
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn unlink(path: *const c_char) -> c_int {
    // SAFETY: The arguments are passed on.
    unsafe { unlinkat(libc::AT_FDCWD, path, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn renameat2(
    from_folder: c_int,
    from: *const c_char,
    to_folder: c_int,
    to: *const c_char,
    flags: c_uint,
) -> c_int {
    let forward =
        // SAFETY: The arguments are passed on.
        || unsafe { libc::syscall(libc::SYS_renameat2, from_folder, from, to_folder, to, flags) as c_int };
    let Some(mut names) = session::names() else { return forward() };
    // SAFETY: The caller passes strings.
    let paths = unsafe { (path_of(from_folder, from), path_of(to_folder, to)) };
    let result = forward();
    if let (0, (Some(from), Some(to))) = (result, paths) {
        names.renamed(&from, &to);
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn renameat(
    from_folder: c_int,
    from: *const c_char,
    to_folder: c_int,
    to: *const c_char,
) -> c_int {
    // SAFETY: The arguments are passed on.
    unsafe { renameat2(from_folder, from, to_folder, to, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rename(from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: The arguments are passed on.
    unsafe { renameat2(libc::AT_FDCWD, from, libc::AT_FDCWD, to, 0) }
}
