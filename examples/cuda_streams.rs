//! Every entry point of the CUDA back end that takes a stream, on drivers that can
//! not be used: too old, failing at any call, shut down.
//!
//! A stream is cudarc's, which makes none without a driver; so there is one here, a
//! simulation. Run it with a profile in which a panic aborts: it ends well only if
//! none of this panics. The test `cuda_absent` does so.
//!
//! ```sh
//! cargo run --profile abort --example cuda_streams
//! ```

use std::io::Write as _;

#[cfg(all(feature = "cuda", target_os = "linux"))]
mod walk {
    use std::num::NonZeroUsize;
    use std::sync::Arc;

    use device_memory::backend::cuda::cudarc::driver::{CudaContext, CudaStream};
    use device_memory::backend::cuda::{
        CudaAllocator, CudaHostAllocator, StagedUploader, download, lend, lend_mut, transfer_scope,
        upload,
    };
    use device_memory::{DeviceLayout, DeviceMemoryBuffer, DeviceType, Error, ErrorKind, Result};
    use fakecuda::FakeCuda;

    /// Calls that cudarc makes itself to make events, and panics if they fail. That
    /// they work is looked at before, but they may fail the next time; see `lend`.
    const CUDARCS: [&str; 2] = ["cuEventCreate", "cuCtxGetCurrent"];

    /// What can be asked for without memory of the driver's, with its outcome.
    fn without_memory(stream: &Arc<CudaStream>) -> Result<Vec<(&'static str, Option<Error>)>> {
        let host = |size| DeviceMemoryBuffer::create(size, DeviceType::Cpu, 0);
        let piece = NonZeroUsize::MIN;
        let staging = Arc::new(device_memory::HostAllocator);
        let (mut one, mut two, mut bytes) = (host(4)?, host(4)?, [0; 4]);
        Ok(vec![
            ("transfer_scope", transfer_scope(stream, |_| Ok(())).err()),
            (
                "upload",
                upload(stream, host(4)?, host(4)?).err().map(|e| e.error),
            ),
            (
                "download",
                download(stream, host(4)?, host(4)?).err().map(|e| e.error),
            ),
            ("new", StagedUploader::new(stream, staging, piece).err()),
            (
                "copies",
                transfer_scope(stream, |scope| {
                    scope.copy_to_device(one.as_span_mut(), &[1; 4])?;
                    scope.copy_to_host(&mut bytes, two.as_span())
                })
                .err(),
            ),
            (
                "lend",
                lend::<u8, _>(two.as_span(), stream, |slice| slice.len()).err(),
            ),
            (
                "lend_mut",
                lend_mut::<u8, _>(two.as_span_mut(), stream, |_| ()).err(),
            ),
            (
                "record_use",
                CudaAllocator::record_use(two.as_span(), stream).err(),
            ),
            (
                "into_cuda_slice",
                CudaAllocator::into_cuda_slice::<u8>(host(4)?, stream)
                    .err()
                    .map(|e| e.error),
            ),
        ])
    }

    /// Everything, with memory of the driver's, with or without what cudarc makes
    /// events for.
    fn with_memory(stream: &Arc<CudaStream>, loans: bool) -> Result<()> {
        let cuda = CudaAllocator::open()?;
        let pinned = Arc::new(CudaHostAllocator::open()?);
        let layout = DeviceLayout::from_size(4)?;
        let on_stream = Arc::new(cuda.on_stream(stream)?);
        let device = || DeviceMemoryBuffer::create_with(Arc::clone(&on_stream), layout, 0);
        let host = || DeviceMemoryBuffer::create_with(Arc::clone(&pinned), layout, 0);
        let (mut first, mut second, source) = (device()?, device()?, host()?);
        let mut back = [0; 4];
        transfer_scope(stream, |scope| {
            scope.copy_to_device(first.as_span_mut(), source.as_slice()?)
        })?;
        transfer_scope(stream, |scope| {
            scope.copy_device_to_device(second.as_span_mut(), first.as_span())
        })?;
        transfer_scope(stream, |scope| {
            scope.copy_to_host(&mut back, second.as_span())
        })?;
        let (source, first) = upload(stream, source, first)?.wait()?;
        let (_source, mut first) = download(stream, source, first)?.wait()?;
        let mut uploader = StagedUploader::new(stream, pinned, NonZeroUsize::MIN)?;
        uploader.upload(first.as_span_mut(), [1_u8; 4].as_slice(), |_, _| {})?;
        CudaAllocator::record_use(first.as_span(), stream)?;
        if loans {
            lend::<u8, _>(first.as_span(), stream, |slice| slice.len())?;
            lend_mut::<u8, _>(first.as_span_mut(), stream, |_| ())?;
            let slice = CudaAllocator::into_cuda_slice::<u8>(first, stream)?;
            drop(cuda.adopt(slice)?);
        }
        cuda.free_on(second, stream)?;
        Ok(())
    }

    fn text(error: impl ToString) -> String {
        error.to_string()
    }

    /// Tries everything.
    pub(super) fn everywhere() -> Result<(), String> {
        let fake = FakeCuda::install().map_err(text)?.lock();
        let context = CudaContext::new(0).map_err(|error| format!("{}", error.0 as u32))?;
        let stream = context
            .new_stream()
            .map_err(|error| format!("{}", error.0 as u32))?;

        fake.set_driver_version(11_000);
        for (what, error) in without_memory(&stream).map_err(text)? {
            let error = error.ok_or_else(|| format!("{what} found a driver"))?;
            if !matches!(error.kind(), ErrorKind::DriverTooOld { .. }) {
                return Err(format!("{what}: {error:?}"));
            }
        }
        fake.set_driver_version(13_040);
        with_memory(&stream, true).map_err(text)?;

        for call in fake.exports() {
            let loans = !CUDARCS.contains(&call.as_str());
            // None that breaks a context for good, which would end the walk.
            for code in [1, 2, 201, 709, 999] {
                for nth in 1.. {
                    let before = fake.fired();
                    fake.fail(&call, nth, code);
                    let _ = with_memory(&stream, loans);
                    fake.disarm();
                    if fake.fired() == before {
                        break;
                    }
                }
            }
        }
        fake.set_shut_down(true);
        match with_memory(&stream, true) {
            Err(error) if error.is_shut_down() => Ok(()),
            other => Err(format!("{other:?}")),
        }
    }
}

#[cfg(not(all(feature = "cuda", target_os = "linux")))]
mod walk {
    pub(super) fn everywhere() -> Result<(), String> {
        Ok(())
    }
}

fn main() -> Result<(), String> {
    walk::everywhere()?;
    let told = writeln!(std::io::stdout(), "done");
    told.map_err(|error| error.to_string())
}
