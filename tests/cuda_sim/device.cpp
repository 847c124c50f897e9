// DeviceType::CUDA with the memory and the kernels of the CPU, in a build of torch without CUDA.
//
// The device, its memory, its random generator and its hooks. What operators do on it is in
// operators.cpp. Nothing here is ever destroyed: tensors may outlive every static of this library.
#include "device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstring>
#include <map>
#include <mutex>

namespace simulated_cuda {

std::atomic<int64_t> allocated{0}, peak{0};

namespace {

constexpr size_t kHeader = 64;  // holds the size, and keeps what follows aligned

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    auto* block = static_cast<char*>(c10::GetCPUAllocator()->raw_allocate(size + kHeader));
    *reinterpret_cast<int64_t*>(block) = static_cast<int64_t>(size);
    int64_t now = allocated += static_cast<int64_t>(size), before = peak;
    while (before < now && !peak.compare_exchange_weak(before, now)) {}
    char* data = block + kHeader;
    std::memset(data, 0xff, size);  // NaNs, and ids out of range: what nobody wrote shows
    return {data, data, &release, kDevice};
  }
  static void release(void* data) {
    char* block = static_cast<char*>(data) - kHeader;
    allocated -= *reinterpret_cast<int64_t*>(block);
    c10::GetCPUAllocator()->raw_deallocate(block);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t size) const override {
    std::memcpy(to, from, size);
  }
};

// Of the host, of an address that the device may read while the host goes on.
struct Pinned final : c10::Allocator {
  static std::pair<std::mutex, std::map<const char*, size_t>>& blocks() {
    static auto* found = new std::pair<std::mutex, std::map<const char*, size_t>>;
    return *found;
  }
  static bool holds(const void* data) {
    auto& [mutex, sizes] = blocks();
    std::lock_guard<std::mutex> lock(mutex);
    auto next = sizes.upper_bound(static_cast<const char*>(data));
    return next != sizes.begin() && static_cast<const char*>(data) < std::prev(next)->first + std::prev(next)->second;
  }
  c10::DataPtr allocate(size_t size) override {
    auto* block = static_cast<char*>(c10::GetCPUAllocator()->raw_allocate(size + kHeader));
    std::memset(block, 0xff, size);
    auto& [mutex, sizes] = blocks();
    std::lock_guard<std::mutex> lock(mutex);
    sizes[block] = size + kHeader;
    return {block, block, &release, at::kCPU};
  }
  static void release(void* block) {
    auto& [mutex, sizes] = blocks();
    {
      std::lock_guard<std::mutex> lock(mutex);
      sizes.erase(static_cast<char*>(block));
    }
    c10::GetCPUAllocator()->raw_deallocate(block);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t size) const override {
    std::memcpy(to, from, size);
  }
};

// One stream, on which everything is done at once.
struct Guard final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, kDevice); }
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  c10::Stream getStream(c10::Device) const noexcept override { return stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(); }
  c10::Stream getNewStream(c10::Device, int) const override { return stream(); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return stream(); }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag)
      const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard);

// Draws of the device do not touch the CPU's generator, and the other way round.
struct Random final : at::CPUGeneratorImpl {
  explicit Random(uint64_t seed) : at::CPUGeneratorImpl(seed) { device_ = kDevice; }
};

}  // namespace

c10::Allocator& memory() {
  static auto* found = new Memory;
  return *found;
}

c10::Allocator& pinned_memory() {
  static auto* found = new Pinned;
  return *found;
}

bool pinned_memory_holds(const void* data) { return Pinned::holds(data); }

const at::Generator& generator() {
  static auto* found = new at::Generator(at::make_generator<Random>(42));
  return *found;
}

}  // namespace simulated_cuda

namespace at {

using simulated_cuda::kDevice;

struct SimulatedHooks final : CUDAHooksInterface {
  explicit SimulatedHooks(CUDAHooksArgs) {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  std::string showConfig() const override { return "simulated"; }
  void init() const override {}
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
  int getNumGPUs() const override { return 1; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  void deviceSynchronize(DeviceIndex) const override {}
  Device getDeviceFromPtr(void*) const override { return kDevice; }
  bool isPinnedPtr(const void* data) const override { return simulated_cuda::pinned_memory_holds(data); }
  Allocator* getPinnedMemoryAllocator() const override { return &simulated_cuda::pinned_memory(); }
  const Generator& getDefaultGenerator(DeviceIndex) const override {
    return simulated_cuda::generator();
  }
  Generator getNewGenerator(DeviceIndex) const override {
    return make_generator<simulated_cuda::Random>(default_rng_seed_val);
  }
};
C10_REGISTER_TYPED_CLASS(CUDAHooksRegistry, "CUDAHooks", SimulatedHooks)

}  // namespace at

// To be called once, before torch is imported.
extern "C" void start_simulated_cuda() {
  c10::SetAllocator(c10::DeviceType::CUDA, &simulated_cuda::memory());
  simulated_cuda::register_operators();
}
