//! The bytes of a block of device memory, which lie where no device address does.
//!
//! A byte is kept as its difference (xor) from the poison of fresh memory, so
//! that zero pages from the system are poison already and a block of terabytes
//! costs nothing until it is written.

use super::code::{Code, Done};

/// What fresh device memory reads as.
pub(super) const FRESH: u8 = 0xCD;

/// What freed memory reads as.
pub(super) const FREED: u8 = 0xDB;

/// From this size on, bytes are mapped without a promise of memory behind them.
const MAPPED_FROM: usize = 1 << 20;

/// The bytes of one block.
#[derive(Debug)]
pub(super) enum Bytes {
    Small(Vec<u8>),
    Mapped(Mapping),
}

/// Pages of zeros from the system, committed when they are written.
#[derive(Debug)]
pub(super) struct Mapping {
    /// # Invariants
    ///
    /// 0. `ptr` is the start of a private, writable mapping of `len` bytes, which
    ///    only this value knows of, or `guard` bytes more that can not be accessed.
    ptr: *mut u8,
    len: usize,
    guard: usize,
}

// SAFETY: the mapping is owned (invariant 0), like the bytes of a `Vec`.
unsafe impl Send for Mapping {}

impl Bytes {
    /// `len` bytes of poison.
    pub(super) fn new(len: usize) -> Done<Self> {
        if len < MAPPED_FROM {
            Ok(Self::Small(vec![0; len]))
        } else {
            Mapping::new(len, 0).map(Self::Mapped)
        }
    }

    /// Copies bytes out; the caller has checked the bounds.
    pub(super) fn read(&self, offset: usize, out: &mut [u8]) {
        let Some(kept) = self.as_slice().get(offset..offset + out.len()) else {
            return;
        };
        for (out, kept) in out.iter_mut().zip(kept) {
            *out = kept ^ FRESH;
        }
    }

    /// Copies bytes in; the caller has checked the bounds.
    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) {
        let Some(kept) = self.as_mut_slice().get_mut(offset..offset + bytes.len()) else {
            return;
        };
        for (kept, byte) in kept.iter_mut().zip(bytes) {
            *kept = byte ^ FRESH;
        }
    }

    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Small(bytes) => bytes,
            Self::Mapped(mapping) => mapping.as_slice(),
        }
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        match self {
            Self::Small(bytes) => bytes,
            Self::Mapped(mapping) => mapping.as_mut_slice(),
        }
    }
}

impl Mapping {
    /// Maps `len` bytes, and `guard` bytes after them that fault.
    pub(super) fn new(len: usize, guard: usize) -> Done<Self> {
        let all = len.checked_add(guard).ok_or(Code::OUT_OF_MEMORY)?;
        // SAFETY: a private mapping of fresh addresses touches no memory of
        // this program.
        let ptr = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                all,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if ptr == libc::MAP_FAILED {
            return Err(Code::OUT_OF_MEMORY);
        }
        let mapping = Self {
            ptr: ptr.cast(),
            len,
            guard,
        };
        if guard != 0 {
            // SAFETY: `len + guard` bytes are mapped, so this is the one past
            // `len` bytes, inside.
            let after = unsafe { mapping.ptr.add(len) };
            // SAFETY: the pages are those mapped above, and nothing refers to
            // them.
            unsafe { libc::mprotect(after.cast(), guard, libc::PROT_NONE) };
        }
        Ok(mapping)
    }

    pub(super) fn addr(&self) -> u64 {
        self.ptr.addr() as u64
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        // SAFETY: `len` readable bytes are mapped at `ptr` (invariant 0), and
        // they are shared for as long as `self` is.
        unsafe { std::slice::from_raw_parts(self.ptr, self.len) }
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: `len` writable bytes are mapped at `ptr` (invariant 0), and
        // they are exclusive for as long as `self` is.
        unsafe { std::slice::from_raw_parts_mut(self.ptr, self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: these are the pages of `new` (invariant 0), unmapped once.
        unsafe { libc::munmap(self.ptr.cast(), self.len + self.guard) };
    }
}
