// Operators of the simulated device. Its tensors become tensors of the CPU with the same memory, the
// kernel of the CPU runs, and what it makes becomes tensors of the device.
#include "device.h"

#include <ATen/EmptyTensor.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/native/Resize.h>
#include <c10/core/CPUAllocator.h>
#include <ATen/ops/_reshape_alias_cpu_dispatch.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/unfold_cpu_dispatch.h>
#include <ATen/ops/view_cpu_dispatch.h>
#include <torch/library.h>

#include <set>

namespace simulated_cuda {
namespace {

using at::Tensor;
using c10::IValue;
using Sizes = at::IntArrayRef;

std::atomic<int64_t> sync_debug_mode{0};  // as torch.cuda.set_sync_debug_mode says

void note_wait(const std::string& what) {
  TORCH_CHECK(sync_debug_mode != 2, "called a synchronizing CUDA operation: ", what);
  if (sync_debug_mode == 1) TORCH_WARN("called a synchronizing CUDA operation: ", what);
}

// --- one memory, two devices ----------------------------------------------------------------------

Tensor dense_on_cpu(const Tensor& t) {
  const auto& own = t.storage();
  auto hold = [](void* held) { delete static_cast<Tensor*>(held); };
  c10::DataPtr data(t.unsafeGetTensorImpl()->storage().mutable_data(), new Tensor(t), hold, at::kCPU);
  c10::Storage storage(
      c10::Storage::use_byte_size_t(), own.nbytes(), std::move(data), c10::GetCPUAllocator(), true);
  auto out = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), t.dtype());
  out.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  return out;
}

Tensor csr_with(const Tensor& t, Tensor (*moved)(const Tensor&), c10::DispatchKey key, c10::Device device) {
  auto* from = at::sparse_csr::get_sparse_csr_impl(t);
  auto out = at::detail::make_tensor<at::SparseCsrTensorImpl>(
      c10::DispatchKeySet(key), device, t.layout(), t.dtype());
  at::sparse_csr::get_sparse_csr_impl(out)->set_member_tensors(
      moved(from->compressed_indices()), moved(from->plain_indices()), moved(from->values()), t.sizes());
  return out;
}

Tensor on_cpu(const Tensor& t) {
  if (!t.defined() || !t.is_cuda()) return t;
  if (t.layout() == at::kSparseCsr) return csr_with(t, &on_cpu, c10::DispatchKey::SparseCsrCPU, at::kCPU);
  return dense_on_cpu(t);
}

Tensor on_device(const Tensor& t) {
  if (!t.defined() || !t.is_cpu()) return t;
  if (t.layout() == at::kSparseCsr) return csr_with(t, &on_device, c10::DispatchKey::SparseCsrCUDA, kDevice);
  if (t.layout() != at::kStrided) return t;
  Tensor out = at::detail::empty_strided_generic(
      t.sizes(), t.strides(), &memory(), c10::DispatchKeySet(c10::DispatchKey::CUDA), t.scalar_type());
  dense_on_cpu(out).copy_(t);
  return out;
}

void grow(const c10::Storage& storage, size_t size) {
  if (storage.nbytes() >= size) return;
  auto* impl = storage.unsafeGetStorageImpl();
  auto fresh = memory().allocate(size);
  if (impl->nbytes()) std::memcpy(fresh.get(), impl->data(), impl->nbytes());
  impl->set_data_ptr_noswap(std::move(fresh));
  impl->set_nbytes(size);
}

// The tensors in a value, each replaced by what `change` makes of it.
template <class Change>
IValue changed(const IValue& value, Change change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isTensorList()) {
    auto list = value.toTensorVector();
    for (auto& t : list) t = change(t);
    return c10::List<Tensor>(list);
  }
  if (value.isOptionalTensorList()) {
    auto list = value.toOptionalTensorList().copy();
    for (size_t i = 0; i < list.size(); i++) {
      std::optional<Tensor> t = list[i];
      if (t.has_value()) list.set(i, change(*t));
    }
    return list;
  }
  return value;
}

// --- any operator ---------------------------------------------------------------------------------

// The CPU draws what the device would: it has the state of the device's generator meanwhile.
class Drawing {
 public:
  explicit Drawing(const at::Generator& of_device)
      : of_device_(of_device), before_(cpu_.get_state()) {
    cpu_.set_state(of_device_.get_state());
  }
  ~Drawing() {
    of_device_.set_state(cpu_.get_state());
    cpu_.set_state(before_);
  }

 private:
  at::Generator of_device_, cpu_ = at::detail::getDefaultCPUGenerator();
  Tensor before_;
};

// Index tensors of these may be on the CPU; they are copied, which waits.
bool takes_indices_of_cpu(const std::string& name) {
  static const std::set<std::string> names = {
      "aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"};
  return names.count(name) > 0;
}

