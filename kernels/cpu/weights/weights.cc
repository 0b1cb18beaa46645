#include "kernels/cpu/weights/weights.h"

#include <algorithm>
#include <limits>

#include "kernels/common/memory.h"
#include "kernels/common/parallel.h"
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

static_assert(kPackedColumns == kLinearPanel, "packed_bytes() counts other panels");

constexpr int64_t kCopiedElementsMax = int64_t{1} << 16;  // per part

/// The fp32 values of `tensor` from element `begin` on; null if it has another type, or is not
/// aligned.
const float* f32_of(const WeightTensor& tensor, int64_t begin) {
  const std::byte* bytes = tensor.bytes.bytes().data();
  if (tensor.type != DataType::kF32 || reinterpret_cast<uintptr_t>(bytes) % alignof(float) != 0)
    return nullptr;
  return reinterpret_cast<const float*>(bytes) + begin;
}

}  // namespace

Numerics numerics_of(std::string_view name) {
  return name == "fast" ? Numerics::kFast : Numerics::kInvariant;
}

DecoderWeights::DecoderWeights(const TensorTable& table, Numerics numerics, Use use)
    : table_(table),
      numerics_(numerics),
      plain_(table.parameters().size()),
      packed_(table.parameters().size()) {
  if (use == Use::kLearner) {
    flat_ = zero_floats(table.count());
    return;
  }
  for (size_t i = 0; i < plain_.size(); ++i) {
    const Parameter& parameter = table.parameters()[i];
    const bool is_embedding = parameter.kind == ParameterKind::kEmbedding;
    const bool is_packed = is_matrix(parameter) && (!is_embedding || table.is_tied());
    if (!is_packed || is_embedding) plain_[i] = zero_floats(parameter.count);
    if (!is_packed) continue;
    const MatrixShape shape = shape_of(parameter);
    packed_[i] = zero_floats(shape.groups * packed_linear_floats(shape.columns, shape.terms));
  }
}

int64_t DecoderWeights::count() const {
  int64_t count = flat_.defined() ? flat_.numel() : 0;
  for (const auto* tensors : {&plain_, &packed_})
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
  Matrix matrix{shape.groups, shape.columns, shape.terms, vector(parameter), nullptr, parameter};
  if (packed_[parameter].defined()) matrix.packed = packed_[parameter].const_data_ptr<float>();
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

void DecoderWeights::add_copies(const TensorMatch::Source& source) {
  for (int64_t begin = 0; begin < source.slice->count; begin += kCopiedElementsMax) {
    const int64_t end = std::min(source.slice->count, begin + kCopiedElementsMax);
    parts_.push_back({&source, begin, end, end - begin, false});
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
    parts_.push_back({&source, row, row + taken, taken * shape.terms, true});
    row += taken;
  }
}

Status DecoderWeights::begin_load(const std::vector<WeightTensor>& tensors) {
  parts_.clear();
  num_loaded_ = 0;
  ASSIGN_OR_RETURN(match_, match_tensors(table_, tensors));
  for (const auto& source : match_.sources) {
    const size_t parameter = source.slice->parameter;
    if (flat_.defined() || plain_[parameter].defined()) add_copies(source);
    if (packed_[parameter].defined()) add_panels(source);
  }
  return ok();
}

bool DecoderWeights::load_more(int64_t count) {
  size_t end = num_loaded_;
  int64_t work = 0;
  for (; end < parts_.size() && work < count; ++end) work += parts_[end].count;
  share_tasks(static_cast<int64_t>(end - num_loaded_), work,
              [&](int64_t i) { load(parts_[num_loaded_ + static_cast<size_t>(i)]); });
  num_loaded_ = end;
  return num_loaded_ == parts_.size();
}

Status DecoderWeights::load(const std::vector<WeightTensor>& tensors) {
  RETURN_IF_ERROR(begin_load(tensors));
  load_more(std::numeric_limits<int64_t>::max());
  return ok();
}

void DecoderWeights::load(const Part& part) {
  if (part.is_packed) return pack(part);
  const TensorSlice& slice = *part.source->slice;
  float* to = flat_.defined() ? flat_.mutable_data_ptr<float>() + slice.offset
                              : plain_[slice.parameter].mutable_data_ptr<float>() + slice.offset -
                                    table_.parameters()[slice.parameter].offset;
  convert_to_f32(*part.source->tensor, part.begin, part.count, to + part.begin);
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
  float* packed = packed_[slice.parameter].mutable_data_ptr<float>();
  cpu_ops().pack_linear(
      {.column_begin = column,
       .column_end = column + part.end - part.begin,
       .terms = shape.terms,
       .weights = {from, shape.terms, 1},
       .packed = packed + group * packed_linear_floats(shape.columns, shape.terms)});
}

}  // namespace primerl
