//! Connections: caps in total and per peer, deadlines, and the reserve for health checks.
//!
//! A connection is **idle** while it has no request: before its first one, and between the end of a response and the next
//! request. It is **known** once a request on it was authenticated.
//!
//! When a cap is reached, one connection is closed for the new one: the one without progress for longest, where anonymous
//! connections go before known ones, and quiet ones before those that were used just now. So connections that send nothing,
//! send slowly or read nothing keep nobody out. A connection with an authenticated request in progress is never closed. When
//! all have one, a new connection gets a place in the **reserve**, where it answers health checks only. No peer has more than a
//! quarter of the reserve, and a new connection always finds a place there: the one without progress for longest is closed for
//! it, whatever it is busy with.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::options::Limits;

/// The largest part of a response that is handed to the connection at once. While a larger one is sent, nothing would tell
/// whether the client reads.
const PART_BYTES: usize = 64 * 1024;

/// The time without progress after which a connection is quiet. It covers a TLS handshake over a slow line, and the pauses of
/// a client in constant use.
const QUIET: Duration = Duration::from_secs(2);

/// The time that a connection has for its first request when the server stops.
const FIRST_REQUEST: Duration = Duration::from_millis(500);

/// The part of the reserve that one peer may have.
const RESERVE_PARTS: usize = 4;

/// The open connections. Clones share them.
#[derive(Clone)]
pub(crate) struct Connections {
    table: Arc<Mutex<Table>>,
    total: usize,
    per_peer: usize,
    reserve: usize,
}

#[derive(Default)]
struct Table {
    next: u64,
    open: HashMap<u64, Entry>,
    /// The number of connections of each peer.
    by_peer: HashMap<IpAddr, usize>,
    /// The connections in the reserve, which are in no other count. They are few.
    reserve: HashMap<u64, Entry>,
}

struct Entry {
    peer: Option<IpAddr>,
    activity: Arc<Activity>,
    /// Cancelled to close it.
    close: CancellationToken,
}

/// The place of an open connection. Freed when dropped.
pub(crate) struct Slot {
    connections: Connections,
    id: u64,
    is_reserve: bool,
    pub(crate) activity: Arc<Activity>,
    pub(crate) close: CancellationToken,
}

impl Connections {
    pub(crate) fn new(limits: &Limits) -> Self {
        let total = limits.connections.max(1);
        Self {
            table: Arc::default(),
            total,
            per_peer: limits.connections_per_peer.clamp(1, total),
            reserve: limits.health_connections.max(1),
        }
    }

