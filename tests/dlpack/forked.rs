//! Tensors in a child of the process that they were made in.

#![expect(unsafe_code, reason = "forks")]

use std::sync::atomic::Ordering;

use device_memory::DeviceMemoryBuffer;
use device_memory::DeviceType;
use device_memory::dlpack::ExportedTensor;

use crate::support::Foreign;

/// Runs `child` in a forked process, and returns its exit status.
fn in_child(child: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child calls nothing but what is tested, and ends itself.
    match unsafe { libc::fork() } {
        0 => {
            let code = i32::from(!child());
            // SAFETY: ends the process.
            unsafe { libc::_exit(code) }
        }
        pid => {
            let mut status = 0;
            // SAFETY: waits for our child.
            unsafe { libc::waitpid(pid, &mut status, 0) };
            status
        }
    }
}

#[test]
fn a_child_neither_reads_nor_deletes_what_its_parent_took() {
    let (imported, deleted) = Foreign::new().import();
    let mut imported = Some(imported.unwrap());

    let status = in_child(|| {
        let imported = imported.take().unwrap();
        let refused = imported.view().unwrap().to_vec().unwrap_err();
        drop(imported);
        refused.is_forked_process() && deleted.load(Ordering::Relaxed) == 0
    });

    assert_eq!(status, 0);
    drop(imported);
    assert_eq!(deleted.load(Ordering::Relaxed), 1);
}

#[test]
fn a_child_exports_nothing_of_its_parent() {
    let buffer = DeviceMemoryBuffer::create(8, DeviceType::Cpu, 0).unwrap();
    let mut buffer = Some(buffer);

    let status = in_child(|| {
        let refused = ExportedTensor::from_buffer(buffer.take().unwrap()).map(drop);
        refused.unwrap_err().is_forked_process()
    });

    assert_eq!(status, 0);
}
