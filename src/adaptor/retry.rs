//! Asking the program to make room.
//!
//! Rank 4. Imports `allocator` and the words.

use std::fmt;

use crate::address::DevicePtr;
use crate::allocator::{DeviceAllocator, forward, guarded};
use crate::device::{Device, DeviceIndex};
use crate::error::{Attempt, Error, Operation, OutOfMemory, Result};
use crate::layout::DeviceLayout;
use crate::make_room::{self, is_making_room};

/// An allocator that asks the program to make room when there is none, and then
/// tries again.
///
/// The hook is told what is missing and says whether it freed anything. It runs on
/// the thread that asked for memory, under no lock, and may allocate and free,
/// through this allocator too, and wait for other threads that do: what it asks for
/// itself, on its own thread, does not call hooks again. One that panics freed nothing.
/// It is called no more often than said for one allocation.
///
/// Costs nothing where there is room; with the feature `tracing`, a note for the layers
/// below, whose want of room is no warning then.
///
/// # Examples
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use device_memory::adaptor::{Limit, Retry};
/// use device_memory::{DeviceLayout, DeviceMemoryBuffer, HostAllocator};
///
/// let cache: Arc<Mutex<Vec<DeviceMemoryBuffer>>> = Arc::default();
/// let evicted = cache.clone();
/// let hook = move |_: &_| evicted.lock().unwrap().pop().is_some();
/// let allocator = Arc::new(Retry::over(Limit::over(HostAllocator, 100), hook));
///
/// let layout = DeviceLayout::from_size(60)?;
/// let cached = DeviceMemoryBuffer::create_with(allocator.clone(), layout, 0)?;
/// cache.lock().unwrap().push(cached);
///
/// assert!(DeviceMemoryBuffer::create_with(allocator, layout, 0).is_ok());
/// # Ok::<(), device_memory::Error>(())
/// ```
pub struct Retry<A> {
    upstream: A,
    hook: Box<Hook>,
    calls: usize,
}

/// What makes room.
type Hook = dyn Fn(&OutOfMemory) -> bool + Send + Sync;

impl<A> Retry<A> {
    /// Calls `hook` when `upstream` is out of memory, up to eight times for one
    /// allocation, for as long as it returns that it freed something.
    #[must_use]
    pub fn over(upstream: A, hook: impl Fn(&OutOfMemory) -> bool + Send + Sync + 'static) -> Self {
        Self {
            upstream,
            hook: Box::new(hook),
            calls: make_room::CALLS,
        }
    }

    /// How often the hook is called for one allocation at most.
    #[must_use]
    pub fn max_calls(mut self, calls: usize) -> Self {
        self.calls = calls;
        self
    }

    /// The allocator inside.
    #[must_use]
    pub fn inner(&self) -> &A {
        &self.upstream
    }
}

impl<A: DeviceAllocator> Retry<A> {
    #[cold]
    fn try_again(
        &self,
        layout: DeviceLayout,
        index: DeviceIndex,
        mut error: Error,
    ) -> Result<DevicePtr> {
        let device = Device::new(self.upstream.device_type(), index);
        let mut asked = false;
        if !is_making_room() {
            for _ in 0..self.calls {
                asked = true;
                let report = error.out_of_memory();
                if !report.is_some_and(|report| make_room::make_room(&self.hook, report)) {
                    break;
                }
                let again = guarded(device, Operation::Allocate, || {
                    make_room::attempt(|| self.upstream.allocate(layout, index))
                });
                match again {
                    Err(next) if next.is_out_of_memory() => error = next,
                    other => return other,
                }
            }
        }
        let error = error.explained(|report| {
            if asked && !report.tried.contains(&Attempt::Hook) {
                report.tried.push(Attempt::Hook);
            }
        });
        Err(make_room::given_up(error))
    }
}

// SAFETY: the promises are those of the allocator inside, whose blocks are handed
// out as they are and given back as they came. A failed allocation that is tried
// again changed nothing (7); what the hook does is what the program does.
#[expect(unsafe_code, reason = "implements an unsafe trait")]
unsafe impl<A: DeviceAllocator> DeviceAllocator for Retry<A> {
    forward!(self => self.upstream; identity, upstream, copies, memory_info, synchronize, trim);

    #[inline]
    fn allocate(&self, layout: DeviceLayout, index: DeviceIndex) -> Result<DevicePtr> {
        match make_room::attempt(|| self.upstream.allocate(layout, index)) {
            Err(error) if error.is_out_of_memory() => self.try_again(layout, index, error),
            other => other,
        }
    }

    #[inline]
    unsafe fn deallocate(
        &self,
        ptr: DevicePtr,
        layout: DeviceLayout,
        index: DeviceIndex,
    ) -> Result<()> {
        // SAFETY: the caller's promises are the same; `ptr` came from the allocator
        // inside.
        unsafe { self.upstream.deallocate(ptr, layout, index) }
    }
}

impl<A: fmt::Debug> fmt::Debug for Retry<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut retry = f.debug_struct("Retry");
        retry.field("upstream", &self.upstream);
        retry
            .field("max_calls", &self.calls)
            .finish_non_exhaustive()
    }
}
