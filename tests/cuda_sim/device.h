#pragma once

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>

#include <atomic>

namespace simulated_cuda {

const c10::Device kDevice(c10::DeviceType::CUDA, 0);

c10::Allocator& memory();
const at::Generator& generator();
extern std::atomic<int64_t> allocated, peak;  // bytes

// Gives an operator of the device the kernel of the CPU.
void register_operators();

// What the kernels of CUDA refuse and those of the CPU take; raises. Arguments are still those of
// the device.
void check_restrictions(const std::string& name, c10::ArrayRef<c10::IValue> arguments);

// Whether the kernel of CUDA waits for the device before it returns.
bool waits(const std::string& name, c10::ArrayRef<c10::IValue> arguments);

}  // namespace simulated_cuda
