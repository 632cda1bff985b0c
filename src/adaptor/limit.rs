//! A budget for each device, and for each tag on it.
//!
//! Rank 4. Imports `allocator`, `observe` and the words.
//!
//! Bytes are counted before the layer below is asked for them and until it has
//! them back, so what is allocated never passes the limit, whatever other threads
//! do.

use crate::allocator::{DeviceAllocator, below};
use crate::device::{Device, DeviceIndex};
use crate::error::{Error, ErrorKind, Operation, OutOfMemory, Result};
use crate::layout::{DeviceLayout, Tag};
use crate::observe::{Block, Observed, Observer};
use crate::sync::{AtomicUsize, Ordering};
use crate::table::Table;

/// An allocator that gives no more than a budget allows, by device and by tag.
///
/// What passes the budget is out of memory, with the limit and what is in use in
/// the report, and the layer below is asked for nothing but what the device has free
/// ([`memory_info`](DeviceAllocator::memory_info)), for the report. What is counted
/// are the bytes asked for: put it below a pool to bound what that holds, and above
/// to bound what is in use.
///
/// Costs four atomic operations for an allocation and its free, on memory that
/// threads share, and no lock.
///
/// Two threads that ask for the last bytes at once may both be refused if the
/// limit of a tag lets one of them pass that the device's does not.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
/// use device_memory::adaptor::Limit;
/// use device_memory::{DeviceLayout, DeviceMemoryBuffer, HostAllocator, Tag};
///
/// let limit = Arc::new(Limit::over(HostAllocator, 1 << 20));
/// limit.set_tag_limit(0, Tag::SCRATCH, 4096)?;
///
/// let layout = DeviceLayout::from_size(4097)?;
/// let weights = DeviceMemoryBuffer::create_with(limit.clone(), layout, 0)?;
/// let refused = DeviceMemoryBuffer::create_with(limit.clone(), layout.with_tag(Tag::SCRATCH), 0);
///
/// assert_eq!(limit.in_use(0), 4097);
/// assert_eq!(
///     refused.unwrap_err().to_string(),
///     "out of memory on cpu:0: 4097 bytes requested (align 64, tag scratch), 0 in use, limit 4096"
/// );
/// # drop(weights);
/// # Ok::<(), device_memory::Error>(())
/// ```
pub type Limit<A> = Observed<A, Budgets>;

/// How much of a device may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Budget {
    /// So many bytes.
    Bytes(usize),
    /// So many hundredths of the memory of the device.
    PercentOfTotal(u8),
    /// What is in use through the limit, and so many hundredths of what is free
    /// besides when the budget is set.
    PercentOfFree(u8),
}

/// The budgets of a [`Limit`] and what is used of them.
#[derive(Debug)]
pub struct Budgets {
    unless_set: usize,
    devices: Table<DeviceBudget>,
}

/// The budget of one device.
#[derive(Debug, Default)]
struct DeviceBudget {
    all: Account,
    tags: Table<Account>,
}

/// Bytes in use, and how many may be.
#[derive(Debug)]
struct Account {
    in_use: AtomicUsize,
    /// `UNSET` where none was set.
    limit: AtomicUsize,
}

/// What a limit is that was not set.
const UNSET: usize = usize::MAX;

/// What a limit is that was set to all that there is: more than can ever be in use.
const LIFTED: usize = usize::MAX - 1;

impl Default for Account {
    fn default() -> Self {
        Self {
            in_use: AtomicUsize::new(0),
            limit: AtomicUsize::new(UNSET),
        }
    }
}

impl Account {
    /// Counts `bytes`, unless that passes the limit: then it says what is in use.
    #[inline]
    fn take(&self, bytes: usize, limit: usize) -> Result<(), usize> {
        // Acquire and release: who takes bytes that another gave back sees all that
        // the other did before, so that the layer below has them.
        let taken = self
            .in_use
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |in_use| {
                in_use.checked_add(bytes).filter(|sum| *sum <= limit)
            });
        taken.map(drop)
    }

    /// Counts `bytes` no longer, which were taken before.
    #[inline]
    fn give(&self, bytes: usize) {
        self.in_use.fetch_sub(bytes, Ordering::AcqRel);
    }

    fn in_use(&self) -> usize {
        self.in_use.load(Ordering::Acquire)
    }

    #[inline]
    fn limit_or(&self, unless_set: usize) -> usize {
        match self.limit.load(Ordering::Relaxed) {
            UNSET => unless_set,
            limit => limit,
        }
    }

    fn set(&self, limit: usize) {
        self.limit.store(limit.min(LIFTED), Ordering::Relaxed);
    }
}

