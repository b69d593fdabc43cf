//! Connections: reused, lost, limited, secured, and shared.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use hyper::Version;
use lazaret_core::Reason;
use lazaret_handlers::{CertificateProblem, HttpHandler, HttpOptions, HttpVersion, ProbeError, probe};
use rcgen::{BasicConstraints, CertificateParams, IsCa, date_time_ymd};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;

use crate::support::{
    Server, call, call_after_a_stop, eventually, failed, message, raw, read_request, status,
};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

#[tokio::test]
async fn a_connection_is_kept_for_the_next_message() {
    let server = Server::start(|_| status(200)).await;
    let handler = server.handler();
    for _ in 0..20 {
        call(&handler, message()).await.unwrap();
    }
    assert_eq!((server.seen().len(), server.connections()), (20, 1));
    assert_eq!(server.seen()[0].version, Version::HTTP_11);
}

#[tokio::test]
async fn a_connection_that_was_closed_while_idle_fails_no_attempt() {
    // I4: nothing was sent on the connection, so no attempt was made.
    let closed = Arc::new(AtomicUsize::new(0));
    let count = closed.clone();
    let url = raw(move |mut stream, _| {
        let count = count.clone();
        async move {
            read_request(&mut stream).await;
            stream.write_all(OK).await.unwrap();
            stream.shutdown().await.unwrap();
            // Once the client closes its side, it has noticed the end of the connection.
            assert_eq!(stream.read(&mut [0; 16]).await.unwrap_or(0), 0);
            count.fetch_add(1, Ordering::SeqCst);
        }
    })
    .await;
    let handler = HttpHandler::new(HttpOptions::new(url)).unwrap();
    for n in 1..=50 {
        call(&handler, message()).await.unwrap();
        eventually("both sides have closed", || closed.load(Ordering::SeqCst) == n).await;
    }
}

#[tokio::test]
async fn a_request_that_may_have_been_read_is_not_sent_twice_in_one_attempt() {
    // I4: the handler may have done its work before the connection broke.
    let requests = Arc::new(AtomicUsize::new(0));
    let count = requests.clone();
    let url = raw(move |mut stream, _| {
        let count = count.clone();
        async move {
            read_request(&mut stream).await;
            count.fetch_add(1, Ordering::SeqCst);
            stream.write_all(OK).await.unwrap();
            read_request(&mut stream).await;
            count.fetch_add(1, Ordering::SeqCst);
        }
    })
    .await;
    let handler = HttpHandler::new(HttpOptions::new(url)).unwrap();
    call(&handler, message()).await.unwrap();
    assert_eq!(failed(&handler).await.0.reason, Reason::HANDLER_UNREACHABLE);
    assert_eq!(requests.load(Ordering::SeqCst), 2);
    call(&handler, message()).await.unwrap();
}

#[tokio::test]
async fn a_connection_that_says_that_it_closes_is_not_used_again() {
    let url = raw(|mut stream, _| async move {
        read_request(&mut stream).await;
        let head = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        stream.write_all(head).await.unwrap();
        assert_eq!(stream.read(&mut [0; 16]).await.unwrap_or(0), 0, "nothing comes after it");
    })
    .await;
    let handler = HttpHandler::new(HttpOptions::new(url)).unwrap();
    for _ in 0..20 {
        call(&handler, message()).await.unwrap();
    }
}

#[tokio::test]
async fn an_idle_connection_is_let_go_in_time() {
    let (closed, mut was_closed) = tokio::sync::mpsc::unbounded_channel();
    let url = raw(move |mut stream, _| {
        let closed = closed.clone();
        async move {
            read_request(&mut stream).await;
            stream.write_all(OK).await.unwrap();
            closed.send(stream.read(&mut [0; 16]).await.unwrap()).unwrap();
        }
    })
    .await;
    let options = HttpOptions::new(url).with_keep_alive(Duration::from_millis(50));
    let handler = HttpHandler::new(options).unwrap();
    call(&handler, message()).await.unwrap();
    assert_eq!(was_closed.recv().await, Some(0));
}

#[tokio::test]
async fn there_are_never_more_requests_than_allowed() {
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (now, peak) = (running.clone(), most.clone());
    let url = raw(move |mut stream, _| {
        let (now, peak) = (now.clone(), peak.clone());
        async move {
            // Read until the client closes the connection.
            loop {
                let mut first = [0];
                if stream.peek(&mut first).await.unwrap_or(0) == 0 {
                    return;
                }
                read_request(&mut stream).await;
                peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                now.fetch_sub(1, Ordering::SeqCst);
                stream.write_all(OK).await.unwrap();
            }
        }
    })
    .await;
    let handler = HttpHandler::new(HttpOptions::new(url).with_max_connections(3)).unwrap();
    let outcomes = join_all((0..60).map(|_| call(&handler, message()))).await;
    assert!(outcomes.iter().all(Result::is_ok));
    assert!((2..=3).contains(&most.load(Ordering::SeqCst)), "{most:?}");
}

