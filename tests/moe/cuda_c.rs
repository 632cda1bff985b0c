//! The kernels of `kernels.cu`, compiled for the host and run thread by thread.
//!
//! That shows what they compute and that no thread waits for another's result. It
//! shows nothing of a GPU.

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use device_memory::testing::FakeDevice;
use device_memory::{DeviceSpan, DeviceSpanMut, Result};
use libloading::Library;

use crate::constants::Constants;
use crate::device::{Accelerator, Blocks};
use crate::kernel::{Kernel, spread};
use crate::rig::{CACHE, MODELS, Rig};
use crate::setup::Crossing;

/// What CUDA C has and C++ has not, and how one kernel is called: with pointers to
/// its arguments, as a driver does it.
const PRELUDE: &str = r"
#include <cmath>
#include <utility>
#define __device__ static
#define __global__
static struct { long long x; } threadIdx;
";
const CALLS: &str = r"
template <class... A, std::size_t... I>
static void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
  kernel(*static_cast<A*>(arguments[I])...);
}
template <class... A>
static void each(void (*kernel)(A...), void** arguments, bool backwards) {
  for (long long i = 0; i < THREADS; i++) {
    threadIdx.x = backwards ? THREADS - 1 - i : i;
    call(kernel, arguments, std::index_sequence_for<A...>());
  }
}
";

type Run = unsafe extern "C" fn(*mut *mut c_void, bool);

struct OnTheHost {
    fake: FakeDevice,
    library: Library,
    backwards: bool,
}

impl OnTheHost {
    /// Compiles, or says why not.
    #[expect(unsafe_code, reason = "loads a library")]
    #[expect(clippy::print_stderr, reason = "who runs the tests has to see it")]
    fn new(rig: &Rig, folder: &Path) -> Option<Self> {
        let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/moe/kernels.cu");
        let mut text = format!("{PRELUDE}#include {kernels:?}\n{CALLS}");
        let names: BTreeSet<_> = rig.ready.model.kernels.values().map(Kernel::name).collect();
        for name in names {
            writeln!(
                text,
                "extern \"C\" __attribute__((visibility(\"default\"))) void run_{name}\
                 (void** arguments, bool backwards) {{ each({name}, arguments, backwards); }}"
            )
            .unwrap();
        }
        let (source, library) = (folder.join("kernels.cpp"), folder.join("kernels.so"));
        std::fs::write(&source, text).unwrap();
        let mut compiler = Command::new("c++");
        compiler.args([
            "-std=c++17",
            "-O1",
            "-shared",
            "-fPIC",
            "-fvisibility=hidden",
        ]);
        match compiler.arg(&source).arg("-o").arg(&library).status() {
            Ok(status) => assert!(status.success(), "kernels.cu is no C++"),
            Err(error) => {
                eprintln!("skipped: kernels.cu on the host: c++: {error}");
                return None;
            }
        }
        Some(Self {
            fake: rig.fake.clone(),
            // SAFETY: nothing runs when it is loaded.
            library: unsafe { Library::new(library) }.unwrap(),
            backwards: false,
        })
    }

    #[expect(unsafe_code, reason = "calls a kernel")]
    fn call(&self, name: &str, arguments: &mut [*mut c_void]) {
        // SAFETY: all functions of this form of name are of this type.
        let run = unsafe { self.library.get::<Run>(format!("run_{name}")) }.unwrap();
        // SAFETY: the arguments are those of the kernel: the numbers are wrong if not.
        unsafe { run(arguments.as_mut_ptr(), self.backwards) };
    }
}

/// Memory that is aligned for what kernels read.
fn aligned(bytes: &[u8]) -> Vec<u64> {
    let words = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_ne_bytes(word)
    });
    words.collect()
}

fn bytes(words: &[u64], len: usize) -> Vec<u8> {
    let bytes = words.iter().flat_map(|word| word.to_ne_bytes());
    bytes.take(len).collect()
}

impl Accelerator for OnTheHost {
    fn launch(
        &self,
        kernel: &Kernel,
        reads: &[DeviceSpan<'_>],
        writes: &mut [DeviceSpanMut<'_>],
        blocks: &Blocks,
    ) -> Result<()> {
        self.fake.launch(0, reads, writes, |reads, writes| {
            let sizes = |all: &[Vec<u8>]| all.iter().map(Vec::len).collect::<Vec<_>>();
            let mut constants = Constants::new(kernel, &sizes(reads), &sizes(writes));
            let mut memory: Vec<Vec<u64>> = reads.iter().map(|bytes| aligned(bytes)).collect();
            if kernel.reads_blocks() {
                let inputs = reads.len() - blocks.numbers.len();
                memory.truncate(inputs);
                memory.push(aligned(&spread(&reads[inputs..], &blocks.numbers)));
            }
            let first = memory.len();
            if kernel.writes_block() {
                memory.push(aligned(&spread(writes, &blocks.numbers)));
            } else {
                memory.extend(writes.iter().map(|bytes| aligned(bytes)));
            }

            let mut pointers: Vec<*mut u64> =
                memory.iter_mut().map(|words| words.as_mut_ptr()).collect();
            let pointers = pointers.iter_mut().map(|to| std::ptr::from_mut(to).cast());
            let longs = constants.longs.iter_mut();
            let longs = longs.map(|to| std::ptr::from_mut(to).cast());
            let floats = constants.floats.iter_mut();
            let floats = floats.map(|to| std::ptr::from_mut(to).cast());
            let mut arguments: Vec<*mut c_void> = pointers.chain(longs).chain(floats).collect();
            self.call(kernel.name(), &mut arguments);

            for (number, out) in writes.iter_mut().enumerate() {
                let words = &memory[first + number];
                let start = match blocks.numbers.first() {
                    Some(block) if kernel.writes_block() => block * out.len(),
                    _ => 0,
                };
                *out = bytes(words, start + out.len()).split_off(start);
            }
        })
    }
}

#[test]
fn the_kernels_in_cuda_c_give_the_numbers_of_the_reference_in_any_order_of_threads() {
    for model in MODELS {
        let rig = Rig::new(model, 1, CACHE, Crossing::TokenOnly);
        let folder = tempfile::tempdir().unwrap();
        let Some(mut host) = OnTheHost::new(&rig, folder.path()) else {
            return;
        };

        for backwards in [false, true] {
            host.backwards = backwards;
            let apart = rig.reference.check(&rig.engine_on(&host));

            assert!(apart.as_ref().is_ok_and(|&apart| apart < 2e-4), "{apart:?}");
        }
        rig.end();
    }
}
