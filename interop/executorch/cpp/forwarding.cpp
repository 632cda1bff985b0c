// Device allocators for the runtime's registry that pass every call on to Rust
// (`src/forward.rs`), one for each type of device.

#include <cstddef>
#include <cstdint>

#include <executorch/runtime/core/device_allocator.h>

namespace et = executorch::runtime;

extern "C" {
// Returns an error code of the runtime, and the address through `out` if it is Ok.
std::uint32_t interop_allocate(
    std::int8_t type,
    std::size_t size,
    std::int8_t index,
    std::size_t align,
    void** out);
void interop_deallocate(std::int8_t type, void* ptr, std::int8_t index);
std::uint32_t interop_copy_host_to_device(
    std::int8_t type,
    void* dst,
    const void* src,
    std::size_t size,
    std::int8_t index);
std::uint32_t interop_copy_device_to_host(
    std::int8_t type,
    void* dst,
    const void* src,
    std::size_t size,
    std::int8_t index);
}

namespace {

class Forwarding final : public et::DeviceAllocator {
 public:
  explicit Forwarding(et::etensor::DeviceType type) : type_(type) {}

  et::Result<void*> allocate(
      std::size_t nbytes,
      et::etensor::DeviceIndex index,
      std::size_t alignment) override {
    void* ptr = nullptr;
    const auto code =
        interop_allocate(static_cast<std::int8_t>(type_), nbytes, index, alignment, &ptr);
    if (code != 0) {
      return static_cast<et::Error>(code);
    }
    return ptr;
  }

  void deallocate(void* ptr, et::etensor::DeviceIndex index) override {
    interop_deallocate(static_cast<std::int8_t>(type_), ptr, index);
  }

  et::Error copy_host_to_device(
      void* dst,
      const void* src,
      std::size_t nbytes,
      et::etensor::DeviceIndex index) override {
    return static_cast<et::Error>(interop_copy_host_to_device(
        static_cast<std::int8_t>(type_), dst, src, nbytes, index));
  }

  et::Error copy_device_to_host(
      void* dst,
      const void* src,
      std::size_t nbytes,
      et::etensor::DeviceIndex index) override {
    return static_cast<et::Error>(interop_copy_device_to_host(
        static_cast<std::int8_t>(type_), dst, src, nbytes, index));
  }

  et::etensor::DeviceType device_type() const override {
    return type_;
  }

 private:
  et::etensor::DeviceType type_;
};

} // namespace

// Registers the allocator of a type. Twice for one type ends the process: that is
// what the runtime does.
extern "C" void interop_register(std::int8_t type) {
  static Forwarding cpu(et::etensor::DeviceType::CPU);
  static Forwarding cuda(et::etensor::DeviceType::CUDA);
  et::register_device_allocator(type == 0 ? &cpu : &cuda);
}

// Registers no allocator at all, which ends the process.
extern "C" void interop_register_null() {
  et::register_device_allocator(nullptr);
}

extern "C" bool interop_is_registered(std::int8_t type) {
  return et::get_device_allocator(static_cast<et::etensor::DeviceType>(type)) != nullptr;
}