#[tokio::test]
async fn an_attempt_that_waited_for_a_connection_is_not_made_for_a_message_that_others_may_have() {
    // I6
    let server = Server::start(|_| status(200)).await;
    let handler = HttpHandler::new(server.options().with_max_connections(1)).unwrap();
    let error = call_after_a_stop(&handler).await.unwrap_err();
    assert!(error.deferral().is_some(), "it does not count: {error:?}");
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn http2_without_asking_first_shares_one_connection() {
    let server = Server::start(|_| status(200)).await;
    let handler = HttpHandler::new(server.options().with_version(HttpVersion::Http2)).unwrap();
    call(&handler, message()).await.unwrap();
    let outcomes = join_all((0..50).map(|_| call(&handler, message().with_header("a", "1")))).await;
    assert!(outcomes.iter().all(Result::is_ok));
    assert_eq!((server.seen().len(), server.connections()), (51, 1));
    let seen = &server.seen()[50];
    assert_eq!((seen.version, seen.header("lazaret-header-a")), (Version::HTTP_2, "1"));
}

/// Creates a self-signed certificate for 127.0.0.1, and an acceptor that uses it.
fn certificate(protocols: &[&[u8]]) -> (String, TlsAcceptor) {
    let signed = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(signed.signing_key.serialize_der()).unwrap();
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![signed.cert.der().clone()], key)
        .unwrap();
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    (signed.cert.pem(), TlsAcceptor::from(Arc::new(config)))
}

#[tokio::test]
async fn the_version_over_tls_is_agreed_on() {
    let both: &[&[u8]] = &[b"h2", b"http/1.1"];
    let table: [(&[&[u8]], HttpVersion, Version); 5] = [
        (both, HttpVersion::Auto, Version::HTTP_2),
        (both, HttpVersion::Http1, Version::HTTP_11),
        (both, HttpVersion::Http2, Version::HTTP_2),
        (&[b"http/1.1"], HttpVersion::Auto, Version::HTTP_11),
        (&[], HttpVersion::Auto, Version::HTTP_11),
    ];
    for (protocols, version, expected) in table {
        let (pem, tls) = certificate(protocols);
        let server = Server::start_with(Some(tls), |_| status(204)).await;
        let options = server.options().with_version(version).with_ca_pem(pem);
        call(&HttpHandler::new(options).unwrap(), message()).await.unwrap();
        assert_eq!(server.only().version, expected, "{version:?}");
    }
}

#[tokio::test]
async fn an_authority_can_be_given_as_a_file() {
    let (pem, tls) = certificate(&[]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ca.pem");
    std::fs::write(&path, pem).unwrap();
    let server = Server::start_with(Some(tls), |_| status(204)).await;
    call(&HttpHandler::new(server.options().with_ca_file(path)).unwrap(), message()).await.unwrap();
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn a_certificate_that_nobody_vouches_for_is_refused() {
    let (_, tls) = certificate(&[]);
    let (other, _) = certificate(&[]);
    let server = Server::start_with(Some(tls), |_| status(204)).await;
    let handler = HttpHandler::new(server.options().with_ca_pem(other)).unwrap();
    let (failure, _) = failed(&handler).await;
    assert_eq!(failure.reason, Reason::HANDLER_UNREACHABLE);
    assert!(failure.message.contains("certificate"), "{}", failure.message);
    assert!(server.seen().is_empty());
}

/// Probes a server whose certificate has these parameters. Returns the result and the number of requests
/// that the server received.
async fn probed(params: CertificateParams) -> (Result<(), ProbeError>, usize) {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let tls = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        )
        .unwrap();
    let server = Server::start_with(Some(TlsAcceptor::from(Arc::new(tls))), |_| status(204)).await;
    let probed = probe(&server.options().with_ca_pem(certificate.pem())).await;
    (probed, server.seen().len())
}

#[tokio::test]
async fn a_probe_reports_the_certificate_problem_and_sends_no_request() {
    let here = || CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    assert!(matches!(probed(here()).await, (Ok(()), 0)));
    let mut authority = here();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let mut old = here();
    (old.not_before, old.not_after) = (date_time_ymd(2001, 1, 1), date_time_ymd(2002, 1, 1));
    let mut early = here();
    (early.not_before, early.not_after) = (date_time_ymd(4001, 1, 1), date_time_ymd(4002, 1, 1));
    let table = [
        (authority, CertificateProblem::CaAsEndEntity),
        (old, CertificateProblem::Expired),
        (early, CertificateProblem::NotYetValid),
        (CertificateParams::new(["example.com".to_owned()]).unwrap(), CertificateProblem::NameMismatch),
    ];
    for (params, expected) in table {
        let (found, seen) = probed(params).await;
        assert!(
            matches!(&found, Err(ProbeError::Certificate { problem, .. }) if *problem == expected)
                && seen == 0,
            "{expected:?}: {found:?}"
        );
    }
    // A stranger, and a stranger with the same name.
    let key = rcgen::KeyPair::generate().unwrap();
    let mut stranger = here();
    stranger.distinguished_name.push(rcgen::DnType::CommonName, "a stranger");
    for other in [stranger.self_signed(&key).unwrap().pem(), certificate(&[]).0] {
        let (_, tls) = certificate(&[]);
        let server = Server::start_with(Some(tls), |_| status(204)).await;
        let found = probe(&server.options().with_ca_pem(other)).await;
        let Err(ProbeError::Certificate { problem: CertificateProblem::UnknownIssuer, .. }) = found else {
            panic!("{found:?}");
        };
    }
}

#[tokio::test]
async fn a_server_that_does_not_speak_tls_is_unreachable() {
    let url = raw(|mut stream, _| async move {
        let _ = stream.read(&mut [0; 1024]).await;
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
    })
    .await;
    let (pem, _) = certificate(&[]);
    let options = HttpOptions::new(url.replace("http:", "https:")).with_ca_pem(pem);
    let probed = probe(&options).await;
    assert!(matches!(probed, Err(ProbeError::Tls(_))), "{probed:?}");
    assert_eq!(failed(&HttpHandler::new(options).unwrap()).await.0.reason, Reason::HANDLER_UNREACHABLE);
}
