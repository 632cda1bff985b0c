#!/usr/bin/env python3
"""Allocating and freeing device memory through PyTorch's and CuPy's allocators.

The sizes are those of `benches/gpu.rs`, and so is the way to measure: the median
of batches, in nanoseconds for one allocation and its free. It is printed as JSON,
one object a line. The times include what Python itself takes, which is why a loop
that makes no device memory is measured too. What can not be imported, or sees no
GPU, is skipped.
"""

import json
import statistics
import sys
import time

SIZES = (1 << 10, 64 << 10, 1 << 20, 64 << 20)
BATCHES = 25
TARGET = 2e-3


def batch(once, finish, count):
    """The seconds that `count` times `once` and then `finish` take."""
    begin = time.perf_counter()
    for _ in range(count):
        once()
    finish()
    return time.perf_counter() - begin


def median_ns(once, finish):
    """The median nanoseconds of one call of `once`."""
    batch(once, finish, 3)
    guess = batch(once, finish, 3) / 3
    count = max(1, min(2000, int(TARGET / max(guess, 1e-9))))
    samples = [batch(once, finish, count) / count for _ in range(BATCHES)]
    return statistics.median(samples) * 1e9


def report(library, version, allocator, size, once, finish):
    line = {
        "bench": "allocate and free",
        "library": library,
        "version": version,
        "case": allocator,
        "size": size,
        "median_ns": median_ns(once, finish),
        "includes_python": True,
    }
    print(json.dumps(line), flush=True)


def measure_python():
    report("python", sys.version.split()[0], "bytes of the host", 0, lambda: bytes(16), lambda: None)


def measure_torch(torch):
    for size in SIZES:

        def once():
            block = torch.empty(size, dtype=torch.uint8, device="cuda")
            del block

        report("torch", torch.__version__, "caching allocator", size, once, torch.cuda.synchronize)
    torch.cuda.empty_cache()


def measure_cupy(cupy):
    pool = cupy.cuda.MemoryPool()
    stream = cupy.cuda.get_current_stream()
    for size in SIZES:

        def once():
            block = pool.malloc(size)
            del block

        report("cupy", cupy.__version__, "memory pool", size, once, stream.synchronize)
    pool.free_all_blocks()


def torch_has_gpu(torch):
    return torch.cuda.is_available()


def cupy_has_gpu(cupy):
    return cupy.cuda.runtime.getDeviceCount() > 0


def main():
    seen = False
    for name, has_gpu, measure in (
        ("torch", torch_has_gpu, measure_torch),
        ("cupy", cupy_has_gpu, measure_cupy),
    ):
        try:
            library = __import__(name)
        except Exception as error:  # Broken installations raise all kinds.
            print(f"skipped: {name} can not be imported: {error}")
            continue
        try:
            found = has_gpu(library)
        except Exception as error:
            print(f"skipped: {name} sees no GPU: {error}")
            continue
        if not found:
            print(f"skipped: {name} sees no GPU")
            continue
        if not seen:
            measure_python()
            seen = True
        measure(library)


if __name__ == "__main__":
    main()
