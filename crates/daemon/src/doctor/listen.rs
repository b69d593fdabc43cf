//! Checks that the address and the socket of the API are free, and its TLS files.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lazaret_config::{Address, Tls};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned};
use tokio::net::TcpListener;

use super::disk;
use super::finding::{Finding, PROBE_TIMEOUT};
use crate::assemble;

/// The timeout of each step of a request.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Binds the address and releases it at once.
pub(super) async fn check(address: &Address) -> Finding {
    match TcpListener::bind((address.host.as_str(), address.port)).await {
        Ok(_) => Finding::ok("listen", format!("{address} is free")),
        Err(error) if error.kind() == ErrorKind::AddrInUse => taken(address).await,
        Err(error) => {
            let advice = "set `listen` to an address of this machine and a permitted port";
            Finding::fail("listen", format!("{address}: {error}"), advice)
        }
    }
}

async fn taken(address: &Address) -> Finding {
    if tokio::time::timeout(PROBE_TIMEOUT, is_lazaret(address)).await.unwrap_or(false) {
        let advice =
            "no action needed if it is the intended instance; a second one needs another `listen` address";
        return Finding::warn("listen", format!("a Lazaret daemon is running at {address}"), advice);
    }
    let advice = "stop the program that uses it, or set another `listen` address";
    Finding::fail("listen", format!("{address} is in use by another program"), advice)
}

/// Returns whether a Lazaret daemon responds at the address, with TLS or without: the running one may have another configuration.
async fn is_lazaret(address: &Address) -> bool {
    for tls in [false, true] {
        let Address { host, port } = address.clone();
        let asked = tokio::task::spawn_blocking(move || ask(&host, port, tls)).await;
        let text = asked.ok().and_then(io::Result::ok).unwrap_or_default();
        if text.starts_with("HTTP/1.1 200") && text.contains("\"status\"") && text.contains("\"version\"") {
            return true;
        }
    }
    false
}

fn ask(host: &str, port: u16, tls: bool) -> io::Result<String> {
    let address = (host, port).to_socket_addrs()?.next().ok_or(ErrorKind::NotFound)?;
    let stream = TcpStream::connect_timeout(&address, ANSWER_TIMEOUT)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    if !tls {
        return exchange(stream, host);
    }
    let provider = Arc::new(ring::default_provider());
    let verifier = Arc::new(AnyCertificate(provider.clone()));
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let connection = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
    exchange(StreamOwned::new(connection, stream), host)
}

fn exchange(mut stream: impl Read + Write, host: &str) -> io::Result<String> {
    let request = format!("GET /healthz HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    // A server that keeps the connection open has responded by the timeout.
    let _ = stream.take(4096).read_to_end(&mut answer);
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Accepts every certificate: nothing secret is sent, and nothing depends on the response but the text of a warning.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Checks the files of TLS.
pub(super) fn check_tls(files: &Tls) -> Finding {
    match assemble::tls(files) {
        Ok(_) => Finding::ok("tls", format!("{} and its key are usable", files.certificate.display())),
        Err(error) => {
            let advice =
                "set `tls` to a certificate and its key, in PEM, that the user of the daemon may read";
            Finding::fail("tls", error.to_string(), advice)
        }
    }
}

/// Checks that the Unix socket can be bound.
pub(super) fn check_socket(path: &Path) -> Finding {
    let (subject, shown) = ("socket", path.display());
    if let Err(error) = SocketAddr::from_pathname(path) {
        return Finding::fail(subject, format!("{shown}: {error}"), "set `socket` to a shorter path");
    }
    match (std::fs::symlink_metadata(path), UnixStream::connect(path)) {
        (Ok(_), Ok(_)) => {
            let advice =
                "no action needed if it is the intended instance; a second one needs another `socket`";
            Finding::warn(subject, format!("a program is listening at {shown}"), advice)
        }
        (Ok(file), Err(_)) if !file.file_type().is_socket() => Finding::fail(
            subject,
            format!("{shown} is not a socket"),
            "set `socket` to another path, or move that file",
        ),
        _ => {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            disk::folder(subject, parent.unwrap_or(Path::new(".")), disk::MissingFolder::Fails)
        }
    }
}
