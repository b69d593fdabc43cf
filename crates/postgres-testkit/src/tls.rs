//! A cluster whose server has a certificate.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use super::{Address, Cluster};

impl Cluster {
    /// As [`for_test`](Self::for_test), with TLS: this certificate and its key, both in PEM. Connections without TLS are accepted, too.
    ///
    /// # Panics
    /// As [`for_test`](Self::for_test).
    pub fn for_test_with_tls(certificate: &str, key: &str) -> Option<Self> {
        Self::if_installed(|port| {
            let mut cluster = Self::empty(Address::Port(port), &["ssl=on"])?;
            for (setting, text) in [("ssl_cert_file", certificate), ("ssl_key_file", key)] {
                let path = cluster.folder.path().join(setting);
                let written = cluster.write_private(&path, text);
                written.map_err(|error| format!("failed to write {}: {error}", path.display()))?;
                cluster.settings.push(format!("{setting}={}", path.display()));
            }
            cluster.create()?;
            Ok(cluster)
        })
    }

    /// Writes a file that only the server can read: it refuses a key that others can.
    fn write_private(&self, path: &Path, text: &str) -> std::io::Result<()> {
        fs::write(path, text)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        self.user.map_or(Ok(()), |(uid, gid)| chown(path, Some(uid), Some(gid)))
    }
}
