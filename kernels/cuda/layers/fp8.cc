#include "kernels/cuda/layers/fp8.h"

#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/cuda/device/device.h"
#include "kernels/cuda/ops/cuda_gemms.h"
#include "kernels/models/fp8_matrices.h"

namespace primerl {
namespace {

constexpr int64_t kRoundedElementsMax = int64_t{1} << 26;  // rounded at a time
constexpr int32_t kHopper = 9;  // the only generation whose library has GEMMs with block scales

constexpr int64_t kTermsMultiple = 512;  // of libtorch's GEMMs

int64_t padded_terms(int64_t terms, int64_t multiple = kTermsMultiple) {
  return (terms + multiple - 1) / multiple * multiple;
}

Fp8Matrix zeros_of(int64_t columns, int64_t terms, const c10::Device& device, int64_t multiple) {
  const int64_t padded = padded_terms(terms, multiple);
  const auto on_cuda = at::TensorOptions(device);
  return {
      at::zeros({columns, padded}, on_cuda.dtype(at::kByte)).view(at::kFloat8_e4m3fn),
      at::zeros({columns / cuda::kFp8Block, padded / cuda::kFp8Block}, on_cuda.dtype(at::kFloat))};
}

/// [columns, terms] of a matrix, or of each expert's.
std::pair<int64_t, int64_t> shape_of(const Parameter& parameter) {
  return {parameter.shape.rbegin()[1], parameter.shape.back()};
}

/// [rows, terms] of blocks as the bf16 numbers nearest to codes times scales.
void round_matrix(const at::Tensor& weight, const at::Tensor& to, const CudaStream& stream) {
  const int64_t rows = weight.size(0), terms = weight.size(1);
  const int64_t down = rows / cuda::kFp8Block, right = terms / cuda::kFp8Block;
  const Fp8Weight coded = {zeros_of(rows, terms, weight.device(), cuda::kFp8Block), {}};
  const Status done = quantise(weight, coded, stream);
  TORCH_CHECK(done.ok(), done.ok() ? std::string() : done.error().text());
  const at::Tensor numbers = coded.forward.codes.narrow(1, 0, terms).to(at::kFloat).contiguous();
  numbers.view({down, cuda::kFp8Block, right, cuda::kFp8Block})
      .mul_(coded.forward.scales.narrow(1, 0, right).unsqueeze(1).unsqueeze(3));
  to.copy_(numbers);
}

}  // namespace

Fp8Weight make_fp8(const at::Tensor& weight, bool is_trained, int64_t multiple) {
  const int64_t columns = weight.size(0), terms = weight.size(1);
  Fp8Weight made;
  made.forward = zeros_of(columns, terms, weight.device(), multiple);
  if (is_trained) made.backward = zeros_of(terms, columns, weight.device(), multiple);
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

std::shared_ptr<const Fp8Experts> Fp8Weights::add_experts(const at::Tensor& weight,
                                                         bool is_trained) {
  const at::Tensor all = weight.view({-1, weight.size(2)});
  auto experts = std::make_shared<const Fp8Experts>(
      Fp8Experts{make_fp8(all, is_trained, cuda::kFp8Block), weight.size(1), weight.size(2)});
  all_.push_back({all, std::shared_ptr<const Fp8Weight>(experts, &experts->codes)});
  return experts;
}

at::Tensor Fp8Weights::add_rounded(const at::Tensor& weight) {
  return rounded_.emplace_back(Rounded{weight, at::zeros_like(weight)}).to;
}

Status Fp8Weights::quantise_all(const CudaStream& stream) const {
  for (const Coded& each : all_) RETURN_IF_ERROR(quantise(each.weight, *each.codes, stream));
  for (const auto& [weight, to] : rounded_) {
    const int64_t terms = weight.size(-1), rows = weight.numel() / terms;
    const at::Tensor from = weight.view({rows, terms}), rounded = to.view({rows, terms});
    // Some rows of blocks at a time bound the memory of their fp32 numbers.
    const int64_t some = std::max<int64_t>(kRoundedElementsMax / terms / cuda::kFp8Block, 1);
    for (int64_t first = 0; first < rows; first += some * cuda::kFp8Block) {
      const int64_t count = std::min(some * cuda::kFp8Block, rows - first);
      round_matrix(from.narrow(0, first, count), rounded.narrow(0, first, count), stream);
    }
  }
  return ok();
}

Fp8Rows quantised_rows(int64_t rows, const at::Tensor& x, const CudaStream& stream,
                       const int32_t* sources) {
  const int64_t width = x.size(1);
  const auto on_cuda = at::TensorOptions(stream.device());
  const at::Tensor codes = at::empty({rows, width}, on_cuda.dtype(at::kFloat8_e4m3fn));
  const at::Tensor scales =
      at::empty({width / cuda::kFp8Block, rows}, on_cuda.dtype(at::kFloat));
  const cuda::Outcome outcome = cuda::quantise_rows({.rows = rows,
                                                     .width = width,
                                                     .type = op_type(x.scalar_type()),
                                                     .x = x.const_data_ptr(),
                                                     .code_stride = width,
                                                     .codes = codes.mutable_data_ptr(),
                                                     .scale_stride = rows,
                                                     .scales = scales.mutable_data_ptr<float>(),
                                                     .sources = sources},
                                                    stream.raw());
  TORCH_CHECK(outcome.is_ok(), "CUDA operation 'quantise_rows': ", outcome.fault);
  return {codes, scales};
}

at::Tensor grouped_fp8(const Fp8Rows& rows, const Fp8Experts& experts, const at::Tensor& ends,
                       bool is_backward, const CudaStream& stream) {
  const Fp8Matrix& matrix = is_backward ? experts.codes.backward : experts.codes.forward;
  const int64_t columns = is_backward ? experts.terms : experts.columns;
  const at::Tensor y = at::empty({rows.codes.size(0), columns},
                                 at::TensorOptions(stream.device()).dtype(at::kBFloat16));
  const cuda::Outcome outcome =
      cuda::grouped_fp8_gemm({.rows = rows.codes.size(0),
                              .terms = rows.codes.size(1),
                              .columns = columns,
                              .num_groups = static_cast<int32_t>(ends.numel()),
                              .ends = ends.const_data_ptr<int32_t>(),
                              .x_code_stride = rows.codes.size(1),
                              .x_codes = rows.codes.const_data_ptr(),
                              .x_scale_stride = rows.scales.size(1),
                              .x_scales = rows.scales.const_data_ptr<float>(),
                              .group_rows = is_backward ? 0 : experts.columns,
                              .group_terms = is_backward ? experts.columns : 0,
                              .code_stride = matrix.codes.size(1),
                              .codes = matrix.codes.const_data_ptr(),
                              .scale_stride = matrix.scales.size(1),
                              .scales = matrix.scales.const_data_ptr<float>(),
                              .y = y.mutable_data_ptr()},
                             stream.raw());
  TORCH_CHECK(outcome.is_ok(), "CUDA operation 'grouped_fp8_gemm': ", outcome.fault);
  return y;
}

at::Tensor rounded_rows(int64_t rows, const at::Tensor& x, const CudaStream& stream) {
  const int64_t width = x.size(1), blocks = width / cuda::kFp8Block;
  const auto [codes, scales] = quantised_rows(rows, x, stream);
  at::Tensor numbers = codes.to(at::kFloat).view({rows, blocks, cuda::kFp8Block});
  numbers.mul_(scales.t().unsqueeze(2));
  return numbers.view({rows, width}).to(x.scalar_type());
}

Fp8Use fp8_use(const Parameter& parameter) {
  if (!is_fp8_matrix(parameter)) return Fp8Use::kNone;
  if (parameter.kind == ParameterKind::kExperts)
    return cuda::has_own_kernels() ? Fp8Use::kExperts : Fp8Use::kRounded;
  return parameter.kind == ParameterKind::kSharedExpert ? Fp8Use::kRounded : Fp8Use::kCodes;
}

double fp8_bytes(const ModelConfig& config, bool is_trained, int64_t rows) {
  constexpr double kWithScales = 1 + 4.0 / (cuda::kFp8Block * cuda::kFp8Block);
  constexpr double kBytesOfCode = 7;  // the code, its fp32 number and its bf16 number
  double codes = 0, rounded = 0;
  const TensorTable table(config);
  for (const Parameter& parameter : table.parameters()) {
    const Fp8Use use = fp8_use(parameter);
    if (use == Fp8Use::kRounded) rounded += 2.0 * static_cast<double>(parameter.count);
    if (use == Fp8Use::kExperts)
      codes += (is_trained ? 2.0 : 1.0) * static_cast<double>(parameter.count);
    if (use != Fp8Use::kCodes) continue;
    const auto [columns, terms] = shape_of(parameter);
    codes += static_cast<double>(columns) * static_cast<double>(padded_terms(terms));
    if (is_trained)
      codes += static_cast<double>(terms) * static_cast<double>(padded_terms(columns));
  }
  codes *= kWithScales;
  if (!config.moe) return codes;
  const int64_t widest = std::max(config.hidden_size, config.moe->width);
  const auto of_rows = static_cast<double>(rows * config.moe->experts_per_token * widest);
  return codes + rounded +
         kBytesOfCode * std::max(of_rows, static_cast<double>(kRoundedElementsMax));
}

Status check_products(std::string_view products, std::string_view dtype, const ModelConfig& config,
                      std::string_view device) {
  if (products != "fp8") return ok();
  if (dtype == "float32")
    return error(Code::kInvalid, "products = \"fp8\" computes in bf16, and dtype is \"float32\"")
        .note("leave 'dtype' out, or write products = \"dtype\"");
  ASSIGN_OR_RETURN(const CudaDeviceFacts facts, cuda_device_facts(cuda_device_index(device)));
  if (facts.capability_major != kHopper)
    return error(
               Code::kUnavailable,
               "products = \"fp8\" needs a device of compute capability 9.0 (Hopper), {} has {}.x",
               device, facts.capability_major)
        .note("write products = \"dtype\"");
  const TensorTable table(config);
  for (const Parameter& parameter : table.parameters()) {
    if (!is_fp8_matrix(parameter)) continue;
    const auto [columns, terms] = shape_of(parameter);
    if (columns % cuda::kFp8Block != 0 || terms % cuda::kFp8Block != 0)
      return error(Code::kUnavailable,
                   "products = \"fp8\" needs widths that are multiples of 128, and '{}' is {} x {}",
                   parameter.name, columns, terms)
          .note("write products = \"dtype\"");
  }
  return ok();
}

}  // namespace primerl
