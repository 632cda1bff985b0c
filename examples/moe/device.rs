//! What runs the kernels: the device that the delegate is on.

use device_memory::testing::FakeDevice;
use device_memory::{DevicePtr, DeviceSpan, DeviceSpanMut, Result};

use crate::kernel::Kernel;

/// Which blocks of the pool a kernel is given: the last of what it reads, or what
/// it writes.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    /// Where the pool is.
    pub(crate) pool: DevicePtr,
    /// The number of each, in the order of the table.
    pub(crate) numbers: Vec<usize>,
}

/// Something that computes kernels over memory that is its own.
pub(crate) trait Accelerator {
    /// Computes one kernel. What is written over starts with the bytes it has.
    fn launch(
        &self,
        kernel: &Kernel,
        reads: &[DeviceSpan<'_>],
        writes: &mut [DeviceSpanMut<'_>],
        blocks: &Blocks,
    ) -> Result<()>;
}

/// The fake device computes on the host, over copies that no one counts: what is
/// simulated is where memory is and what crosses, not how fast.
impl Accelerator for FakeDevice {
    fn launch(
        &self,
        kernel: &Kernel,
        reads: &[DeviceSpan<'_>],
        writes: &mut [DeviceSpanMut<'_>],
        blocks: &Blocks,
    ) -> Result<()> {
        FakeDevice::launch(self, 0, reads, writes, |reads, writes| {
            kernel.run(reads, writes, &blocks.numbers)
        })
    }
}
