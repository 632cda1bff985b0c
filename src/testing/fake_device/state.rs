//! What all clones of a fake device share.
//!
//! Rank 8. Part of `testing::fake_device`. Imports the words, `allocator` and
//! `process`.
//!
//! Every call is checked in full before anything is done, under one lock.

use std::backtrace::Backtrace;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::addresses::{Place, Slots};
use super::calls::Call;
use super::memory::{Memory, Spot};
use super::queue::{Source, Work};
use super::violations::{Misuse, Violation};
use crate::address::DevicePtr;
use crate::allocator::MemoryInfo;
use crate::device::{Device, DeviceIndex, DeviceType};
use crate::error::{Error, ErrorKind, OutOfMemory, Result};
use crate::layout::DeviceLayout;
use crate::process::ProcessGeneration;

/// What a fake is; it never changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Config {
    pub(super) device_type: DeviceType,
    pub(super) device_count: usize,
    pub(super) capacity: Option<usize>,
    pub(super) delayed: bool,
    pub(super) reuse: bool,
    pub(super) slots: Slots,
    pub(super) generation: ProcessGeneration,
}

/// A fake: what it is, and what happened to it.
pub(super) struct Shared {
    pub(super) config: Config,
    state: Mutex<State>,
}

/// What happened to a fake.
pub(super) struct State {
    pub(super) devices: Vec<Memory>,
    pub(super) calls: Vec<Call>,
    pub(super) violations: Vec<Violation>,
    pub(super) sequence: u64,
    pub(super) allocations: u64,
    pub(super) deallocations: u64,
    pub(super) peak_bytes: usize,
    pub(super) shut_down: bool,
}

/// Why a call is not done.
pub(super) enum Refusal {
    /// The caller broke a promise.
    Misuse(Box<Misuse>),
    /// The device can not.
    Error(Error),
}

