//! The contract of allocators, as a suite that any of them can run.
//!
//! Rank 8. Part of `testing`. Imports `allocator` and the words.
//!
//! The suite uses the raw trait and nothing above it, so what it finds is the
//! allocator's. It panics in no case: what it finds is a [`Failure`], which
//! names the promise by its number.
//!
//! An author adds one test:
//!
//! ```
//! use device_memory::HostAllocator;
//! use device_memory::testing::conformance;
//!
//! # fn main() -> Result<(), conformance::Failure> {
//! let report = conformance::run(&HostAllocator)?;
//!
//! assert_eq!(report.devices, ["cpu:0".parse().unwrap()]);
//! # Ok(())
//! # }
//! ```
//!
//! and sets limits where the devices have some:
//!
//! ```
//! use device_memory::DeviceType;
//! use device_memory::testing::FakeDevice;
//! use device_memory::testing::conformance::{Conformance, Failure};
//!
//! # fn main() -> Result<(), Failure> {
//! let fake = FakeDevice::builder(DeviceType::Cuda)
//!     .devices(2)
//!     .capacity(4 << 20)
//!     .build();
//!
//! Conformance::new(&fake).max_size(1 << 16).run()?;
//!
//! fake.assert_clean();
//! # Ok(())
//! # }
//! ```
//!
//! What it can not see: that bytes which the host can read are initialized
//! (promise 5) is only seen under a memory checker, which the suite helps by
//! reading all of them; and that work on the device itself sees a copy
//! (promise 6) needs a kernel.
//!
//! It asks for blocks that no device has room for. Address sanitizers stop the
//! process at such a request unless told not to
//! (`ASAN_OPTIONS=allocator_may_return_null=1`).

mod block;
mod placement;
mod refusals;
mod report;
mod suite;
mod threads;
mod transfers;

use crate::allocator::DeviceAllocator;
use crate::device::DeviceIndex;

pub use report::{Failure, Promise, Report};

use suite::Suite;

/// How many devices are used unless said which.
const DEVICES: u16 = 8;

/// Runs the whole suite on an allocator, without options.
///
/// # Errors
///
/// - [`Failure`]: the first promise that was found broken.
pub fn run(allocator: &dyn DeviceAllocator) -> Result<Report, Failure> {
    Conformance::new(allocator).run()
}

/// A run of the suite and its options.
///
/// All blocks that a run allocates are given back before it returns, also when
/// it fails.
#[derive(Clone, Debug)]
pub struct Conformance<'a> {
    allocator: &'a dyn DeviceAllocator,
    options: Options,
}

#[derive(Clone, Debug)]
struct Options {
    indices: Option<Vec<DeviceIndex>>,
    max_size: usize,
    max_align: usize,
    refusable_align: Option<usize>,
    threads: usize,
    shared: bool,
}

impl<'a> Conformance<'a> {
    /// Starts with the options that suit most allocators.
    #[must_use]
    pub fn new(allocator: &'a dyn DeviceAllocator) -> Self {
        Self {
            allocator,
            options: Options {
                indices: None,
                max_size: 1 << 21,
                max_align: 1 << 20,
                refusable_align: None,
                threads: 8,
                shared: false,
            },
        }
    }

    /// Which devices to use, instead of the first eight.
    #[must_use]
    pub fn devices(mut self, indices: impl IntoIterator<Item = DeviceIndex>) -> Self {
        self.options.indices = Some(indices.into_iter().collect());
        self
    }

    /// The size of the largest block: 2 MiB unless said otherwise, at least 8 KiB.
    ///
    /// A device needs room for three of these and 1 MiB, and if it pads for
    /// alignment, for four of the largest one.
    #[must_use]
    pub fn max_size(mut self, bytes: usize) -> Self {
        self.options.max_size = bytes.max(1 << 13);
        self
    }

    /// The largest alignment: 1 MiB unless said otherwise.
    #[must_use]
    pub fn max_align(mut self, bytes: usize) -> Self {
        self.options.max_align = bytes;
        self
    }

    /// Accepts that alignments above `bytes` are refused as
    /// [`NotSupported`](crate::ErrorKind::NotSupported).
    #[must_use]
    pub fn may_refuse_alignments_above(mut self, bytes: usize) -> Self {
        self.options.refusable_align = Some(bytes);
        self
    }

    /// How many threads use the allocator at once: 8 unless said otherwise. For 0
    /// and 1, nothing is checked across threads.
    #[must_use]
    pub fn threads(mut self, count: usize) -> Self {
        self.options.threads = count;
        self
    }

    /// Accepts that free memory is not what it was before, because others use
    /// the devices as well or the driver keeps some.
    #[must_use]
    pub fn shared_devices(mut self, shared: bool) -> Self {
        self.options.shared = shared;
        self
    }

    /// Runs the suite.
    ///
    /// # Errors
    ///
    /// - [`Failure`]: the first promise that was found broken.
    pub fn run(&self) -> Result<Report, Failure> {
        let count = self.allocator.device_count();
        let first = u16::try_from(count).unwrap_or(u16::MAX).min(DEVICES);
        let indices = match &self.options.indices {
            Some(indices) => indices.clone(),
            None => (0..first).collect(),
        };
        let suite = Suite::new(self.allocator, &self.options);

        suite.check_type()?;
        refusals::indices(&suite)?;
        for &index in &indices {
            let free = suite.memory_info(index)?;
            transfers::completion(&suite, index)?;
            placement::alignments(&suite, index)?;
            placement::sizes(&suite, index)?;
            placement::many(&suite, index)?;
            transfers::offsets(&suite, index)?;
            transfers::fills(&suite, index)?;
            transfers::between(&suite, index, index)?;
            transfers::host_access(&suite, index)?;
            refusals::impossible(&suite, index)?;
            suite.check_maintenance(index)?;
            suite.check_returned(index, free)?;
            suite.check_type()?;
        }
        for &from in &indices {
            for &to in indices.iter().filter(|&&to| to != from) {
                transfers::between(&suite, from, to)?;
            }
        }
        if self.options.threads > 1 && !indices.is_empty() {
            threads::check(&suite, &indices)?;
            suite.check_type()?;
        }
        Ok(suite.report(&indices))
    }
}
