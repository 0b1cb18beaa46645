#include "kernels/cuda/layers/fp8.h"

#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <array>
#include <utility>

#include "kernels/cuda/device/device.h"

namespace primerl {
namespace {

constexpr int64_t kTermsMultiple = 512;
constexpr int32_t kHopper = 9;  // the only generation whose library has GEMMs with block scales

int64_t padded_terms(int64_t terms) {
  return (terms + kTermsMultiple - 1) / kTermsMultiple * kTermsMultiple;
}

Fp8Matrix zeros_of(int64_t columns, int64_t terms, const c10::Device& device) {
  const int64_t padded = padded_terms(terms);
  const auto on_cuda = at::TensorOptions(device);
  return {
      at::zeros({columns, padded}, on_cuda.dtype(at::kByte)).view(at::kFloat8_e4m3fn),
      at::zeros({columns / cuda::kFp8Block, padded / cuda::kFp8Block}, on_cuda.dtype(at::kFloat))};
}

/// [columns, terms] of the matrices of a layer.
std::array<std::pair<int64_t, int64_t>, 4> shapes_of(const ModelConfig& config) {
  const AttentionSpec& spec = config.attention;
  const int64_t q = int64_t{spec.num_heads} * spec.head_dim, hidden = config.hidden_size;
  const int64_t kv = int64_t{spec.num_kv_heads} * spec.head_dim, width = config.mlp.width;
  return {{{q + 2 * kv, hidden}, {hidden, q}, {2 * width, hidden}, {hidden, width}}};
}

}  // namespace

Fp8Weight make_fp8(const at::Tensor& weight, bool is_trained) {
  Fp8Weight made;
  made.forward = zeros_of(weight.size(0), weight.size(1), weight.device());
  if (is_trained) made.backward = zeros_of(weight.size(1), weight.size(0), weight.device());
  return made;
}

Status quantise(const at::Tensor& weight, const Fp8Weight& to, const CudaStream& stream) {
  cuda::QuantiseBlocksArgs args;
  args.rows = weight.size(0);
  args.width = weight.size(1);
  args.type = cuda::Type::kBfloat16;
  args.x = weight.const_data_ptr();
  args.code_stride = to.forward.codes.size(1);
  args.codes = to.forward.codes.mutable_data_ptr();
  args.scale_stride = to.forward.scales.size(1);
  args.scales = to.forward.scales.mutable_data_ptr<float>();
  if (to.backward.codes.defined()) {
    args.transposed_code_stride = to.backward.codes.size(1);
    args.transposed_codes = to.backward.codes.mutable_data_ptr();
    args.transposed_scale_stride = to.backward.scales.size(1);
    args.transposed_scales = to.backward.scales.mutable_data_ptr<float>();
  }
  return launched(cuda::quantise_blocks(args, stream.raw()), "quantise_blocks");
}

void fp8_gemm(int64_t rows, const at::Tensor& x, const Fp8Matrix& matrix, const at::Tensor& y,
              const CudaStream& stream) {
  const int64_t padded = fp8_rows(rows), terms = matrix.codes.size(1);
  const auto on_cuda = at::TensorOptions(stream.device());
  const at::Tensor codes = at::empty({padded, terms}, on_cuda.dtype(at::kFloat8_e4m3fn));
  const at::Tensor scales = at::empty({terms / cuda::kFp8Block, padded}, on_cuda.dtype(at::kFloat));
  const cuda::Outcome outcome = cuda::quantise_rows({.rows = rows,
                                                     .width = x.size(1),
                                                     .type = cuda::Type::kBfloat16,
                                                     .x = x.const_data_ptr(),
                                                     .code_stride = terms,
                                                     .codes = codes.mutable_data_ptr(),
                                                     .scale_stride = padded,
                                                     .scales = scales.mutable_data_ptr<float>()},
                                                    stream.raw());
  TORCH_CHECK(outcome.is_ok(), "CUDA operation 'quantise_rows': ", outcome.fault);
  at::Tensor to = y.narrow(0, 0, padded);
  at::_scaled_mm_out(to, codes, matrix.codes.t(), scales.t(), matrix.scales.t(), std::nullopt,
                     std::nullopt, at::kBFloat16, false);
}

std::shared_ptr<const Fp8Weight> Fp8Weights::add(const at::Tensor& weight, bool is_trained) {
  auto codes = std::make_shared<const Fp8Weight>(make_fp8(weight, is_trained));
  all_.push_back({weight, codes});
  return codes;
}

Status Fp8Weights::quantise_all(const CudaStream& stream) const {
  for (const Coded& each : all_) RETURN_IF_ERROR(quantise(each.weight, *each.codes, stream));
  return ok();
}

bool is_fp8_weight(std::string_view name) {
  for (const std::string_view end :
       {".attention.qkv", ".attention.out", ".mlp.gate_up", ".mlp.down"})
    if (name.ends_with(end)) return true;
  return false;
}

double fp8_bytes(const ModelConfig& config, bool is_trained) {
  double bytes = 0;
  for (const auto& [columns, terms] : shapes_of(config)) {
    bytes += static_cast<double>(columns) * static_cast<double>(padded_terms(terms));
    if (is_trained)
      bytes += static_cast<double>(terms) * static_cast<double>(padded_terms(columns));
  }
  constexpr double kWithScales = 1 + 4.0 / (cuda::kFp8Block * cuda::kFp8Block);
  return bytes * kWithScales * config.num_layers();
}

Status check_products(std::string_view products, std::string_view dtype, const ModelConfig& config,
                      std::string_view device) {
  if (products != "fp8") return ok();
  if (dtype == "float32")
    return error(Code::kInvalid, "products = \"fp8\" computes in bf16, and dtype is \"float32\"")
        .note("leave 'dtype' out, or write products = \"dtype\"");
  if (config.moe.has_value())
    return error(Code::kUnavailable,
                 "products = \"fp8\" are those of dense layers, and {} has experts",
                 config.model_type)
        .note("write products = \"dtype\"");
  ASSIGN_OR_RETURN(const CudaDeviceFacts facts, cuda_device_facts(cuda_device_index(device)));
  if (facts.capability_major != kHopper)
    return error(
               Code::kUnavailable,
               "products = \"fp8\" needs a device of compute capability 9.0 (Hopper), {} has {}.x",
               device, facts.capability_major)
        .note("write products = \"dtype\"");
  for (const auto& [columns, terms] : shapes_of(config))
    for (const int64_t width : {columns, terms})
      if (width % cuda::kFp8Block != 0)
        return error(Code::kUnavailable,
                     "products = \"fp8\" needs widths that are multiples of 128, and a matrix of "
                     "this model is {} x {}",
                     columns, terms)
            .note("write products = \"dtype\"");
  return ok();
}

}  // namespace primerl
