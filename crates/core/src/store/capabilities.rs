//! Optional capabilities of a store.

/// The optional capabilities of a store. The suites hold a store to what it reports, the API shows it in the status, and the daemon
/// decides by it what it offers.
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
    /// Acknowledged writes survive a crash of the process.
    pub durable: bool,
    /// Several processes on one machine can share it.
    pub shared_by_processes: bool,
    /// Several machines can share it, as a fleet.
    pub shared_by_machines: bool,
    /// Its audit is a hash chain that can be [verified](super::Audit::verify_audit).
    pub audit_chain: bool,
    /// It lists ended letters ([`Outbox`](super::Outbox)).
    pub outbox: bool,
    /// It provides an [inbox](crate::source::Ingest).
    pub inbox: bool,
}

impl Capabilities {
    /// No capability, for constants:
    ///
    /// ```
    /// use lazaret_core::store::Capabilities;
    /// const CAPABILITIES: Capabilities = {
    ///     let mut capabilities = Capabilities::NONE;
    ///     capabilities.durable = true;
    ///     capabilities
    /// };
    /// assert_ne!(CAPABILITIES, Capabilities::default());
    /// ```
    pub const NONE: Self = Self {
        durable: false,
        shared_by_processes: false,
        shared_by_machines: false,
        audit_chain: false,
        outbox: false,
        inbox: false,
    };

    /// Each capability with its display name.
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
