#include "kernels/torch/weights.h"

#include <algorithm>
#include <cstring>

#include "kernels/torch/memory.h"
#include "kernels/torch/parallel.h"

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

/// Rows [begin, end) of a tensor that belong to one panel of one group.
struct PackTask {
  const TensorMatch::Source* source = nullptr;
  int64_t begin = 0, end = 0;  // rows of the tensor
};

std::vector<PackTask> tasks_of(const TensorTable& table, const TensorMatch& match,
                               const std::vector<at::Tensor>& packed) {
  std::vector<PackTask> tasks;
  for (const auto& source : match.sources) {
    if (!packed[source.slice->parameter].defined()) continue;
    const Parameter& parameter = table.parameters()[source.slice->parameter];
    const MatrixShape shape = shape_of(parameter);
    const int64_t first = (source.slice->offset - parameter.offset) / shape.terms;
    const int64_t rows = source.slice->count / shape.terms;
    for (int64_t row = 0; row < rows;) {
      const int64_t column = (first + row) % shape.columns;
      const int64_t left = std::min(rows - row, shape.columns - column);
      const int64_t taken = std::min(left, kLinearPanel - column % kLinearPanel);
      tasks.push_back({&source, row, row + taken});
      row += taken;
    }
  }
  return tasks;
}

/// Where the fp32 of `tensor` lies from element `begin` on; null where it is of another type, or
/// not aligned.
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

Status DecoderWeights::load(const std::vector<WeightTensor>& tensors) {
  ASSIGN_OR_RETURN(const auto match, match_tensors(table_, tensors));
  share_tasks(static_cast<int64_t>(match.sources.size()), table_.count(), [&](int64_t i) {
    const auto& [tensor, slice] = match.sources[static_cast<size_t>(i)];
    const Parameter& parameter = table_.parameters()[slice->parameter];
    at::Tensor& plain = plain_[slice->parameter];
    if (flat_.defined())
      convert_to_f32(*tensor, 0, slice->count, flat_.mutable_data_ptr<float>() + slice->offset);
    else if (plain.defined())
      convert_to_f32(*tensor, 0, slice->count,
                     plain.mutable_data_ptr<float>() + slice->offset - parameter.offset);
  });
  pack(match);
  return ok();
}

void DecoderWeights::pack(const TensorMatch& match) {
  const auto tasks = tasks_of(table_, match, packed_);
  const CpuOps& ops = cpu_ops();
  share(static_cast<int64_t>(tasks.size()), table_.count(), [&](int64_t begin, int64_t end) {
    std::vector<float> rows;
    for (int64_t i = begin; i < end; ++i) {
      const PackTask& task = tasks[static_cast<size_t>(i)];
      const TensorSlice& slice = *task.source->slice;
      const Parameter& parameter = table_.parameters()[slice.parameter];
      const MatrixShape shape = shape_of(parameter);
      const int64_t first = (slice.offset - parameter.offset) / shape.terms + task.begin;
      const int64_t group = first / shape.columns, column = first % shape.columns;
      const int64_t count = (task.end - task.begin) * shape.terms;
      const float* from = f32_of(*task.source->tensor, task.begin * shape.terms);
      if (from == nullptr) {
        rows.resize(static_cast<size_t>(count));
        convert_to_f32(*task.source->tensor, task.begin * shape.terms, count, rows.data());
        from = rows.data();
      }
      float* packed = packed_[slice.parameter].mutable_data_ptr<float>();
      ops.pack_linear(
          {.column_begin = column,
           .column_end = column + task.end - task.begin,
           .terms = shape.terms,
           .weights = {from, shape.terms, 1},
           .packed = packed + group * packed_linear_floats(shape.columns, shape.terms)});
    }
  });
}

}  // namespace primerl
