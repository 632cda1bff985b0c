//! Ranges of addresses that belong to devices.
//!
//! A range is reserved and never mapped: a host access to a device address ends
//! the process with a signal, as it should.

use super::code::{Code, Done};

/// Addresses that no one else in this process gets.
#[derive(Debug)]
pub(super) struct Range {
    base: u64,
    len: u64,
}

impl Range {
    /// Reserves `len` bytes of addresses, or as many as there are under tools
    /// that have fewer.
    pub(super) fn reserve(len: usize) -> Done<Self> {
        let mut len = len;
        loop {
            match Self::reserve_all(len) {
                Err(_) if len > 1 << 30 => len /= 2,
                done => return done,
            }
        }
    }

    fn reserve_all(len: usize) -> Done<Self> {
        // The system call and not the function of libc, which sanitizers wrap
        // and then keep books about the whole range.
        // SAFETY: a private mapping of fresh addresses touches no memory of
        // this program.
        let base = unsafe {
            libc::syscall(
                libc::SYS_mmap,
                std::ptr::null_mut::<u8>(),
                len,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1_i32,
                0_i64,
            )
        };
        match u64::try_from(base) {
            Ok(base) => Ok(Self {
                base,
                len: len as u64,
            }),
            Err(_) => Err(Code::OUT_OF_MEMORY),
        }
    }

    pub(super) fn base(&self) -> u64 {
        self.base
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn contains(&self, addr: u64) -> bool {
        addr.wrapping_sub(self.base) < self.len
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `reserve`, is unmapped here only, and
        // no memory was ever in it.
        unsafe {
            libc::syscall(libc::SYS_munmap, self.base, self.len);
        }
    }
}
