//! What a store can do beyond what every store promises.

/// What a store can do. Suites run the cases that it allows, the server offers what it allows.
///
/// ```
/// use lazaret_core::store::Capabilities;
/// let mut capabilities = Capabilities::default();
/// capabilities.durable = true;
/// assert!(!capabilities.audit_chain);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// What was answered survives the death of the process.
    pub durable: bool,
    /// Several processes on one machine can use it at once.
    pub shared_by_processes: bool,
    /// Several machines can use it at once: a fleet.
    pub shared_by_machines: bool,
    /// Its audit is a chain of hashes that can be [verified](super::Audit::verify_audit).
    pub audit_chain: bool,
    /// It can list letters that ended ([`Outbox`](super::Outbox)).
    pub outbox: bool,
    /// It can keep an [inbox](crate::source::Ingest).
    pub inbox: bool,
}

impl Capabilities {
    /// Each capability with its name, for people.
    pub fn named(&self) -> [(&'static str, bool); 6] {
        [
            ("durable", self.durable),
            ("shared-by-processes", self.shared_by_processes),
            ("shared-by-machines", self.shared_by_machines),
            ("audit-chain", self.audit_chain),
            ("outbox", self.outbox),
            ("inbox", self.inbox),
        ]
    }
}
