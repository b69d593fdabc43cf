//! Failed sign-ins: a client that fails too often has to wait.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;

/// The number of failures after which a client has to wait.
const MAX_FAILURES: u32 = 10;
/// How long failures count, from the first one, in seconds.
const WINDOW_SECONDS: i64 = 60;
/// The number of clients that are told apart. Beyond it, further ones count as one.
const MAX_CLIENTS: usize = 4096;

/// A client: an IPv4 address, or the network of an IPv6 address, which one machine may choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Client {
    Address(IpAddr),
    /// Without an address, or one too many.
    Other,
}

impl Client {
    pub(crate) fn of(address: Option<IpAddr>) -> Self {
        match address.map(|address| address.to_canonical()) {
            Some(IpAddr::V6(address)) => {
                let network = u128::from(address) >> 64 << 64;
                Self::Address(IpAddr::V6(Ipv6Addr::from(network)))
            }
            Some(address) => Self::Address(address),
            None => Self::Other,
        }
    }
}

/// The failed sign-ins of the last minute.
#[derive(Default)]
pub(crate) struct Attempts(Mutex<HashMap<Client, Failures>>);

#[derive(Clone, Copy)]
struct Failures {
    since: Timestamp,
    count: u32,
}

impl Failures {
    fn seconds_left(self, now: Timestamp) -> i64 {
        WINDOW_SECONDS - now.duration_since(self.since).as_secs()
    }
}

impl Attempts {
    /// Returns for how many seconds this client has to wait, if it has to.
    pub(crate) fn wait_seconds(&self, address: Option<IpAddr>, now: Timestamp) -> Option<u32> {
        let table = self.lock();
        let failures = table.get(&place(&table, address)).copied()?;
        let left = failures.seconds_left(now);
        (failures.count >= MAX_FAILURES && left > 0).then(|| u32::try_from(left).unwrap_or(u32::MAX))
    }

    /// Counts a failure.
    pub(crate) fn failed(&self, address: Option<IpAddr>, now: Timestamp) {
        let mut table = self.lock();
        table.retain(|_, failures| failures.seconds_left(now) > 0);
        let client = place(&table, address);
        table.entry(client).or_insert(Failures { since: now, count: 0 }).count += 1;
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Client, Failures>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The client under which failures of this address count.
fn place(table: &HashMap<Client, Failures>, address: Option<IpAddr>) -> Client {
    let client = Client::of(address);
    let is_full = table.len() >= MAX_CLIENTS && !table.contains_key(&client);
    if is_full { Client::Other } else { client }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn fail(attempts: &Attempts, address: &str, times: u32) {
        (0..times).for_each(|_| attempts.failed(address.parse().ok(), at(0)));
    }

    fn wait(attempts: &Attempts, address: &str, second: i64) -> Option<u32> {
        attempts.wait_seconds(address.parse().ok(), at(second))
    }

    #[test]
    fn a_client_that_fails_too_often_has_to_wait_and_others_do_not() {
        let attempts = Attempts::default();
        fail(&attempts, "10.0.0.1", MAX_FAILURES - 1);
        assert_eq!(wait(&attempts, "10.0.0.1", 1), None);
        fail(&attempts, "10.0.0.1", 1);
        assert_eq!(wait(&attempts, "10.0.0.1", 1), Some(59));
        assert_eq!(wait(&attempts, "10.0.0.2", 1), None);
        assert_eq!(wait(&attempts, "10.0.0.1", 60), None, "the failures are forgotten");
        attempts.failed("10.0.0.1".parse().ok(), at(61));
        assert_eq!(wait(&attempts, "10.0.0.1", 61), None, "a new window");
    }

    #[test]
    fn addresses_of_one_machine_count_together() {
        let attempts = Attempts::default();
        fail(&attempts, "2001:db8::1", MAX_FAILURES / 2);
        fail(&attempts, "2001:db8::ffff:2", MAX_FAILURES / 2);
        assert!(wait(&attempts, "2001:db8::3", 1).is_some());
        assert!(wait(&attempts, "2001:db8:0:1::1", 1).is_none());
        fail(&attempts, "::ffff:10.0.0.1", MAX_FAILURES);
        assert!(wait(&attempts, "10.0.0.1", 1).is_some());
    }

    #[test]
    fn the_number_of_clients_is_bounded() {
        let attempts = Attempts::default();
        for number in 0..2 * MAX_CLIENTS as u32 {
            attempts.failed(Some(IpAddr::from(number.to_be_bytes())), at(0));
        }
        assert!(attempts.lock().len() <= MAX_CLIENTS + 1);
        assert!(wait(&attempts, "255.0.0.1", 1).is_some(), "one of too many");
    }
}