impl<A> Observed<A, Budgets> {
    /// Allows `bytes` on each device of `upstream`, and each tag as many.
    #[must_use]
    pub fn over(upstream: A, bytes: usize) -> Self {
        let budgets = Budgets {
            unless_set: bytes,
            devices: Table::default(),
        };
        Self::new(upstream, budgets)
    }
}

impl<A: DeviceAllocator> Observed<A, Budgets> {
    /// Allows `budget` on the device `index` from now on, and returns the bytes
    /// that this is. What is in use stays so, also if it is more.
    ///
    /// A part of a device is made out once, here; the device is asked for its
    /// memory, which may open it.
    ///
    /// # Errors
    ///
    /// - [`NotSupported`](ErrorKind::NotSupported): a part is asked for, and the device
    ///   can not tell how much memory it has.
    /// - [`InvalidDevice`](ErrorKind::InvalidDevice): no such index.
    /// - [`Backend`](ErrorKind::Backend): the driver failed.
    pub fn set_limit(&self, index: DeviceIndex, budget: Budget) -> Result<usize> {
        self.inner().check_index(index)?;
        let account = &self.devices.get(index).all;
        let bytes = match budget {
            Budget::Bytes(bytes) => bytes,
            Budget::PercentOfTotal(percent) => percent_of(self.memory(index)?.1, percent),
            Budget::PercentOfFree(percent) => {
                let free = percent_of(self.memory(index)?.0, percent);
                account.in_use().saturating_add(free)
            }
        };
        account.set(bytes);
        Ok(bytes)
    }

    /// Allows `bytes` for `tag` on the device `index` from now on. They count
    /// against the budget of the device as well.
    ///
    /// # Errors
    ///
    /// - [`InvalidDevice`](ErrorKind::InvalidDevice): no such index.
    pub fn set_tag_limit(&self, index: DeviceIndex, tag: Tag, bytes: usize) -> Result<()> {
        self.inner().check_index(index)?;
        self.devices.get(index).tags.get(tag.to_index()).set(bytes);
        Ok(())
    }

    /// The free and the total bytes of a device.
    fn memory(&self, index: DeviceIndex) -> Result<(usize, usize)> {
        match below::memory_info(self.inner(), index)? {
            Some(info) => Ok((info.free, info.total)),
            None => Err(ErrorKind::NotSupported {
                device: Device::new(self.inner().device_type(), index),
                operation: Operation::MemoryInfo,
            }
            .into()),
        }
    }

    /// Takes `bytes` off the budget without allocating them: for memory that comes
    /// from elsewhere, and to find out whether work fits before it is begun. They
    /// are given back when the reservation is dropped.
    ///
    /// # Errors
    ///
    /// - [`InvalidDevice`](ErrorKind::InvalidDevice): no such index.
    /// - [`Layout`](ErrorKind::Layout): they are more than one block can have.
    /// - [`OutOfMemory`](ErrorKind::OutOfMemory): they pass the budget, and nothing is taken.
    ///
    /// # Examples
    ///
    /// ```
    /// use device_memory::adaptor::Limit;
    /// use device_memory::{HostAllocator, Tag};
    ///
    /// let limit = Limit::over(HostAllocator, 100);
    /// let workspace = limit.reserve(0, Tag::SCRATCH, 60)?;
    ///
    /// assert!(limit.reserve(0, Tag::SCRATCH, 60).is_err());
    /// drop(workspace);
    /// assert!(limit.reserve(0, Tag::SCRATCH, 60).is_ok());
    /// # Ok::<(), device_memory::Error>(())
    /// ```
    pub fn reserve(&self, index: DeviceIndex, tag: Tag, bytes: usize) -> Result<Reservation<'_>> {
        self.inner().check_index(index)?;
        let device = Device::new(self.inner().device_type(), index);
        let layout = DeviceLayout::new(bytes, 1)?.with_tag(tag);
        self.take(device, layout)
            .map_err(|refusal| self.refused(refusal))?;
        Ok(Reservation {
            budgets: self.observer(),
            index,
            layout,
        })
    }
}