impl From<Misuse> for Refusal {
    fn from(misuse: Misuse) -> Self {
        Self::Misuse(Box::new(misuse))
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl Shared {
    pub(super) fn new(config: Config) -> Self {
        let devices = (0..config.device_count)
            .map(|device| Memory::new(config.slots.base(device)))
            .collect();
        Self {
            config,
            state: Mutex::new(State {
                devices,
                calls: Vec::new(),
                violations: Vec::new(),
                sequence: 0,
                allocations: 0,
                deallocations: 0,
                peak_bytes: 0,
                shut_down: false,
            }),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, State>> {
        self.state.try_lock()
    }

    pub(super) fn device(&self, index: DeviceIndex) -> Device {
        Device::new(self.config.device_type, index)
    }

    /// Does a call: numbers it, does `act`, and records what came of it.
    pub(super) fn perform<T>(
        &self,
        mut call: Call,
        act: impl FnOnce(&mut State, &Config, &mut Call) -> Result<T, Refusal>,
    ) -> Result<T> {
        let device = self.device(call.index);
        if !self.config.generation.is_current() {
            // In the child the lock may be held by a thread that is not there.
            if let Some(mut state) = self.state.try_lock() {
                state.record(call);
            }
            return Err(ErrorKind::ForkedProcess { device }.into());
        }
        let mut state = self.lock();
        call.sequence = state.sequence.saturating_add(1);
        let outcome = act(&mut state, &self.config, &mut call);
        call.succeeded = outcome.is_ok();
        state.record(call);
        outcome.map_err(|refusal| match refusal {
            Refusal::Error(error) => error,
            Refusal::Misuse(misuse) => {
                let error = match *misuse {
                    Misuse::InvalidIndex { count, .. } => {
                        Some(ErrorKind::InvalidDevice { device, count }.into())
                    }
                    _ => None,
                };
                let violation = Violation {
                    call: call.sequence,
                    operation: call.operation,
                    device,
                    misuse: *misuse,
                    backtrace: Arc::new(Backtrace::capture()),
                };
                state.violations.push(violation.clone());
                error.unwrap_or_else(|| Error::backend(device, call.operation, violation))
            }
        })
    }
}

impl Config {
    /// Checks an index that a caller may ask about.
    pub(super) fn check_index(&self, index: DeviceIndex) -> Result<usize, Error> {
        let count = self.device_count;
        let device = Device::new(self.device_type, index);
        if usize::from(index) < count {
            Ok(usize::from(index))
        } else {
            Err(ErrorKind::InvalidDevice { device, count }.into())
        }
    }
}

impl State {
    fn record(&mut self, mut call: Call) {
        self.sequence = self.sequence.saturating_add(1);
        call.sequence = self.sequence;
        self.calls.push(call);
    }

    /// All bytes of live blocks.
    pub(super) fn live_bytes(&self) -> usize {
        let bytes = self.devices.iter().map(|memory| memory.in_use);
        bytes.fold(0, usize::saturating_add)
    }

    /// The memory of a device that exists.
    fn memory(&mut self, device: usize) -> Result<&mut Memory, Misuse> {
        let count = self.devices.len();
        self.devices
            .get_mut(device)
            .ok_or_else(|| Misuse::InvalidIndex {
                index: DeviceIndex::try_from(device).unwrap_or(DeviceIndex::MAX),
                count,
            })
    }

    /// Refuses all work once the driver is gone.
    pub(super) fn check_up(&self, config: &Config, index: DeviceIndex) -> Result<(), Error> {
        if self.shut_down {
            let device = Device::new(config.device_type, index);
            return Err(ErrorKind::ShutDown { device }.into());
        }
        Ok(())
    }

    pub(super) fn allocate(
        &mut self,
        config: &Config,
        call: &mut Call,
        layout: DeviceLayout,
    ) -> Result<DevicePtr, Refusal> {
        let device = config.check_index(call.index)?;
        if layout.is_empty() {
            return Err(Misuse::Empty.into());
        }
        self.check_up(config, call.index)?;
        let memory = self.memory(device)?;
        let free = config
            .capacity
            .map(|capacity| capacity.saturating_sub(memory.in_use));
        let fits = free.is_none_or(|free| layout.size() <= free);
        let ptr = match fits {
            true => memory.insert(layout, config.reuse, call.sequence),
            false => None,
        };
        let Some(ptr) = ptr else {
            let device = Device::new(config.device_type, call.index);
            let mut report = OutOfMemory::new(device, layout);
            report.in_use = Some(memory.in_use);
            report.limit = config.capacity;
            report.device_free = free;
            report.device_total = config.capacity;
            report.largest_free = free;
            return Err(Error::from(report).into());
        };
        call.ptr = Some(ptr);
        self.allocations = self.allocations.saturating_add(1);
        self.peak_bytes = self.peak_bytes.max(self.live_bytes());
        Ok(ptr)
    }

    pub(super) fn deallocate(
        &mut self,
        config: &Config,
        call: &Call,
        ptr: DevicePtr,
        layout: DeviceLayout,
    ) -> Result<(), Refusal> {
        let device = self.owner(config, ptr, call.index)?;
        let memory = self.memory(device)?;
        let expected = memory.block(ptr)?.layout;
        if expected != layout {
            return Err(Misuse::WrongLayout {
                ptr,
                expected,
                found: layout,
            }
            .into());
        }
        memory.remove(ptr, call.sequence, &Arc::new(Backtrace::capture()));
        self.check_up(config, call.index)?;
        self.deallocations = self.deallocations.saturating_add(1);
        Ok(())
    }

    /// The device that `ptr` is on, which must be `index`.
    fn owner(
        &mut self,
        config: &Config,
        ptr: DevicePtr,
        index: DeviceIndex,
    ) -> Result<usize, Misuse> {
        let count = config.device_count;
        if usize::from(index) >= count {
            return Err(Misuse::InvalidIndex { index, count });
        }
        match config.slots.locate(ptr.addr()) {
            Place::Device(device) if device == usize::from(index) => Ok(device),
            Place::Device(device) => {
                // An address on another device that is in no block there is
                // nobody's.
                self.memory(device)?.spot(ptr, 1)?;
                let owner = DeviceIndex::try_from(device).unwrap_or(DeviceIndex::MAX);
                let expected = Device::new(config.device_type, owner);
                Err(Misuse::WrongDevice {
                    ptr,
                    expected,
                    index,
                })
            }
            Place::OtherFake => Err(Misuse::Foreign { ptr }),
            Place::Host => Err(Misuse::HostAddress { addr: ptr.addr() }),
        }
    }

    /// The device and the block of a range, which must be on `index`.
    pub(super) fn range(
        &mut self,
        config: &Config,
        ptr: DevicePtr,
        size: usize,
        index: DeviceIndex,
    ) -> Result<(usize, Spot), Misuse> {
        if size == 0 {
            return Err(Misuse::Empty);
        }
        let device = self.owner(config, ptr, index)?;
        let spot = self.memory(device)?.spot(ptr, size)?;
        Ok((device, spot))
    }

    /// Gives work to a device: for later if the fake is delayed, else now.
    pub(super) fn submit(
        &mut self,
        config: &Config,
        device: usize,
        dst: Spot,
        source: Source,
    ) -> Result<(), Misuse> {
        let memory = self.memory(device)?;
        let work = Work { dst, source };
        if config.delayed {
            memory.queue.push(work, &mut memory.blocks);
        } else {
            work.run(&mut memory.blocks);
        }
        Ok(())
    }

    /// Does all work that changes or reads the block, and lends its device.
    pub(super) fn settled(&mut self, device: usize, spot: Spot) -> Result<&mut Memory, Misuse> {
        let memory = self.memory(device)?;
        memory.queue.settle(spot.block, &mut memory.blocks);
        Ok(memory)
    }

    /// Does all work of a device.
    pub(super) fn finish(&mut self, device: usize) -> Result<(), Misuse> {
        let memory = self.memory(device)?;
        memory.queue.finish(&mut memory.blocks);
        Ok(())
    }

    pub(super) fn memory_info(
        &mut self,
        config: &Config,
        device: usize,
    ) -> Result<Option<MemoryInfo>, Misuse> {
        let in_use = self.memory(device)?.in_use;
        Ok(config.capacity.map(|total| MemoryInfo {
            free: total.saturating_sub(in_use),
            total,
        }))
    }
}
