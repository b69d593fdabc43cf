//! Sends orders by appending them to the file that the consumer follows.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};

use crate::folder::Folder;
use crate::orders;

/// The sender of orders.
#[derive(Debug)]
pub(crate) struct Sender {
    file: File,
    sent: u32,
}

impl Sender {
    pub(crate) fn new(folder: &Folder) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(folder.orders())?;
        Ok(Self { file, sent: 0 })
    }

    /// Returns the number of orders sent.
    pub(crate) const fn sent(&self) -> u32 {
        self.sent
    }

    /// Sends all orders up to this one.
    pub(crate) fn send_up_to(&mut self, number: u32) -> io::Result<()> {
        let lines: String = (self.sent + 1..=number).map(orders::line).collect();
        // One write, so that the reader finds complete lines.
        self.file.write_all(lines.as_bytes())?;
        self.sent = self.sent.max(number);
        Ok(())
    }
}