void run_kernel_of_cpu(
    const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto& name = schema.name();
  const auto first = stack->size() - schema.arguments().size();
  const auto given = c10::ArrayRef<IValue>(*stack).slice(first);
  check_restrictions(name, given);
  if (waits(name, given)) note_wait(name);

  std::vector<std::pair<Tensor, Tensor>> both;  // on the device, on the CPU
  bool has_csr = false, has_stranger = false;
  std::optional<at::Generator> draws_from;
  if (op.hasTag(at::Tag::nondeterministic_seeded)) draws_from = generator();
  for (size_t i = first; i < stack->size(); i++) {
    auto& value = (*stack)[i];
    if (value.isDevice() && value.toDevice().is_cuda()) value = c10::Device(at::kCPU);
    if (value.isGenerator()) {
      draws_from = value.toGenerator();
      TORCH_CHECK(draws_from->device().is_cuda(), "Expected a 'cuda' device type for generator but found 'cpu'");
      value = IValue();
    }
    value = changed(value, [&](const Tensor& t) {
      if (!t.defined()) return t;
      if (!t.is_cuda()) {
        has_stranger |= t.dim() > 0;
        return t;
      }
      has_csr |= t.layout() == at::kSparseCsr;
      both.emplace_back(t, on_cpu(t));
      return both.back().second;
    });
  }
  if (has_stranger && !both.empty()) {
    TORCH_CHECK(takes_indices_of_cpu(name), "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! (", name, ")");
    note_wait(name + " by an index of the CPU");
  }
  {
    std::optional<Drawing> drawing;
    if (draws_from.has_value()) drawing.emplace(*draws_from);
    const auto key = has_csr ? c10::DispatchKey::SparseCsrCPU : c10::DispatchKey::CPU;
    op.redispatchBoxed(c10::DispatchKeySet(key), stack);
  }
  for (auto& [own, cpu] : both) {  // an out= of another size
    if (own.layout() != at::kStrided || cpu.sizes().equals(own.sizes())) continue;
    grow(own.storage(), at::detail::computeStorageNbytes(cpu.sizes(), cpu.strides(), cpu.dtype().itemsize()));
    own.unsafeGetTensorImpl()->set_sizes_and_strides(cpu.sizes(), cpu.strides());
    dense_on_cpu(own).copy_(cpu);
  }
  for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); i++) {
    (*stack)[i] = changed((*stack)[i], [&](const Tensor& t) {
      for (auto& [own, cpu] : both) if (cpu.is_same(t)) return own;
      return on_device(t);
    });
  }
}

// --- operators that make, copy or view memory --------------------------------------------------------

Tensor empty(Sizes size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(
      size, &memory(), c10::DispatchKeySet(c10::DispatchKey::CUDA), c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(Sizes size, Sizes stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(
      size, stride, &memory(), c10::DispatchKeySet(c10::DispatchKey::CUDA), c10::dtype_or_default(dtype));
}

Tensor& copy_(Tensor& self, const Tensor& from, bool non_blocking) {
  if (self.is_cuda() != from.is_cuda() && !non_blocking) note_wait("a copy between host and device");
  on_cpu(self).copy_(on_cpu(from), non_blocking);
  return self;
}

const Tensor& resize_(const Tensor& self, Sizes size, std::optional<at::MemoryFormat>) {
  grow(self.storage(), at::detail::computeStorageNbytesContiguous(size, self.dtype().itemsize(), self.storage_offset()));
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return self;
}

// Resize.cpp, resize_bytes_cuda: memory is taken, and what was there copied.
void resize_storage(c10::Storage storage, int64_t size) {
  auto* impl = storage.unsafeGetStorageImpl();
  TORCH_CHECK(impl->resizable(), "Trying to resize storage that is not resizable");
  if (size == 0) impl->set_data_ptr_noswap(c10::DataPtr(nullptr, kDevice));
  if (size > 0) {
    auto fresh = memory().allocate(size);
    if (impl->data()) std::memcpy(fresh.get(), impl->data(), std::min<size_t>(impl->nbytes(), size));
    impl->set_data_ptr_noswap(std::move(fresh));
  }
  impl->set_nbytes(size);
}

Tensor& set_tensor(Tensor& self, const Tensor& from) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(from.storage());
  self.unsafeGetTensorImpl()->set_sizes_and_strides(from.sizes(), from.strides(), from.storage_offset());
  return self;
}

Tensor& set_storage(Tensor& self, c10::Storage storage, int64_t offset, Sizes size, Sizes stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_storage_offset(offset);
  if (stride.size() == size.size()) impl->set_sizes_and_strides(size, stride, offset);
  else impl->set_sizes_contiguous(size);
  return self;
}

Tensor& set_all_of_storage(Tensor& self, c10::Storage storage) {
  const auto size = static_cast<int64_t>(storage.nbytes() / self.dtype().itemsize());
  return set_storage(self, std::move(storage), 0, {size}, {});
}

Tensor values_of_csr(const Tensor& self) { return at::sparse_csr::get_sparse_csr_impl(self)->values().alias(); }
Tensor rows_of_csr(const Tensor& self) { return at::sparse_csr::get_sparse_csr_impl(self)->compressed_indices().alias(); }
Tensor columns_of_csr(const Tensor& self) { return at::sparse_csr::get_sparse_csr_impl(self)->plain_indices().alias(); }

void record_stream(Tensor&, at::Stream) {}

// --- cells of recurrent networks, which have kernels on a GPU only ----------------------------------------

using MaybeTensor = std::optional<Tensor>;

std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input, const Tensor& hidden, const Tensor& cell, const MaybeTensor& input_bias, const MaybeTensor& hidden_bias) {
  auto gates = input + hidden;
  if (input_bias.has_value() && input_bias->defined()) gates = gates + *input_bias + *hidden_bias;
  auto parts = gates.chunk(4, 1);
  auto next = parts[1].sigmoid() * cell + parts[0].sigmoid() * parts[2].tanh();
  return {parts[3].sigmoid() * next.tanh(), next, gates.detach()};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& input, const Tensor& hidden, const Tensor& before, const MaybeTensor& input_bias, const MaybeTensor& hidden_bias) {
  const bool has_bias = input_bias.has_value() && input_bias->defined();
  auto of_input = (has_bias ? input + *input_bias : input).chunk(3, 1);
  auto of_hidden = (has_bias ? hidden + *hidden_bias : hidden).chunk(3, 1);
  auto reset = (of_input[0] + of_hidden[0]).sigmoid(), update = (of_input[1] + of_hidden[1]).sigmoid();
  auto fresh = (of_input[2] + reset * of_hidden[2]).tanh();
  return {fresh + update * (before - fresh), input.detach()};
}