/// Bytes that a [`Limit`] counts as in use until this is dropped.
#[derive(Debug)]
pub struct Reservation<'a> {
    budgets: &'a Budgets,
    index: DeviceIndex,
    layout: DeviceLayout,
}

impl Reservation<'_> {
    /// How many bytes are reserved.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.budgets.give(self.index, self.layout);
    }
}

impl Budgets {
    /// The bytes of the device `index` that are in use or reserved.
    #[must_use]
    pub fn in_use(&self, index: DeviceIndex) -> usize {
        self.devices
            .find(index)
            .map_or(0, |budget| budget.all.in_use())
    }

    /// The bytes of `tag` on the device `index` that are in use or reserved.
    #[must_use]
    pub fn tag_in_use(&self, index: DeviceIndex, tag: Tag) -> usize {
        let budget = self.devices.find(index);
        let account = budget.and_then(|budget| budget.tags.find(tag.to_index()));
        account.map_or(0, Account::in_use)
    }

    /// The bytes that may be in use on the device `index`.
    #[must_use]
    pub fn limit(&self, index: DeviceIndex) -> usize {
        let budget = self.devices.find(index);
        let limit = budget.map_or(self.unless_set, |budget| {
            budget.all.limit_or(self.unless_set)
        });
        told(limit).unwrap_or(usize::MAX)
    }

    /// Takes a layout off the budgets of its tag and of its device, or off none.
    #[inline]
    fn take(&self, device: Device, layout: DeviceLayout) -> Result<()> {
        let budget = self.devices.get(device.index());
        let tag = budget.tags.get(layout.tag().to_index());
        let size = layout.size();
        let tag_limit = tag.limit_or(UNSET);
        if let Err(in_use) = tag.take(size, tag_limit) {
            return Err(refused(device, layout, in_use, tag_limit));
        }
        let limit = budget.all.limit_or(self.unless_set);
        if let Err(in_use) = budget.all.take(size, limit) {
            tag.give(size);
            return Err(refused(device, layout, in_use, limit));
        }
        Ok(())
    }

    #[inline]
    fn give(&self, index: DeviceIndex, layout: DeviceLayout) {
        let budget = self.devices.get(index);
        budget.all.give(layout.size());
        budget.tags.get(layout.tag().to_index()).give(layout.size());
    }
}

impl Observer for Budgets {
    #[inline]
    fn before_allocate(&self, device: Device, layout: DeviceLayout) -> Result<()> {
        self.take(device, layout)
    }

    #[inline]
    fn freed(&self, block: &Block) {
        self.give(block.device.index(), block.layout);
    }

    fn allocate_failed(&self, device: Device, layout: DeviceLayout, error: &mut Error) {
        self.give(device.index(), layout);
        if let Some(report) = error.out_of_memory_mut() {
            report.in_use.get_or_insert(self.in_use(device.index()));
            report.limit = report.limit.or(told(self.limit(device.index())));
        }
    }
}

#[cold]
fn refused(device: Device, layout: DeviceLayout, in_use: usize, limit: usize) -> Error {
    let mut report = OutOfMemory::new(device, layout);
    report.in_use = Some(in_use);
    report.limit = told(limit);
    report.into()
}

/// A limit as people are told of it, if it is one.
fn told(limit: usize) -> Option<usize> {
    Some(limit).filter(|limit| *limit < LIFTED)
}

/// So many hundredths of `bytes`, of which there are no more than a hundred.
fn percent_of(bytes: usize, percent: u8) -> usize {
    let percent = usize::from(percent).min(100);
    let whole = bytes.checked_div(100).unwrap_or(0).saturating_mul(percent);
    let rest = bytes.checked_rem(100).unwrap_or(0).saturating_mul(percent);
    whole.saturating_add(rest.checked_div(100).unwrap_or(0))
}
