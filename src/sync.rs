//! Atomics and locks that can be modelled.
//!
//! Rank 0. Imports nothing from this crate.
//!
//! What is built of these is checked over all interleavings of its threads when
//! the tests are built with `--cfg loom`; everywhere else they are those of the
//! standard library and `parking_lot`.

#[cfg(not(all(loom, test)))]
pub(crate) use parking_lot::Mutex;
#[cfg(not(all(loom, test)))]
pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

#[cfg(all(loom, test))]
pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
#[cfg(all(loom, test))]
pub(crate) use modelled::Mutex;

#[cfg(all(loom, test))]
mod modelled {
    use loom::sync::{Mutex as Inner, MutexGuard};

    /// A lock with the face of that of `parking_lot`.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(Inner<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(Inner::new(value))
        }

        pub(crate) fn get_mut(&mut self) -> &mut T {
            self.0
                .get_mut()
                .expect("no thread panics in a model that holds")
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0
                .lock()
                .expect("no thread panics in a model that holds")
        }
    }
}