// Never destroyed, like all of this library.
torch::Library& library(torch::Library::Kind kind, const char* space, std::optional<c10::DispatchKey> key) {
  return *new torch::Library(kind, space, key, __FILE__, __LINE__);
}

}  // namespace

void register_operators() {
  using c10::DispatchKey;
  for (auto key : {DispatchKey::CUDA, DispatchKey::SparseCsrCUDA})
    library(torch::Library::IMPL, "_", key).fallback(torch::CppFunction::makeFromBoxedFunction<&run_kernel_of_cpu>());

  auto& dense = library(torch::Library::IMPL, "aten", DispatchKey::CUDA);
  dense.impl("empty.memory_format", empty);
  dense.impl("empty_strided", empty_strided);
  dense.impl("copy_", copy_);
  dense.impl("resize_", resize_);
  dense.impl("as_strided", at::cpu::as_strided);
  dense.impl("view", static_cast<Tensor (*)(const Tensor&, Sizes)>(at::cpu::view));
  dense.impl("_reshape_alias", at::cpu::_reshape_alias);
  dense.impl("unfold", at::cpu::unfold);
  dense.impl("set_.source_Tensor", set_tensor);
  dense.impl("set_.source_Storage", set_all_of_storage);
  dense.impl("set_.source_Storage_storage_offset", set_storage);
  dense.impl("record_stream", record_stream);
  auto& sparse = library(torch::Library::IMPL, "aten", DispatchKey::SparseCsrCUDA);
  sparse.impl("values", values_of_csr);
  sparse.impl("crow_indices", rows_of_csr);
  sparse.impl("col_indices", columns_of_csr);
  for (auto key : {DispatchKey::CUDA, DispatchKey::AutogradCUDA}) {
    auto& cells = library(torch::Library::IMPL, "aten", key);
    cells.impl("_thnn_fused_lstm_cell", lstm_cell);
    cells.impl("_thnn_fused_gru_cell", gru_cell);
  }

  auto& own = library(torch::Library::DEF, "simulated_cuda", std::nullopt);
  own.def("generator() -> Generator?", [] { return generator(); });
  own.def("allocated() -> int", [] { return allocated.load(); });
  own.def("peak() -> int", [] { return peak.load(); });
  own.def("reset_peak() -> ()", [] { peak = allocated.load(); });
  own.def("set_sync_debug_mode(int mode) -> ()", [](int64_t mode) { sync_debug_mode = mode; });
  own.def("resize_storage(Storage storage, int size) -> ()", resize_storage);
  own.def("on_cpu(Tensor t) -> Tensor");
  library(torch::Library::IMPL, "simulated_cuda", DispatchKey::CUDA).impl("on_cpu", on_cpu);
}

}  // namespace simulated_cuda
