//! File permissions: only the owner can read the files. Letters hold whole messages, and posts wait in the file.

use std::fs::OpenOptions;
use std::path::Path;

/// The mode of new files: readable and writable by the owner.
#[cfg(unix)]
const PRIVATE: u32 = 0o600;

/// Lets a new file be readable by its owner only.
pub(crate) fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, PRIVATE);
    options
}

/// Creates an empty file that only its owner can read, if there is none. SQLite gives its logs the same permissions.
pub(crate) fn create(path: &Path) {
    // An error, such as a missing directory, is reported by whoever opens the file.
    _ = private(OpenOptions::new().write(true).create_new(true)).open(path);
}

/// Takes an existing file away from everybody but its owner, and logs it.
#[cfg(unix)]
pub(crate) fn restrict(path: &Path) {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    let Ok(metadata) = std::fs::metadata(path) else { return };
    let mode = metadata.permissions().mode();
    if !metadata.is_file() || mode & 0o077 == 0 {
        return;
    }
    let file = path.display();
    match std::fs::set_permissions(path, Permissions::from_mode(mode & 0o700)) {
        Ok(()) => {
            tracing::warn!(%file, before = format!("{:o}", mode & 0o777), "file permissions restricted to the owner");
        }
        Err(error) => {
            tracing::warn!(%file, %error, "file is readable by others, and its permissions cannot be changed");
        }
    }
}

#[cfg(not(unix))]
pub(crate) fn restrict(_: &Path) {}
