// What the Rust binding of the runtime's Module does not offer.

#include <cstddef>
#include <cstdint>
#include <limits>

#include <executorch/extension/module/module.h>

using executorch::runtime::EValue;
using executorch::runtime::etensor::ScalarType;
using executorch::runtime::etensor::Tensor;
using executorch::runtime::etensor::TensorImpl;

// Lets an output for which no memory is planned lie in the `size` bytes at `data`.
// Loads the method if it is not. Returns an error code of the runtime.
extern "C" std::uint32_t interop_set_output(
    executorch::extension::Module* module,
    const char* name,
    std::size_t index,
    void* data,
    std::size_t size) {
  if (size > std::numeric_limits<TensorImpl::SizesType>::max()) {
    return static_cast<std::uint32_t>(executorch::runtime::Error::InvalidArgument);
  }
  // The runtime takes no more from it than the address and the number of bytes.
  TensorImpl::SizesType sizes[] = {static_cast<TensorImpl::SizesType>(size)};
  TensorImpl::DimOrderType dim_order[] = {0};
  TensorImpl::StridesType strides[] = {1};
  TensorImpl bytes(ScalarType::Byte, 1, sizes, data, dim_order, strides);
  return static_cast<std::uint32_t>(module->set_output(name, EValue(Tensor(&bytes)), index));
}
