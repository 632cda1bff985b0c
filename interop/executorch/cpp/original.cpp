// The runtime's own owner of device memory and its own offset arithmetic, as C
// functions for `src/original.rs`.

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

#include <executorch/runtime/core/device_memory_buffer.h>
#include <executorch/runtime/core/hierarchical_allocator.h>

namespace et = executorch::runtime;
using Buffer = et::DeviceMemoryBuffer;

extern "C" {

Buffer* original_buffer_empty() {
  return new Buffer();
}

// Returns null, and the error code through `code`, if it fails.
Buffer* original_buffer_create(
    std::size_t size,
    std::int8_t type,
    std::int8_t index,
    std::size_t align,
    std::uint32_t* code) {
  auto result =
      Buffer::create(size, static_cast<et::etensor::DeviceType>(type), index, align);
  *code = static_cast<std::uint32_t>(result.error());
  if (!result.ok()) {
    return nullptr;
  }
  return new Buffer(std::move(result.get()));
}

void original_buffer_destroy(Buffer* buffer) {
  delete buffer;
}

void* original_buffer_data(const Buffer* buffer) {
  return buffer->data();
}

std::size_t original_buffer_size(const Buffer* buffer) {
  return buffer->size();
}

// A new buffer that has what `from` had; `from` is empty then.
Buffer* original_buffer_take(Buffer* from) {
  return new Buffer(std::move(*from));
}

void original_buffer_assign(Buffer* to, Buffer* from) {
  *to = std::move(*from);
}

struct Planned {
  std::vector<et::Span<std::uint8_t>> buffers;
  std::vector<et::etensor::Device> devices;
  et::HierarchicalAllocator allocator;

  Planned(
      std::vector<et::Span<std::uint8_t>> the_buffers,
      std::vector<et::etensor::Device> the_devices)
      : buffers(std::move(the_buffers)),
        devices(std::move(the_devices)),
        allocator({buffers.data(), buffers.size()}, {devices.data(), devices.size()}) {}
};

// Ends the process if there are not as many devices as buffers.
Planned* original_planned_create(
    const std::size_t* addresses,
    const std::size_t* sizes,
    std::size_t buffer_count,
    std::size_t device_count) {
  std::vector<et::Span<std::uint8_t>> buffers;
  for (std::size_t i = 0; i < buffer_count; ++i) {
    buffers.emplace_back(reinterpret_cast<std::uint8_t*>(addresses[i]), sizes[i]);
  }
  std::vector<et::etensor::Device> devices(
      device_count, et::etensor::Device(et::etensor::DeviceType::CUDA, 0));
  return new Planned(std::move(buffers), std::move(devices));
}

void original_planned_destroy(Planned* planned) {
  delete planned;
}

std::uint32_t original_planned_address(
    Planned* planned,
    std::uint32_t memory_id,
    std::size_t offset,
    std::size_t size,
    std::size_t* out) {
  auto result = planned->allocator.get_offset_address(memory_id, offset, size);
  if (result.ok()) {
    *out = reinterpret_cast<std::size_t>(result.get());
  }
  return static_cast<std::uint32_t>(result.error());
}

std::size_t original_size_of_buffer() {
  return sizeof(Buffer);
}

std::size_t original_size_of_result() {
  return sizeof(et::Result<Buffer>);
}

std::size_t original_size_of_planned() {
  return sizeof(et::HierarchicalAllocator);
}

} // extern "C"
