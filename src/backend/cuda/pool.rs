//! What a pool of the driver holds.
//!
//! Rank 4. Part of `backend::cuda`.

use cudarc::driver::sys::{CUmemPool_attribute, CUmemoryPool};

use super::driver;
use super::status::Outcome;

/// Gives all unused memory of a pool back to the driver, and returns how many
/// bytes that were.
pub(super) fn trim(pool: CUmemoryPool) -> Outcome<usize> {
    let before = reserved(pool)?;
    give_back(pool)?;
    let freed = before.saturating_sub(reserved(pool)?);
    Ok(usize::try_from(freed).unwrap_or(usize::MAX))
}

#[expect(unsafe_code, reason = "calls the driver")]
fn give_back(pool: CUmemoryPool) -> Outcome<()> {
    // SAFETY: the pool is alive, as its device is.
    unsafe { driver::pool_trim(pool, 0) }
}

/// The bytes that a pool holds, used or not.
#[expect(unsafe_code, reason = "calls the driver")]
fn reserved(pool: CUmemoryPool) -> Outcome<u64> {
    let which = CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
    // SAFETY: the pool is alive, as its device is; the attribute has 64 bits.
    unsafe { driver::pool_get(pool, which) }
}
