#include "kernels/cpu/weights/weights.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "kernels/common/memory.h"
#include "kernels/common/parallel.h"
#include "kernels/models/bf16_matrices.h"
#include "kernels/models/fp8_matrices.h"
#include "kernels/sizing/memory.h"

namespace primerl {
namespace {

struct MatrixShape {
  int64_t groups = 1, columns = 0, terms = 0;
};

MatrixShape shape_of(const Parameter& parameter) {
  const auto& shape = parameter.shape;
  if (shape.size() == 3) return {shape[0], shape[1], shape[2]};
  return {1, shape[0], shape[1]};
}

bool is_matrix(const Parameter& parameter) { return parameter.shape.size() > 1; }

static_assert(kPackedColumns == kLinearPanel && kPackedBf16Terms == kBf16Chunk,
              "packed_bytes() counts other panels");

constexpr int64_t kCopiedElementsMax = int64_t{1} << 16;  // per part

/// The fp32 values of `tensor` from element `begin` on; null if it has another type, or is not
/// aligned.
const float* f32_of(const WeightTensor& tensor, int64_t begin) {
  const std::byte* bytes = tensor.bytes.bytes().data();
  if (tensor.type != DataType::kF32 || reinterpret_cast<uintptr_t>(bytes) % alignof(float) != 0)
    return nullptr;
  return reinterpret_cast<const float*>(bytes) + begin;
}

/// Whether elements [begin, begin + count) of a tensor are neither NaN nor infinite.
bool is_finite(const WeightTensor& tensor, int64_t begin, int64_t count) {
  const float* values = f32_of(tensor, begin);
  std::vector<float> converted;
  if (values == nullptr) {
    converted.resize(static_cast<size_t>(count));
    convert_to_f32(tensor, begin, count, converted.data());
    values = converted.data();
  }
  for (int64_t i = 0; i < count; ++i)
    if (!std::isfinite(values[i])) return false;
  return true;
}

Error not_finite(const TensorSlice& slice, int64_t element, float value) {
  return error(Code::kInvalid,
               "tensor '{}' is {} at element {}: its block of 128 x 128 has no FP8 scale",
               slice.name, value, element)
      .note("find where the weights became NaN or infinite; products = \"dtype\" has no scales");
}

}  // namespace

Numerics numerics_of(std::string_view name) {
  return name == "fast" ? Numerics::kFast : Numerics::kInvariant;
}

GemmNumbers gemm_numbers_of(std::string_view name) {
  if (name == "bf16") return GemmNumbers::kBf16;
  return name == "fp8" ? GemmNumbers::kFp8 : GemmNumbers::kDtype;
}

DecoderWeights::DecoderWeights(const TensorTable& table, Numerics numerics, Use use,
                               GemmNumbers numbers)
    : table_(table),
      numerics_(numerics),
      numbers_(numbers),
      plain_(table.parameters().size()),
      packed_(table.parameters().size()),
      rounded_(table.parameters().size()) {
  if (use == Use::kLearner) {
    flat_ = zero_floats(table.count());
    for (size_t i = 0; i < rounded_.size(); ++i)
      if (is_fp8(i)) rounded_[i] = zero_floats(table.parameters()[i].count);
    return;
  }
  for (size_t i = 0; i < plain_.size(); ++i) {
    const Parameter& parameter = table.parameters()[i];
    const bool is_embedding = parameter.kind == ParameterKind::kEmbedding;
    const bool is_packed = is_matrix(parameter) && (!is_embedding || table.is_tied());
    if (!is_packed || is_embedding) plain_[i] = zero_floats(parameter.count);
    if (!is_packed) continue;
    const MatrixShape shape = shape_of(parameter);
    // Two bf16 numbers have the size of a float.
    packed_[i] =
        zero_floats(shape.groups * (is_bf16(i) ? packed_bf16_count(shape.columns, shape.terms) / 2
                                               : packed_linear_floats(shape.columns, shape.terms)));
  }
}

bool DecoderWeights::is_fp8(size_t parameter) const {
  return numbers_ == GemmNumbers::kFp8 && is_fp8_matrix(table_.parameters()[parameter]);
}

bool DecoderWeights::is_bf16(size_t parameter) const {
  return numbers_ == GemmNumbers::kBf16 &&
         is_bf16_matrix(table_.parameters()[parameter], table_.is_tied());
}

int64_t DecoderWeights::count() const {
  int64_t count = flat_.defined() ? flat_.numel() : 0;
  for (const auto* tensors : {&plain_, &packed_, &rounded_})
    for (const at::Tensor& tensor : *tensors) count += tensor.defined() ? tensor.numel() : 0;
  return count;
}

Matrix DecoderWeights::matrix(std::string_view name) const {
  const Parameter* parameter = table_.find(name);
  if (parameter == nullptr) return {};
  return matrix(static_cast<size_t>(parameter - table_.parameters().data()));
}

Matrix DecoderWeights::matrix(size_t parameter) const {
  const MatrixShape shape = shape_of(table_.parameters()[parameter]);
  Matrix matrix{.groups = shape.groups,
                .columns = shape.columns,
                .terms = shape.terms,
                .plain = vector(parameter),
                .parameter = parameter,
                .is_bf16 = is_bf16(parameter),
                .is_fp8 = is_fp8(parameter)};
  if (packed_[parameter].defined() && matrix.is_bf16)
    matrix.packed_bf16 = static_cast<const uint16_t*>(packed_[parameter].const_data_ptr());
  else if (packed_[parameter].defined())
    matrix.packed = packed_[parameter].const_data_ptr<float>();
  if (rounded_[parameter].defined()) matrix.plain = rounded_[parameter].const_data_ptr<float>();
  return matrix;
}

const float* DecoderWeights::vector(std::string_view name) const {
  const Parameter* parameter = table_.find(name);
  if (parameter == nullptr) return nullptr;
  return vector(static_cast<size_t>(parameter - table_.parameters().data()));
}

const float* DecoderWeights::vector(size_t parameter) const {
  if (flat_.defined()) return flat_.const_data_ptr<float>() + table_.parameters()[parameter].offset;
  return plain_[parameter].defined() ? plain_[parameter].const_data_ptr<float>() : nullptr;
}

void DecoderWeights::add_copies(const TensorMatch::Source& source, Part::Work work) {
  for (int64_t begin = 0; begin < source.slice->count; begin += kCopiedElementsMax) {
    const int64_t end = std::min(source.slice->count, begin + kCopiedElementsMax);
    parts_.push_back({work, &source, source.slice->parameter, begin, end, end - begin});
  }
}

/// A panel belongs to one group: rows of the tensor up to the end of either.
void DecoderWeights::add_panels(const TensorMatch::Source& source) {
  const Parameter& parameter = table_.parameters()[source.slice->parameter];
  const MatrixShape shape = shape_of(parameter);
  const int64_t first = (source.slice->offset - parameter.offset) / shape.terms;
  const int64_t rows = source.slice->count / shape.terms;
  for (int64_t row = 0; row < rows;) {
    const int64_t column = (first + row) % shape.columns;
    const int64_t left = std::min(rows - row, shape.columns - column);
    const int64_t taken = std::min(left, kLinearPanel - column % kLinearPanel);
    parts_.push_back({Part::Work::kPack, &source, source.slice->parameter, row, row + taken,
                      taken * shape.terms});
    row += taken;
  }
}

/// Rows of blocks: 128 columns of one group, all terms.
void DecoderWeights::add_rounding(std::vector<Part>& parts) const {
  for (size_t i = 0; i < rounded_.size(); ++i) {
    if (!is_fp8(i)) continue;
    const MatrixShape shape = shape_of(table_.parameters()[i]);
    const int64_t per_group = (shape.columns + kFp8Block - 1) / kFp8Block;
    for (int64_t row = 0; row < shape.groups * per_group; ++row)
      parts.push_back({Part::Work::kRound, nullptr, i, row, row + 1,
                       kFp8Block * std::max<int64_t>(shape.terms, 1)});
  }
}

Status DecoderWeights::begin_load(const std::vector<WeightTensor>& tensors) {
  parts_.clear();
  stage_ends_.clear();
  num_loaded_ = 0;
  refused_ = kNone;
  ASSIGN_OR_RETURN(match_, match_tensors(table_, tensors));
  for (const auto& source : match_.sources)
    if (is_fp8(source.slice->parameter)) add_copies(source, Part::Work::kCheck);
  stage_ends_.push_back(parts_.size());
  for (const auto& source : match_.sources) {
    const size_t parameter = source.slice->parameter;
    if (flat_.defined() || plain_[parameter].defined()) add_copies(source, Part::Work::kCopy);
    if (packed_[parameter].defined()) add_panels(source);
  }
  stage_ends_.push_back(parts_.size());
  add_rounding(parts_);
  stage_ends_.push_back(parts_.size());
  return ok();
}

bool DecoderWeights::load_more(int64_t count) {
  for (const size_t stage_end : stage_ends_) {
    if (stage_end <= num_loaded_) continue;
    size_t end = num_loaded_;
    int64_t work = 0;
    for (; end < stage_end && work < count; ++end) work += parts_[end].count;
    share_tasks(static_cast<int64_t>(end - num_loaded_), work,
                [&](int64_t i) { load(num_loaded_ + static_cast<size_t>(i)); });
    num_loaded_ = end;
    count -= work;
    if (refused_ != kNone) return true;
    if (count <= 0) break;
  }
  return num_loaded_ == parts_.size();
}

Status DecoderWeights::load_status() const {
  if (refused_ == kNone) return ok();
  const Part& part = parts_[refused_];
  const TensorSlice& slice = *part.source->slice;
  std::vector<float> values(static_cast<size_t>(part.count));
  convert_to_f32(*part.source->tensor, part.begin, part.count, values.data());
  const auto broken = std::ranges::find_if_not(values, [](float x) { return std::isfinite(x); });
  return not_finite(slice, part.begin + (broken - values.begin()), *broken);
}

Status DecoderWeights::load(const std::vector<WeightTensor>& tensors) {
  RETURN_IF_ERROR(begin_load(tensors));
  load_more(std::numeric_limits<int64_t>::max());
  return load_status();
}

Status DecoderWeights::check(const std::vector<WeightTensor>& tensors) {
  RETURN_IF_ERROR(begin_load(tensors));
  const auto checks = std::span(parts_).first(stage_ends_.front());
  int64_t work = 0;
  for (const Part& part : checks) work += part.count;
  share_tasks(std::ssize(checks), work, [&](int64_t i) { load(static_cast<size_t>(i)); });
  return load_status();
}

Status DecoderWeights::round() {
  std::vector<Part> parts;
  add_rounding(parts);
  int64_t work = 0;
  for (const Part& part : parts) work += part.count;
  std::atomic<bool> is_broken = false;
  share_tasks(static_cast<int64_t>(parts.size()), work, [&](int64_t i) {
    if (!round(parts[static_cast<size_t>(i)])) is_broken = true;
  });
  if (!is_broken) return ok();
  for (const TensorSlice& slice : table_.slices()) {
    if (!is_fp8(slice.parameter)) continue;
    const float* values = flat_.const_data_ptr<float>() + slice.offset;
    for (int64_t i = 0; i < slice.count; ++i)
      if (!std::isfinite(values[i])) return not_finite(slice, i, values[i]);
  }
  return ok();
}

void DecoderWeights::load(size_t index) {
  const Part& part = parts_[index];
  switch (part.work) {
    case Part::Work::kCheck: {
      if (is_finite(*part.source->tensor, part.begin, part.count)) return;
      size_t first = refused_;
      while (index < first && !refused_.compare_exchange_weak(first, index)) {
      }
      return;
    }
    case Part::Work::kCopy:
      return copy(part);
    case Part::Work::kPack:
      return pack(part);
    case Part::Work::kRound:
      round(part);
  }
}

void DecoderWeights::copy(const Part& part) {
  const TensorSlice& slice = *part.source->slice;
  float* to = flat_.defined() ? flat_.mutable_data_ptr<float>() + slice.offset
                              : plain_[slice.parameter].mutable_data_ptr<float>() + slice.offset -
                                    table_.parameters()[slice.parameter].offset;
  convert_to_f32(*part.source->tensor, part.begin, part.count, to + part.begin);
}

bool DecoderWeights::round(const Part& part) {
  const Parameter& parameter = table_.parameters()[part.parameter];
  const MatrixShape shape = shape_of(parameter);
  const int64_t per_group = (shape.columns + kFp8Block - 1) / kFp8Block;
  const int64_t group = part.begin / per_group, column = part.begin % per_group * kFp8Block;
  const int64_t columns = std::min(kFp8Block, shape.columns - column);
  const bool is_packed = packed_[part.parameter].defined();
  // A run has the terms of a panel's columns, or of one column.
  const int64_t lanes = is_packed ? kLinearPanel : 1;
  RoundFp8BlockArgs args;
  args.runs = (columns + lanes - 1) / lanes;
  args.stride = shape.terms * lanes;
  const int64_t first = group * shape.columns * shape.terms + column * shape.terms;
  if (is_packed) {
    args.y = packed_[part.parameter].mutable_data_ptr<float>() +
             group * packed_linear_floats(shape.columns, shape.terms) + column * shape.terms;
    args.x = args.y;
  } else {
    args.y = rounded_[part.parameter].mutable_data_ptr<float>() + first;
    args.x = flat_.const_data_ptr<float>() + parameter.offset + first;
  }
  bool all_finite = true;
  for (int64_t term = 0; term < shape.terms; term += kFp8Block) {
    args.count = std::min(kFp8Block, shape.terms - term) * lanes;
    all_finite = std::isfinite(cpu_ops().round_fp8_block(args)) && all_finite;
    args.x += kFp8Block * lanes;
    args.y += kFp8Block * lanes;
  }
  return all_finite;
}

void DecoderWeights::pack(const Part& part) {
  const TensorSlice& slice = *part.source->slice;
  const Parameter& parameter = table_.parameters()[slice.parameter];
  const MatrixShape shape = shape_of(parameter);
  const int64_t first = (slice.offset - parameter.offset) / shape.terms + part.begin;
  const int64_t group = first / shape.columns, column = first % shape.columns;
  const float* from = f32_of(*part.source->tensor, part.begin * shape.terms);
  std::vector<float> rows;
  if (from == nullptr) {
    rows.resize(static_cast<size_t>(part.count));
    convert_to_f32(*part.source->tensor, part.begin * shape.terms, part.count, rows.data());
    from = rows.data();
  }
  const int64_t end = column + part.end - part.begin;
  const LinearWeights weights = {from, shape.terms, 1};
  if (is_bf16(slice.parameter)) {
    auto* packed = static_cast<uint16_t*>(packed_[slice.parameter].mutable_data_ptr());
    return cpu_ops().pack_bf16(
        {.column_begin = column,
         .column_end = end,
         .terms = shape.terms,
         .weights = weights,
         .packed = packed + group * packed_bf16_count(shape.columns, shape.terms)});
  }
  float* packed = packed_[slice.parameter].mutable_data_ptr<float>();
  cpu_ops().pack_linear(
      {.column_begin = column,
       .column_end = end,
       .terms = shape.terms,
       .weights = weights,
       .packed = packed + group * packed_linear_floats(shape.columns, shape.terms)});
}

}  // namespace primerl
