// Where CUDA's kernels are not as those of the CPU. An entry here is a fault that tests on a CPU
// would not find: read in torch's sources, or met on a GPU.
#include "device.h"

#include <cmath>
#include <functional>
#include <map>

namespace simulated_cuda {
namespace {

using Arguments = c10::ArrayRef<c10::IValue>;

// Normalization.cu: "save_mean should always be defined", of rows that lie one after another.
void needs_statistics(Arguments given) {
  for (int i : {5, 6})
    TORCH_CHECK(
        given[i].isTensor() && given[i].toTensor().defined(),
        "save_mean and save_invstd should always be defined");
}

// Blas.cpp: cuBLAS multiplies floating point and complex numbers only.
void is_floating(Arguments given) {
  for (const auto& value : given)
    if (value.isTensor())
      TORCH_CHECK_NOT_IMPLEMENTED(
          !c10::isIntegralType(value.toTensor().scalar_type(), /*includeBool=*/true),
          "\"addmm_cuda\" not implemented for '", value.toTensor().scalar_type(), "'");
}

// cuSPARSE, met on an H100: no more entries than the matrix has places.
void fits(Arguments given) {
  for (const auto& value : given) {
    if (!value.isTensor() || value.toTensor().layout() != at::kSparseCsr) continue;
    const auto& t = value.toTensor();
    TORCH_CHECK(
        t._nnz() <= t.size(0) * t.size(1),
        "CUDA error: CUSPARSE_STATUS_INVALID_VALUE when calling cusparseCreateCsr");
  }
}

// Raises where torch.use_deterministic_algorithms(True) was said. Where CUDA takes a deterministic
// form then (index_add, scatter_add, index_put: TensorAdvancedIndexing.cpp, Indexing.cu) nothing is here.
void is_not_deterministic(const char* name) { at::globalContext().alertNotDeterministic(name); }

// ScanKernels.cpp
void sums_integers(Arguments given) {
  const auto type = given[0].toTensor().scalar_type();
  if (c10::isFloatingType(type) || c10::isComplexType(type)) is_not_deterministic("cumsum_cuda_kernel");
}

// ScatterGatherKernel.cu: products are atomic.
void makes_no_product(Arguments given) {
  if (given[4].toStringRef() == "prod") is_not_deterministic("scatter_reduce_cuda_prod_");
}

// SummaryOps.cu
void has_no_weights(Arguments given) {
  if (given[1].isTensor() && given[1].toTensor().defined()) is_not_deterministic("_bincount_cuda");
}

const std::map<std::string, std::function<void(Arguments)>>& restrictions() {
  static const auto* found = new std::map<std::string, std::function<void(Arguments)>>{
      {"aten::native_batch_norm_backward", needs_statistics},
      {"aten::sparse_sampled_addmm", fits},
      {"aten::cumsum", sums_integers},
      {"aten::cumsum_", sums_integers},
      {"aten::scatter_reduce", makes_no_product},
      {"aten::scatter_reduce_", makes_no_product},
      {"aten::bincount", has_no_weights},
      {"aten::mm", [](Arguments given) { is_floating(given), fits(given); }},
      {"aten::addmm", [](Arguments given) { is_floating(given), fits(given); }},
      {"aten::bmm", is_floating},
      {"aten::baddbmm", is_floating},
      {"aten::mv", is_floating},
      {"aten::addmv", is_floating},
      {"aten::dot", is_floating},
  };
  return *found;
}

// TensorCompare.cpp: of many it sorts those that are unique, and counts them for that.
bool is_sorted_by_isin(Arguments of) {
  if (!of[0].isTensor() || !of[1].isTensor() || of[2].toBool() || of[0].toTensor().numel() == 0) return false;
  return of[1].toTensor().numel() >= static_cast<int64_t>(10.0 * std::pow(of[0].toTensor().numel(), 0.145));
}

bool is_empty(const c10::IValue& value) { return value.toTensor().numel() == 0; }

// The places of a mask are counted first.
bool has_mask(Arguments given) {
  for (const auto& index : given[1].toOptionalTensorList()) {
    std::optional<at::Tensor> t = index;
    if (t.has_value() && t->defined() && (t->scalar_type() == at::kBool || t->scalar_type() == at::kByte))
      return true;
  }
  return false;
}

}  // namespace

void check_restrictions(const std::string& name, Arguments given) {
  const auto found = restrictions().find(name);
  if (found != restrictions().end()) found->second(given);
}

bool waits(const std::string& name, Arguments given) {
  static const auto* known = new std::map<std::string, std::function<bool(Arguments)>>{
      {"aten::_local_scalar_dense", nullptr},
      {"aten::is_nonzero", nullptr},
      {"aten::equal", nullptr},
      {"aten::nonzero", nullptr},
      {"aten::masked_select", nullptr},
      {"aten::histc", nullptr},
      {"aten::_unique", nullptr},
      {"aten::_unique2", nullptr},
      {"aten::unique_dim", nullptr},
      {"aten::unique_consecutive", nullptr},
      {"aten::unique_dim_consecutive", nullptr},
      {"aten::index", has_mask},
      {"aten::_index_put_impl_", has_mask},
      {"aten::isin", is_sorted_by_isin},
      // SummaryOps.cu looks for the largest, of any.
      {"aten::bincount", [](Arguments of) { return !is_empty(of[0]); }},
      // Repeat.cu asks for the size unless it is told.
      {"aten::repeat_interleave", [](Arguments of) { return of.size() < 2 || of[1].isNone(); }},
      // SegmentReduce.cpp looks for negative lengths unless it is told that there are none.
      {"aten::segment_reduce", [](Arguments of) { return !of[6].toBool(); }},
  };
  const auto found = known->find(name);
  return found != known->end() && (!found->second || found->second(given));
}

}  // namespace simulated_cuda
