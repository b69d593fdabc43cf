//! TLS and the Unix socket of the API.

use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use lazaret_config::Tls;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::UnixListener;

use crate::error::Error;

/// Reads the certificate and the key.
pub(crate) fn tls(files: &Tls) -> Result<Arc<ServerConfig>, Error> {
    let wrong = |path: &Path, why: String| Error::Tls { path: path.to_owned(), why };
    let certificates = CertificateDer::pem_file_iter(&files.certificate)
        .and_then(|found| found.collect::<Result<Vec<_>, _>>())
        .map_err(|error| wrong(&files.certificate, error.to_string()))?;
    if certificates.is_empty() {
        return Err(wrong(&files.certificate, "it contains no certificate".to_owned()));
    }
    let key =
        PrivateKeyDer::from_pem_file(&files.key).map_err(|error| wrong(&files.key, error.to_string()))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(certificates, key));
    let mut config = config.map_err(|error| wrong(&files.certificate, error.to_string()))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Binds a Unix socket that only this user may connect to. A socket that a previous process left behind is replaced.
pub(crate) fn socket(path: &Path) -> Result<UnixListener, Error> {
    let failed = |source| Error::Listen { address: path.display().to_string(), source };
    let is_left_behind = std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket())
        && std::os::unix::net::UnixStream::connect(path)
            .is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
    if is_left_behind {
        std::fs::remove_file(path).map_err(failed)?;
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(listener)
}
