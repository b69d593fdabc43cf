//! Frames of HTTP/2, for clients that misbehave.

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// The first bytes of a connection. Settings follow.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The kinds of frames.
pub(crate) const HEADERS: u8 = 1;
pub(crate) const SETTINGS: u8 = 4;
/// The flags of headers.
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
/// The methods, by their numbers in HPACK.
pub(crate) const GET: u8 = 0x82;
pub(crate) const POST: u8 = 0x83;

/// A frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The headers of a request, as HPACK writes them without its tables.
pub(crate) fn request_headers(method: u8, path: &str) -> Vec<u8> {
    // `:scheme: http` has a number of its own, `:path` and `:authority` those of their names.
    let mut headers = vec![method, 0x86];
    for (name, value) in [(4_u8, path), (1, "localhost")] {
        headers.extend([name, u8::try_from(value.len()).unwrap()]);
        headers.extend(value.as_bytes());
    }
    headers
}

/// Reads frames until a response begins. Returns `false` at the end of the connection.
pub(crate) async fn read_response_start(stream: &mut TcpStream) -> bool {
    loop {
        let mut head = [0; 9];
        if stream.read_exact(&mut head).await.is_err() {
            return false;
        }
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        stream.read_exact(&mut vec![0; length as usize]).await.unwrap();
        if head[3] == HEADERS {
            return true;
        }
    }
}