    /// Accepts a connection, in the reserve if no other may be closed for it. Connections without an address, such as those of a
    /// Unix socket, have no cap of their own.
    pub(crate) fn accept(&self, peer: Option<IpAddr>) -> Slot {
        let mut table = self.lock();
        let of_peer = peer.and_then(|peer| table.by_peer.get(&peer)).copied().unwrap_or(0);
        let has_place = if of_peer >= self.per_peer {
            table.make_room(peer)
        } else {
            table.open.len() < self.total || table.make_room(None)
        };
        let is_reserve = !has_place;
        let (activity, close) = (Arc::new(Activity::new(is_reserve)), CancellationToken::new());
        let entry = Entry { peer, activity: activity.clone(), close: close.clone() };
        table.next += 1;
        let id = table.next;
        if is_reserve {
            table.make_room_in_reserve(peer, self.reserve);
            table.reserve.insert(id, entry);
        } else {
            table.open.insert(id, entry);
            if let Some(peer) = peer {
                *table.by_peer.entry(peer).or_default() += 1;
            }
        }
        drop(table);
        Slot { connections: self.clone(), id, is_reserve, activity, close }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Closes the first connection by [`Rank`], of this peer if one is given. Returns `false` if none may be closed.
    fn make_room(&mut self, peer: Option<IpAddr>) -> bool {
        let now = Instant::now();
        let of_peer = self.open.iter().filter(|(_, entry)| peer.is_none() || entry.peer == peer);
        let ranked = of_peer.filter_map(|(id, entry)| Some((entry.activity.rank(now)?, *id)));
        match ranked.min() {
            Some((_, id)) => self.remove(id),
            None => false,
        }
    }

    /// Closes the connection of the reserve without progress for longest if the reserve of this size, or the part of this peer, is
    /// used up. Health checks are answered at once, so no request there is worth keeping for long.
    fn make_room_in_reserve(&mut self, peer: Option<IpAddr>, size: usize) {
        let of_peer = |entry: &Entry| peer.is_some() && entry.peer == peer;
        let has_its_part =
            self.reserve.values().filter(|entry| of_peer(entry)).count() >= (size / RESERVE_PARTS).max(1);
        if !has_its_part && self.reserve.len() < size {
            return;
        }
        let candidates = self.reserve.iter().filter(|(_, entry)| !has_its_part || of_peer(entry));
        let oldest = candidates.map(|(id, entry)| (entry.activity.since(), *id)).min();
        if let Some(entry) = oldest.and_then(|(_, id)| self.reserve.remove(&id)) {
            entry.close.cancel();
        }
    }

    fn remove(&mut self, id: u64) -> bool {
        let Some(entry) = self.open.remove(&id) else { return false };
        entry.close.cancel();
        if let Some(peer) = entry.peer
            && let Some(count) = self.by_peer.get_mut(&peer)
        {
            *count -= 1;
            if *count == 0 {
                self.by_peer.remove(&peer);
            }
        }
        true
    }
}

impl Slot {
    /// Returns `true` if the connection answers health checks only.
    pub(crate) fn is_reserve(&self) -> bool {
        self.is_reserve
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut table = self.connections.lock();
        if self.is_reserve {
            table.reserve.remove(&self.id);
        } else {
            table.remove(self.id);
        }
    }
}

/// The protocol of a request, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// One response at a time: whatever is written is a part of it.
    Http1,
    /// Several responses at a time, each with a window of its own, and pings between them: what is written says nothing about
    /// one response. A part of a response is taken when the client has opened its window.
    Http2,
}

/// The order in which connections are closed for others: the least goes first.
///
/// It does not depend on what an anonymous connection is busy with, because the client chooses that. To displace a caller's new
/// connection before its first request, a flood needs progress on all of its connections in that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    /// There was progress within [`QUIET`]. Those without go first, so that a page that is being loaded is not cut off for as
    /// long as there are connections that nobody uses.
    is_fresh: bool,
    is_known: bool,
    since: Instant,
}

/// What the requests of a connection tell about its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// None was authenticated.
    Anonymous,
    /// One was, but none of those in progress. The others may be of somebody else: a proxy sends those of many people.
    Known,
    /// One was since the connection was last idle.
    Authenticated,
}

/// The requests of a connection, from their headers to the end of their responses.
#[derive(Debug)]
pub(crate) struct Activity {
    requests: Mutex<Requests>,
    /// Notified of the first request.
    first: Notify,
}

#[derive(Debug)]
struct Requests {
    /// The number of requests in progress.
    active: usize,
    /// Those of which the client has a part of the response to read.
    unread: usize,
    /// The end of an HTTP/1 response is not written yet. The next request waits for that.
    unflushed: bool,
    /// The protocol of the last request.
    protocol: Protocol,
    /// Whether a request came at all.
    served: bool,
    /// The connection is in the reserve: it has less time for its first request.
    is_reserve: bool,
    standing: Standing,
    /// The last change, or the last progress of an HTTP/1 response. Bytes of a request are no progress, so that a slow head or
    /// body does not keep a connection open.
    since: Instant,
}

impl Requests {
    fn is_idle(&self) -> bool {
        self.active == 0 && !self.unflushed
    }
}

