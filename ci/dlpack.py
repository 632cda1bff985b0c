"""Tensors to NumPy and back, through the C library of examples/dlpack_library.rs."""

import ctypes
import gc
import sys

import numpy

library = ctypes.CDLL(sys.argv[1])
for name in ("dm_export", "dm_export_read_only"):
    getattr(library, name).restype = ctypes.c_void_p
library.dm_alive.restype = ctypes.c_size_t
library.dm_import.restype = ctypes.c_int64
library.dm_import.argtypes = [ctypes.c_void_p]

python = ctypes.pythonapi
python.PyCapsule_New.restype = ctypes.py_object
python.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
python.PyCapsule_GetPointer.restype = ctypes.c_void_p
python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
python.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
NEW, USED = b"dltensor_versioned", b"used_dltensor_versioned"


class Producer:
    """What numpy.from_dlpack asks for."""

    def __init__(self, pointer):
        self.pointer = pointer

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **_):
        return python.PyCapsule_New(self.pointer, NEW, None)


def give(export):
    return numpy.from_dlpack(Producer(export()))


array = give(library.dm_export)
assert array.dtype == numpy.float32 and array.shape == (2, 3), array
assert array.strides == (4, 8) and array.tolist() == [[0, 1, 2], [3, 4, 5]], array
assert library.dm_alive() == 1
array[1, 2] = 50
part = array[1]
del array
gc.collect()
assert library.dm_alive() == 1 and part.tolist() == [3, 4, 50], "a view keeps it alive"
del part
gc.collect()
assert library.dm_alive() == 0
print("to NumPy: values, strides, writing, one deleter call")

array = give(library.dm_export_read_only)
assert not array.flags.writeable
try:
    array[0, 0] = 1
except ValueError as error:
    print("read-only to NumPy:", error)
else:
    sys.exit("a read-only tensor was written")
del array
gc.collect()
assert library.dm_alive() == 0


def take(array):
    capsule = array.__dlpack__(max_version=(1, 0))
    pointer = python.PyCapsule_GetPointer(capsule, NEW)
    python.PyCapsule_SetName(capsule, USED)
    return library.dm_import(pointer)


array = numpy.arange(100, dtype=numpy.uint8).reshape(10, 10)
before = sys.getrefcount(array)
assert take(array) == 4950
assert sys.getrefcount(array) == before + 1, "the array is kept alive"
library.dm_release()
assert sys.getrefcount(array) == before, "and released once"
assert take(array.T) == 4950, "column-major order is dense"
library.dm_release()
assert take(array[::2]) == -1, "gaps are refused"
assert sys.getrefcount(array) == before
print("from NumPy: values, one deleter call, refusal of gaps")
print("NumPy", numpy.__version__)
