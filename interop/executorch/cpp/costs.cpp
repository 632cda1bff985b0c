// The runtime's operations, many times, for `benches/costs.rs`.

#include <array>
#include <cstddef>
#include <cstdint>

#include <executorch/runtime/core/device_memory_buffer.h>
#include <executorch/runtime/core/hierarchical_allocator.h>

namespace et = executorch::runtime;
using et::etensor::DeviceType;

namespace {

// An allocator that always returns the same address, and does nothing else.
class StaticAddress final : public et::DeviceAllocator {
 public:
  et::Result<void*> allocate(std::size_t, et::etensor::DeviceIndex, std::size_t) override {
    return reinterpret_cast<void*>(0x100000);
  }
  void deallocate(void*, et::etensor::DeviceIndex) override {}
  et::Error copy_host_to_device(void*, const void*, std::size_t, et::etensor::DeviceIndex)
      override {
    return et::Error::Ok;
  }
  et::Error copy_device_to_host(void*, const void*, std::size_t, et::etensor::DeviceIndex)
      override {
    return et::Error::Ok;
  }
  DeviceType device_type() const override {
    return DeviceType::CUDA;
  }
};

// Hides a value from the optimizer.
template <typename T>
T hidden(T value) {
  asm volatile("" : "+r"(value) : : "memory");
  return value;
}

// Lets the optimizer think that a value is looked at.
template <typename T>
void looked_at(const T& value) {
  asm volatile("" : : "r"(&value) : "memory");
}

// Asks for `offset` of the third of four arenas.
inline void offsets(std::uint64_t count, std::size_t offset) {
  std::array<et::Span<std::uint8_t>, 4> buffers;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    buffers[i] = {reinterpret_cast<std::uint8_t*>(0x100000), (i + 1) * 1024};
  }
  et::HierarchicalAllocator planned({buffers.data(), buffers.size()});
  // The compiler could work the answer out, if it saw what is in it.
  auto* allocator = hidden(&planned);
  for (std::uint64_t i = 0; i < count; ++i) {
    looked_at(allocator->get_offset_address(2, hidden(offset), 256));
  }
}

} // namespace

extern "C" {

void costs_register() {
  static StaticAddress allocator;
  et::register_device_allocator(&allocator);
}

void costs_nothing(std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    looked_at(hidden<std::size_t>(1024));
  }
}

void costs_registry_lookup(std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    looked_at(et::get_device_allocator(hidden(DeviceType::CUDA)));
  }
}

void costs_create_destroy(std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    looked_at(et::DeviceMemoryBuffer::create(hidden<std::size_t>(1024), DeviceType::CUDA, 0));
  }
}

void costs_offset(std::uint64_t count) {
  offsets(count, 64);
}

void costs_offset_refused(std::uint64_t count) {
  offsets(count, 1 << 20);
}

} // extern "C"
