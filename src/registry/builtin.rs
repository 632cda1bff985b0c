//! The back ends that need no registration.
//!
//! Rank 5. Part of `registry`.

#[cfg(feature = "cuda")]
use std::sync::Arc;

use once_cell::sync::OnceCell;

use crate::allocator::AllocatorHandle;
#[cfg(feature = "cuda")]
use crate::allocator::DeviceAllocator;
#[cfg(feature = "cuda")]
use crate::backend::cuda;
use crate::backend::host::HostAllocator;
use crate::device::DeviceType;
use crate::error::{ErrorKind, Result};

/// A back end that is opened when it is first asked for.
///
/// A failure is returned and forgotten, so that a later call tries again.
struct Builtin {
    open: fn() -> Result<AllocatorHandle>,
    opened: OnceCell<AllocatorHandle>,
}

impl Builtin {
    const fn new(open: fn() -> Result<AllocatorHandle>) -> Self {
        Self {
            open,
            opened: OnceCell::new(),
        }
    }

    fn get(&self) -> Result<&AllocatorHandle> {
        self.opened.get_or_try_init(self.open)
    }
}

/// The back end of the crate's own for `device_type`.
#[cold]
pub(super) fn open(device_type: DeviceType) -> Result<&'static AllocatorHandle> {
    static HOST: Builtin = Builtin::new(|| Ok(AllocatorHandle::from(&HostAllocator)));
    #[cfg(feature = "cuda")]
    static CUDA: Builtin = Builtin::new(|| forever(cuda::CudaAllocator::open()));
    #[cfg(feature = "cuda")]
    static CUDA_HOST: Builtin = Builtin::new(|| forever(cuda::CudaHostAllocator::open()));
    #[cfg(feature = "cuda")]
    static CUDA_MANAGED: Builtin = Builtin::new(|| forever(cuda::CudaManagedAllocator::open()));
    match device_type {
        DeviceType::Cpu => HOST.get(),
        #[cfg(feature = "cuda")]
        DeviceType::Cuda => CUDA.get(),
        #[cfg(feature = "cuda")]
        DeviceType::CudaHost => CUDA_HOST.get(),
        #[cfg(feature = "cuda")]
        DeviceType::CudaManaged => CUDA_MANAGED.get(),
        _ => Err(ErrorKind::NotRegistered { device_type }.into()),
    }
}

/// A handle, that is never counted, of what was opened.
#[cfg(feature = "cuda")]
fn forever<A: DeviceAllocator + 'static>(opened: Result<A>) -> Result<AllocatorHandle> {
    opened.map(|allocator| AllocatorHandle::from(Arc::new(allocator)).into_forever())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_failed_open_is_an_error_and_may_be_retried() {
        static ATTEMPTS: AtomicUsize = AtomicUsize::new(0);
        static FLAKY: Builtin = Builtin::new(|| match ATTEMPTS.fetch_add(1, Ordering::Relaxed) {
            0 => Err(ErrorKind::NotRegistered {
                device_type: DeviceType::Cuda,
            }
            .into()),
            _ => Ok(AllocatorHandle::from(&HostAllocator)),
        });

        let first = FLAKY.get();
        let second = FLAKY.get();
        let third = FLAKY.get();

        assert!(first.is_err());
        assert!(second.is_ok() && third.is_ok());
        assert_eq!(ATTEMPTS.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn threads_that_race_open_it_once() {
        static OPENED: AtomicUsize = AtomicUsize::new(0);
        static SLOW: Builtin = Builtin::new(|| {
            OPENED.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(std::time::Duration::from_millis(10));
            Ok(AllocatorHandle::from(&HostAllocator))
        });

        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| SLOW.get().unwrap());
            }
        });

        assert_eq!(OPENED.load(Ordering::Relaxed), 1);
    }
}
