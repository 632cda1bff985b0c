//! What a forked child may do with the driver of its parent: nothing.

#![expect(unsafe_code, reason = "fork is a C function")]

use std::num::NonZeroUsize;
use std::process::Command;
use std::sync::Arc;

use device_memory::ErrorKind;
use device_memory::backend::cuda::{
    BorrowedCudaSlice, CudaAllocator, StagedUploader, transfer_scope, upload,
};

use crate::support::Rig;

#[test]
fn a_forked_child_is_refused_and_calls_nothing() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([
        "--exact",
        "forked::fork_and_try",
        "--ignored",
        "--test-threads=1",
    ]);

    let output = command.output().unwrap();

    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    assert!(text.contains("1 passed"), "{text}");
}

#[test]
#[ignore = "forks; run by the test above in a process of its own"]
fn fork_and_try() {
    let rig = Rig::new();
    let mut buffer = rig.device(4);
    let (given, freed) = (rig.device(4), rig.device(4));
    let transfer = upload(&rig.stream, rig.pinned(&[1; 4]), rig.device(4)).unwrap();
    // Each owns the last handle of a stream of its own.
    let own = [(); 3].map(|()| rig.context.new_stream().unwrap());
    let [first, second, third] = own;
    let adopted = rig.cuda.adopt(first.alloc_zeros::<u8>(4).unwrap()).unwrap();
    let other = upload(&second, rig.pinned(&[1; 4]), rig.device(4)).unwrap();
    let pieces = StagedUploader::new(&third, Arc::clone(&rig.host), NonZeroUsize::MIN).unwrap();
    drop((first, second, third));
    // SAFETY: there is nothing to keep in order.
    let lent = unsafe { BorrowedCudaSlice::<u8>::new(given.as_span(), &rig.stream) }.unwrap();
    let calls = rig.fake.total_calls();

    // SAFETY: the child only does what is tested, and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let forked = |kind: &ErrorKind| matches!(kind, ErrorKind::ForkedProcess { .. });
        let scope = transfer_scope(&rig.stream, |scope| {
            scope.copy_to_device(buffer.as_span_mut(), &[1; 4])
        });
        let freed = rig.cuda.free_on(freed, &rig.stream).unwrap_err();
        drop(lent);
        let given = CudaAllocator::into_cuda_slice::<u8>(given, &rig.stream).unwrap_err();
        let waited = transfer.wait().unwrap_err();
        let refused = [scope.unwrap_err(), freed.error, given.error, waited.error];
        let all = refused.iter().all(|error| forked(error.kind()));
        drop((freed.buffer, given.buffer, waited.buffers));
        drop((adopted, other, pieces));
        let quiet = rig.fake.total_calls() == calls;
        // SAFETY: nothing of the child is to be kept.
        unsafe { libc::_exit(i32::from(!(all && quiet))) };
    }
    let mut status = 0;
    // SAFETY: the child was just made, and the status is a variable of ours.
    unsafe { libc::waitpid(child, &raw mut status, 0) };

    assert_eq!(status, 0);
    drop(lent);
    transfer.wait().unwrap();
    rig.check();
}
