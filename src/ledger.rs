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

/// What is known of a block.
pub(crate) trait Entry {
    /// The bytes of the block, which no change of an entry changes.
    fn size(&self) -> usize;
}

/// Entries by device and by the address that a block starts at.
#[derive(Debug)]
pub(crate) struct Ledger<V> {
    devices: Table<Mutex<Blocks<V>>>,
}

/// The blocks of one device.
#[derive(Debug)]
struct Blocks<V> {
    by_address: BTreeMap<usize, V>,
    /// The bytes of all of them.
    bytes: usize,
}

impl<V> Default for Blocks<V> {
    fn default() -> Self {
        Self {
            by_address: BTreeMap::new(),
            bytes: 0,
        }
    }
}

impl<V> Default for Ledger<V> {
    fn default() -> Self {
        Self {
            devices: Table::default(),
        }
    }
}

impl<V: Entry> Ledger<V> {
    /// Enters a block, and returns what was there of another at its address.
    pub(crate) fn enter(&self, device: u16, addr: usize, value: V) -> Option<V> {
        let mut blocks = self.devices.get(device).lock();
        blocks.bytes = blocks.bytes.saturating_add(value.size());
        let before = blocks.by_address.insert(addr, value);
        let replaced = before.as_ref().map_or(0, V::size);
        blocks.bytes = blocks.bytes.saturating_sub(replaced);
        before
    }

    /// Strikes the block that starts at `addr` if `may` says so, and returns what was
    /// known of it; otherwise what `may` says, or `None` if there is none.
    pub(crate) fn strike<E>(
        &self,
        device: u16,
        addr: usize,
        may: impl FnOnce(&V) -> Result<(), E>,
    ) -> Option<Result<V, E>> {
        let mut blocks = self.devices.find(device)?.lock();
        if let Err(refusal) = may(blocks.by_address.get(&addr)?) {
            return Some(Err(refusal));
        }
        let struck = blocks.by_address.remove(&addr)?;
        blocks.bytes = blocks.bytes.saturating_sub(struck.size());
        Some(Ok(struck))
    }

    /// Lets `change` change what is known of the block that starts last at or before
    /// `addr`.
    pub(crate) fn change<T>(
        &self,
        device: u16,
        addr: usize,
        change: impl FnOnce(usize, &mut V) -> T,
    ) -> Option<T> {
        let mut blocks = self.devices.find(device)?.lock();
        let (&start, value) = blocks.by_address.range_mut(..=addr).next_back()?;
        Some(change(start, value))
    }

    /// How many blocks are entered.
    pub(crate) fn len(&self) -> usize {
        let devices = self.devices.iter();
        let lens = devices.map(|(_, blocks)| blocks.lock().by_address.len());
        lens.fold(0, usize::saturating_add)
    }

    /// The bytes of the blocks that are entered of a device.
    pub(crate) fn bytes(&self, device: u16) -> usize {
        let blocks = self.devices.find(device);
        blocks.map_or(0, |blocks| blocks.lock().bytes)
    }
}

impl<V: Clone> Ledger<V> {
    /// All entries, by device and address. Devices are copied one after another.
    pub(crate) fn entries(&self) -> Vec<V> {
        let mut all = Vec::new();
        for (_, blocks) in self.devices.iter() {
            all.extend(blocks.lock().by_address.values().cloned());
        }
        all
    }
}
