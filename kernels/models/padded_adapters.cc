#include "kernels/models/padded_adapters.h"

#include <algorithm>
#include <utility>

namespace primerl {
namespace {

int64_t padded_rank(std::span<const AdapterConfig> adapters) {
  int64_t rank = 1;
  for (const auto& adapter : adapters) rank = std::max<int64_t>(rank, adapter.rank);
  constexpr int64_t kUnit = PaddedAdapters::kRankUnit;
  return (rank + kUnit - 1) / kUnit * kUnit;
}

/// An adapter with the rank and targets to contain each of `adapters`.
AdapterTable widest(const TensorTable& model, std::span<const AdapterConfig> adapters) {
  AdapterConfig config;
  config.rank = static_cast<int32_t>(padded_rank(adapters));
  config.targets.clear();
  for (const auto& adapter : adapters)
    for (auto& target : named_targets(adapter)) config.targets.push_back(std::move(target));
  return {model, config};
}

/// Visits the linears of each matrix of the model; they are adjacent.
template <class Visit>
void for_each_matrix(const AdapterTable& table, Visit&& visit) {
  const auto linears = table.linears();
  for (size_t first = 0; first < linears.size();) {
    size_t end = first;
    while (end < linears.size() && linears[end].parameter == linears[first].parameter) ++end;
    visit(linears.subspan(first, end - first));
    first = end;
  }
}

/// All experts have the same linears.
size_t num_parts(std::span<const AdapterLinear> linears) {
  const auto is_first = [](const AdapterLinear& linear) { return linear.group == 0; };
  return static_cast<size_t>(std::ranges::count_if(linears, is_first));
}

TensorTable place(const AdapterTable& table) {
  const auto all = table.tensors().parameters();
  std::vector<Parameter> parameters;
  for_each_matrix(table, [&](std::span<const AdapterLinear> linears) {
    const size_t parts = num_parts(linears);
    for (const auto& linear : linears) parameters.push_back(all[linear.a]);
    for (size_t part = 0; part < parts; ++part)
      for (size_t i = part; i < linears.size(); i += parts) parameters.push_back(all[linears[i].b]);
  });
  parameters.push_back(all.back());  // the scaling
  return TensorTable(parameters);
}

}  // namespace

PaddedAdapters::PaddedAdapters(const TensorTable& model, std::span<const AdapterConfig> adapters)
    : rank_(padded_rank(adapters)), tensors_(place(widest(model, adapters))) {
  for (const auto& parameter : tensors_.parameters()) offsets_[parameter.name] = parameter.offset;
  const AdapterTable table = widest(model, adapters);
  const auto offset_of = [&](size_t index) {
    return offsets_.at(table.tensors().parameters()[index].name);
  };
  for_each_matrix(table, [&](std::span<const AdapterLinear> linears) {
    const size_t parts = num_parts(linears);
    Matrix& matrix = matrices_.emplace_back();
    matrix.parameter = linears.front().parameter;
    matrix.groups = std::ssize(linears) / static_cast<int64_t>(parts);
    matrix.inputs = linears.front().inputs;
    matrix.a = offset_of(linears.front().a);
    matrix.a_stride = static_cast<int64_t>(parts) * rank_ * matrix.inputs;
    for (const auto& linear : linears.first(parts))
      matrix.parts.push_back({{}, linear.column, linear.outputs, offset_of(linear.b)});
    for (size_t i = 0; i < linears.size(); ++i) {
      const AdapterLinear& linear = linears[i];
      Part& part = matrix.parts[i % parts];
      const int64_t b = part.b + linear.group * part.outputs * rank_;
      CHECK(linear.group == std::ssize(part.modules) && offset_of(linear.b) == b &&
                offset_of(linear.a) == matrix.a + static_cast<int64_t>(i) * rank_ * matrix.inputs,
            fmt::format("'{}' does not follow the linear before it", linear.module));
      part.modules.push_back(linear.module);
    }
  });
}

const PaddedAdapters::Matrix* PaddedAdapters::matrix(size_t parameter) const {
  for (const auto& matrix : matrices_)
    if (matrix.parameter == parameter) return &matrix;
  return nullptr;
}

std::vector<PaddedAdapters::Piece> PaddedAdapters::pieces_of(const AdapterTable& adapter) const {
  const auto parameters = adapter.tensors().parameters();
  const int64_t rank = adapter.config().rank;
  std::vector<Piece> pieces;
  for (const auto& linear : adapter.linears()) {
    const Parameter &a = parameters[linear.a], &b = parameters[linear.b];
    pieces.push_back({offsets_.at(a.name), a.offset, rank, linear.inputs, linear.inputs});
    pieces.push_back({offsets_.at(b.name), b.offset, linear.outputs, rank, rank_});
  }
  const Parameter& scaling = parameters.back();
  pieces.push_back({offsets_.at(scaling.name), scaling.offset, 1, 1, 1});
  return pieces;
}

void PaddedAdapters::pad(const AdapterTable& adapter, const float* numbers, float* padded) const {
  std::fill_n(padded, tensors_.count(), 0.0F);
  for (const Piece& piece : pieces_of(adapter))
    for (int64_t row = 0; row < piece.rows; ++row)
      std::copy_n(numbers + piece.there + row * piece.width, piece.width,
                  padded + piece.here + row * piece.stride_here);
}

void PaddedAdapters::cut(const AdapterTable& adapter, const float* padded, float* numbers) const {
  std::fill_n(numbers, adapter.tensors().count(), 0.0F);
  for (const Piece& piece : pieces_of(adapter))
    for (int64_t row = 0; row < piece.rows; ++row)
      std::copy_n(padded + piece.here + row * piece.stride_here, piece.width,
                  numbers + piece.there + row * piece.width);
}

}  // namespace primerl