impl Activity {
    fn new(is_reserve: bool) -> Self {
        let requests = Requests {
            active: 0,
            unread: 0,
            unflushed: false,
            protocol: Protocol::Http1,
            served: false,
            is_reserve,
            standing: Standing::Anonymous,
            since: Instant::now(),
        };
        Self { requests: Mutex::new(requests), first: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the first request, but not for long: it may be on its way when the server stops, and would be answered with a reset.
    pub(crate) async fn first_request(&self) {
        if !self.lock().served {
            let _ = tokio::time::timeout(FIRST_REQUEST, self.first.notified()).await;
        }
    }

    /// The last progress.
    fn since(&self) -> Instant {
        self.lock().since
    }

    /// When the connection is closed for another. `None` while an authenticated request is in progress.
    fn rank(&self, now: Instant) -> Option<Rank> {
        let requests = self.lock();
        let may_close = requests.is_idle() || requests.standing != Standing::Authenticated;
        may_close.then(|| Rank {
            is_fresh: now.duration_since(requests.since) < QUIET,
            is_known: requests.standing != Standing::Anonymous,
            since: requests.since,
        })
    }

    /// Records a request.
    pub(crate) fn begin(self: &Arc<Self>, protocol: Protocol) -> RequestGuard {
        let mut requests = self.lock();
        if requests.is_idle() && requests.standing == Standing::Authenticated {
            requests.standing = Standing::Known;
        }
        requests.active += 1;
        requests.protocol = protocol;
        requests.served = true;
        requests.since = Instant::now();
        drop(requests);
        self.first.notify_one();
        RequestGuard { activity: self.clone(), unread: false }
    }

    /// Records that the sender of a request in progress is known.
    pub(crate) fn authenticated(&self) {
        self.lock().standing = Standing::Authenticated;
    }

    /// Records that bytes were written. Those of an HTTP/1 response show that the client reads.
    fn written(&self) {
        let mut requests = self.lock();
        if requests.protocol == Protocol::Http1 && (requests.unread > 0 || requests.unflushed) {
            requests.since = Instant::now();
        }
    }

    /// Records that all bytes were written.
    fn flushed(&self) {
        let mut requests = self.lock();
        if requests.unflushed {
            requests.unflushed = false;
            requests.since = Instant::now();
        }
    }

    /// When the connection must be closed, unless something changes before; `None` while the server works on a request.
    pub(crate) fn deadline(&self, limits: &Limits) -> Option<Instant> {
        let requests = self.lock();
        let limit = match &*requests {
            Requests { unflushed: true, .. } => limits.write_timeout,
            Requests { active: 0, served: false, is_reserve: true, .. } => limits.header_timeout.min(QUIET),
            Requests { active: 0, served: false, .. } => limits.header_timeout,
            Requests { active: 0, .. } => limits.idle_timeout,
            Requests { active, unread, .. } if active == unread => limits.write_timeout,
            _ => return None,
        };
        Some(requests.since + limit)
    }
}

/// A request in progress.
#[derive(Debug)]
pub(crate) struct RequestGuard {
    activity: Arc<Activity>,
    unread: bool,
}

impl RequestGuard {
    fn set_unread(&mut self, unread: bool) {
        if self.unread != unread {
            self.unread = unread;
            let mut requests = self.activity.lock();
            requests.unread = if unread { requests.unread + 1 } else { requests.unread - 1 };
            requests.since = Instant::now();
        }
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.set_unread(false);
        let mut requests = self.activity.lock();
        requests.active -= 1;
        // The connection has taken the last part, and flushes it next.
        requests.unflushed = requests.protocol == Protocol::Http1;
        requests.since = Instant::now();
    }
}

/// A stream that records the progress of HTTP/1 responses.
pub(crate) struct TrackedIo<S> {
    stream: S,
    activity: Arc<Activity>,
}

impl<S> TrackedIo<S> {
    pub(crate) fn new(stream: S, activity: Arc<Activity>) -> Self {
        Self { stream, activity }
    }

    fn track(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if matches!(written, Poll::Ready(Ok(1..))) {
            self.activity.written();
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TrackedIo<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TrackedIo<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.track(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.track(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if matches!(flushed, Poll::Ready(Ok(()))) {
            self.activity.flushed();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The body of a response, in parts of a bounded size. Between two parts it waits for the client to read, or for the server to
/// produce the next one; the first has a limit.
pub(crate) struct TrackedBody {
    body: Body,
    /// The rest of a part of `body`.
    rest: Bytes,
    guard: RequestGuard,
}

impl TrackedBody {
    pub(crate) fn new(body: Body, guard: RequestGuard) -> Self {
        Self { body, rest: Bytes::new(), guard }
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)).map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => self.rest = data,
                Some(Ok(Err(other))) => return Poll::Ready(Some(Ok(other))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
        let part = self.rest.split_to(self.rest.len().min(PART_BYTES));
        Poll::Ready(Some(Ok(Frame::data(part))))
    }
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.guard.set_unread(false);
        let polled = self.poll_part(cx);
        self.guard.set_unread(matches!(polled, Poll::Ready(Some(Ok(_)))));
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, hint) = (self.rest.len() as u64, self.body.size_hint());
        let mut with_rest = SizeHint::new();
        with_rest.set_lower(hint.lower().saturating_add(rest));
        if let Some(upper) = hint.upper() {
            with_rest.set_upper(upper.saturating_add(rest));
        }
        with_rest
    }
}

/// Waits until the connection must be closed: at a deadline, or for another connection.
pub(crate) async fn closed(activity: &Activity, close: &CancellationToken, limits: &Limits) -> &'static str {
    // There may be another deadline soon: look again before the shortest of them can pass.
    let look_again = limits.write_timeout.min(limits.idle_timeout).max(Duration::from_millis(10));
    loop {
        let now = Instant::now();
        let wake = match activity.deadline(limits) {
            Some(deadline) if deadline <= now => return "timeout",
            Some(deadline) => deadline.min(now + look_again),
            None => now + look_again,
        };
        tokio::select! {
            () = close.cancelled() => return "too many connections",
            () = tokio::time::sleep_until(wake) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADA: Option<IpAddr> = Some(IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1)));
    const BOB: Option<IpAddr> = Some(IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2)));

    fn connections(total: usize, per_peer: usize) -> Connections {
        let limits = Limits {
            connections: total,
            connections_per_peer: per_peer,
            health_connections: 1,
            ..Limits::default()
        };
        Connections::new(&limits)
    }

    /// Begins a request of a known caller.
    fn begin_authenticated(slot: &Slot) -> RequestGuard {
        let guard = slot.activity.begin(Protocol::Http1);
        slot.activity.authenticated();
        guard
    }

    /// Serves a request of a known caller.
    fn serve_authenticated(slot: &Slot) {
        drop(begin_authenticated(slot));
        slot.activity.flushed();
    }

    /// Begins a request of somebody unknown, who reads nothing of the response.
    fn begin_unread(slot: &Slot) -> RequestGuard {
        let mut guard = slot.activity.begin(Protocol::Http1);
        guard.set_unread(true);
        guard
    }

    /// The connections that are still open, by their place in the list.
    fn open(slots: &[&Slot]) -> Vec<usize> {
        (0..slots.len()).filter(|place| !slots[*place].close.is_cancelled()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn the_connection_that_has_been_idle_longest_makes_room() {
        let connections = connections(3, 3);
        let mut slots = Vec::new();
        for _ in 0..3 {
            slots.push(connections.accept(ADA));
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        let busy = begin_authenticated(&slots[0]);
        let new = connections.accept(BOB);
        let closed: Vec<bool> = slots.iter().map(|slot| slot.close.is_cancelled()).collect();
        assert_eq!((closed, new.is_reserve()), (vec![false, true, false], false));
        drop(busy);
        slots[0].activity.flushed();
        connections.accept(BOB);
        assert!(slots[2].close.is_cancelled() && !slots[0].close.is_cancelled(), "it was busy until now");
        assert_eq!(connections.lock().open.len(), 2, "the last one was dropped at once");
    }

    #[tokio::test(start_paused = true)]
    async fn busy_connections_leave_a_reserve_for_health_checks() {
        let connections = connections(2, 2);
        let slots: Vec<_> = (0..2).map(|_| connections.accept(ADA)).collect();
        let busy: Vec<_> = slots.iter().map(begin_authenticated).collect();
        let reserve = connections.accept(BOB);
        assert!(reserve.is_reserve());
        let next = connections.accept(BOB);
        assert!(next.is_reserve() && reserve.close.is_cancelled(), "the reserve is used up");
        drop((reserve, next, busy));
        assert!(connections.accept(BOB).is_reserve(), "the responses are still being sent");
        slots[0].activity.flushed();
        assert!(!connections.accept(BOB).is_reserve(), "an idle one makes room");
    }

    #[tokio::test(start_paused = true)]
    async fn no_peer_takes_the_reserve_and_a_health_check_always_finds_a_place() {
        let limits =
            Limits { connections: 1, connections_per_peer: 1, health_connections: 8, ..Limits::default() };
        let connections = Connections::new(&limits);
        let first = connections.accept(ADA);
        let _busy = begin_authenticated(&first);
        // Without tokens, whoever asks is known; and nothing of the answers is read.
        let mut flood = Vec::new();
        for _ in 0..3 {
            let slot = connections.accept(ADA);
            let mut unread = begin_authenticated(&slot);
            unread.set_unread(true);
            flood.push((slot, unread));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        let slots: Vec<_> = flood.iter().map(|(slot, _)| slot).collect();
        assert_eq!(open(&slots), [1, 2], "a quarter of the reserve");
        let others: Vec<_> = (3..9)
            .map(|n| connections.accept(Some(IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, n)))))
            .collect();
        assert_eq!((open(&slots).len(), connections.lock().reserve.len()), (2, 8), "the reserve is full");
        let check = connections.accept(BOB);
        assert!(check.is_reserve());
        assert_eq!(open(&slots), [2], "the one without progress for longest made room");
        let left = |slot: &Slot| slot.activity.deadline(&limits).map(|deadline| deadline - Instant::now());
        assert_eq!((left(&check), left(&others[0])), (Some(QUIET), Some(QUIET)));
        drop((check, others, flood));
        assert!(connections.lock().reserve.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn one_peer_does_not_take_the_connections_of_others() {
        let connections = connections(4, 2);
        let ada: Vec<_> = (0..2).map(|_| connections.accept(ADA)).collect();
        let bob = connections.accept(BOB);
        let _busy: Vec<_> = ada.iter().map(begin_authenticated).collect();
        assert!(connections.accept(ADA).is_reserve(), "its own are busy");
        assert!(!bob.close.is_cancelled(), "and another's idle one stays");
        assert!(!connections.accept(BOB).is_reserve());
        drop((ada, bob));
        assert!(connections.lock().by_peer.is_empty(), "peers without connections are forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn anonymous_connections_make_room_however_busy_they_are() {
        let connections = connections(4, 4);
        let accept = || connections.accept(ADA);
        let (caller, idle, unread, silent) = (accept(), accept(), accept(), accept());
        serve_authenticated(&idle);
        let _in_progress = begin_authenticated(&caller);
        tokio::time::advance(QUIET).await;
        let _never_read = begin_unread(&unread);
        tokio::time::advance(QUIET).await;
        let slots = [&caller, &idle, &unread, &silent];
        let mut newer = Vec::new();
        for left in [vec![0, 1, 2], vec![0, 1], vec![0]] {
            newer.push(accept());
            newer.iter().for_each(serve_authenticated);
            assert_eq!(open(&slots), left);
        }
        let in_progress: Vec<_> = newer.iter().map(begin_authenticated).collect();
        tokio::time::advance(2 * QUIET).await;
        assert!(accept().is_reserve(), "callers have a request in progress on all of them");
        drop(in_progress);
        newer[2].activity.flushed();
        assert!(!accept().is_reserve());
        assert_eq!(open(&[&caller, &newer[0], &newer[1], &newer[2]]), [0, 1, 2], "it is idle again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_anonymous_connections_replaces_its_own() {
        let connections = connections(4, 4);
        let caller = connections.accept(ADA);
        let mut flood: Vec<_> = (0..3).map(|_| connections.accept(ADA)).collect();
        let mut unread: Vec<_> = flood.iter().map(begin_unread).collect();
        for _ in 0..9 {
            // The caller makes a request now and then; each client of the flood is as busy as can be.
            serve_authenticated(&caller);
            flood.push(connections.accept(ADA));
            unread.extend(flood.last().map(begin_unread));
            tokio::time::advance(QUIET / 4).await;
        }
        assert_eq!(open(&flood.iter().collect::<Vec<_>>()), [9, 10, 11], "the last ones");
        assert!(!caller.close.is_cancelled());
        let new = connections.accept(ADA);
        tokio::time::advance(QUIET / 4).await;
        for slot in &flood {
            slot.activity.written();
        }
        tokio::time::advance(QUIET / 4).await;
        connections.accept(ADA);
        assert!(!caller.close.is_cancelled());
        assert!(new.close.is_cancelled(), "all others had progress after it came, before its first request");
    }

    #[tokio::test(start_paused = true)]
    async fn connections_in_use_outlast_those_that_nobody_uses() {
        let connections = connections(3, 3);
        let accept = || connections.accept(ADA);
        let (pooled, used) = (accept(), accept());
        serve_authenticated(&pooled);
        tokio::time::advance(QUIET).await;
        serve_authenticated(&used);
        let page = accept();
        let _loading = begin_unread(&page);
        let slots = [&pooled, &used, &page];
        let newer = accept();
        assert_eq!(open(&slots), [1, 2], "a page is being loaded, and nobody uses the other");
        serve_authenticated(&newer);
        accept();
        assert_eq!(open(&slots), [1], "callers use the other two");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_of_somebody_unknown_does_not_keep_the_connection_of_a_proxy_open() {
        let connections = connections(1, 1);
        let proxy = connections.accept(ADA);
        serve_authenticated(&proxy);
        let never_read = begin_unread(&proxy);
        let other = begin_authenticated(&proxy);
        assert!(connections.accept(ADA).is_reserve(), "a caller has a request in progress, too");
        drop((other, never_read));
        proxy.activity.flushed();
        let _never_read = begin_unread(&proxy);
        assert!(!connections.accept(ADA).is_reserve());
        assert!(proxy.close.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_has_a_deadline_unless_the_server_works_on_a_request() {
        let limits = Limits {
            header_timeout: Duration::from_secs(1),
            idle_timeout: Duration::from_secs(2),
            write_timeout: Duration::from_secs(3),
            ..Limits::default()
        };
        let activity = Arc::new(Activity::new(false));
        let left = || activity.deadline(&limits).map(|deadline| (deadline - Instant::now()).as_secs());
        assert_eq!(left(), Some(1), "no request yet");
        let mut guard = activity.begin(Protocol::Http1);
        assert_eq!(left(), None);
        guard.set_unread(true);
        assert_eq!(left(), Some(3), "the client does not read");
        let second = activity.begin(Protocol::Http1);
        assert_eq!(left(), None, "the server works on another request");
        drop(second);
        guard.set_unread(false);
        drop(guard);
        assert_eq!(left(), Some(3), "the end of the response is not sent yet");
        activity.flushed();
        assert_eq!(left(), Some(2), "idle");
        drop(activity.begin(Protocol::Http1));
        let _next = activity.begin(Protocol::Http1);
        assert_eq!(left(), Some(3), "the request waits until the client has read the response before it");
        activity.flushed();
        assert_eq!(left(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_bytes_of_a_response_postpone_a_deadline() {
        let limits = Limits {
            idle_timeout: Duration::from_secs(5),
            write_timeout: Duration::from_secs(5),
            ..Limits::default()
        };
        for (protocol, after) in [(Protocol::Http1, 5), (Protocol::Http2, 3)] {
            let activity = Arc::new(Activity::new(false));
            let left = || activity.deadline(&limits).map(|deadline| (deadline - Instant::now()).as_secs());
            let mut guard = activity.begin(protocol);
            guard.set_unread(true);
            tokio::time::advance(Duration::from_secs(2)).await;
            activity.written();
            assert_eq!(left(), Some(after), "{protocol:?}: pings of HTTP/2 are written as well");
            drop(guard);
            activity.flushed();
            tokio::time::advance(Duration::from_secs(1)).await;
            activity.written();
            assert_eq!(left(), Some(4), "{protocol:?}: idle, whatever is written");
        }
    }
}
