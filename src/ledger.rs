//! What is known of each block, by device and address.
//!
//! Rank 1. Imports `sync` and `table`.
//!
//! One lock a device, held for one look or change and never while code of others
//! runs. The order is the user's to keep: enter a block after the layer below gave
//! it, strike it before the layer below gets it back, or what is struck may be the
//! entry of another thread's block at the same address.

use std::collections::BTreeMap;

use crate::sync::Mutex;
use crate::table::Table;

/// Entries by device and by the address that a block starts at.
#[derive(Debug)]
pub(crate) struct Ledger<V> {
    devices: Table<Mutex<BTreeMap<usize, V>>>,
}

impl<V> Default for Ledger<V> {
    fn default() -> Self {
        Self {
            devices: Table::default(),
        }
    }
}

impl<V> Ledger<V> {
    /// Enters a block, and returns what was there of another at its address.
    pub(crate) fn enter(&self, device: u16, addr: usize, value: V) -> Option<V> {
        self.devices.get(device).lock().insert(addr, value)
    }

    /// Strikes the block that starts at `addr` if `may` says so, and returns what was
    /// known of it; otherwise what `may` says, or `None` if there is none.
    pub(crate) fn strike<E>(
        &self,
        device: u16,
        addr: usize,
        may: impl FnOnce(&V) -> Result<(), E>,
    ) -> Option<Result<V, E>> {
        let mut entries = self.devices.find(device)?.lock();
        match may(entries.get(&addr)?) {
            Ok(()) => entries.remove(&addr).map(Ok),
            Err(refusal) => Some(Err(refusal)),
        }
    }

    /// Lets `change` change what is known of the block that starts last at or before
    /// `addr`.
    pub(crate) fn change<T>(
        &self,
        device: u16,
        addr: usize,
        change: impl FnOnce(usize, &mut V) -> T,
    ) -> Option<T> {
        let mut entries = self.devices.find(device)?.lock();
        let (&start, value) = entries.range_mut(..=addr).next_back()?;
        Some(change(start, value))
    }

    /// How many blocks are entered.
    pub(crate) fn len(&self) -> usize {
        let lens = self.devices.iter().map(|(_, entries)| entries.lock().len());
        lens.fold(0, usize::saturating_add)
    }
}

impl<V: Clone> Ledger<V> {
    /// All entries, by device and address. Devices are copied one after another.
    pub(crate) fn entries(&self) -> Vec<V> {
        let mut all = Vec::new();
        for (_, entries) in self.devices.iter() {
            all.extend(entries.lock().values().cloned());
        }
        all
    }
}
