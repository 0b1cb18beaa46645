#include "kernels/models/adapter.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "graph/base/assert.h"
#include "graph/base/random.h"

namespace primerl {
namespace {

constexpr std::string_view kWeight = ".weight";

/// The module that a slice of the model is the weight of; empty: an adapter cannot add to it.
std::string module_of(const TensorSlice& slice) {
  if (slice.shape.size() != 2 || !slice.name.ends_with(kWeight)) return {};
  return slice.name.substr(0, slice.name.size() - kWeight.size());
}

std::vector<AdapterLinear> linears_of(const TensorTable& model, const AdapterConfig& config) {
  const auto targets = named_targets(config);
  std::vector<AdapterLinear> linears;
  for (const auto& slice : model.slices()) {
    const Parameter& parameter = model.parameters()[slice.parameter];
    const bool is_tied_head = parameter.kind == ParameterKind::kEmbedding && model.is_tied();
    const std::string module = is_tied_head ? std::string(kHeadTarget) : module_of(slice);
    if (!std::binary_search(targets.begin(), targets.end(), adapter_target(module))) continue;
    AdapterLinear& linear = linears.emplace_back();
    linear.module = module;
    linear.parameter = slice.parameter;
    linear.outputs = slice.shape[0];
    linear.inputs = slice.shape[1];
    const int64_t columns = parameter.shape[parameter.shape.size() - 2];
    const int64_t first = (slice.offset - parameter.offset) / linear.inputs;
    linear.group = first / columns;
    linear.column = first % columns;
  }
  std::sort(linears.begin(), linears.end(), [](const auto& a, const auto& b) {
    return std::tie(a.parameter, a.group, a.column) < std::tie(b.parameter, b.group, b.column);
  });
  for (size_t i = 0; i < linears.size(); ++i) {
    linears[i].a = 2 * i;
    linears[i].b = 2 * i + 1;
  }
  return linears;
}

std::vector<Parameter> parameters_of(const TensorTable& model, const AdapterConfig& config,
                                     std::span<const AdapterLinear> linears) {
  std::vector<Parameter> parameters;
  const int64_t rank = config.rank;
  for (const auto& linear : linears) {
    const bool is_head = linear.module == kHeadTarget;  // of the embedding's matrix, if it is tied
    const ParameterKind kind =
        is_head ? ParameterKind::kHead : model.parameters()[linear.parameter].kind;
    const std::string name = std::string(kAdapterPrefix) + linear.module;
    parameters.push_back({name + std::string(kAdapterSuffixA), kind, {rank, linear.inputs}});
    parameters.push_back({name + std::string(kAdapterSuffixB), kind, {linear.outputs, rank}});
  }
  parameters.push_back({std::string(kAdapterScaling), ParameterKind::kNorm, {1}, false});
  return parameters;
}

}  // namespace

AdapterTable::AdapterTable(const TensorTable& model, AdapterConfig config)
    : config_(std::move(config)),
      linears_(linears_of(model, config_)),
      tensors_(parameters_of(model, config_, linears_)) {}

Result<AdapterConfig> adapter_config_of(const TensorTable& model,
                                        const std::vector<WeightTensor>& tensors) {
  ASSIGN_OR_RETURN(AdapterConfig config, config_of_snapshot(tensors));
  Status fits = [&]() -> Status {
    const auto match = match_tensors(AdapterTable(model, config).tensors(), tensors);
    return match.ok() ? ok() : Status(match.error());
  }();
  if (!fits.ok()) return Error(fits.error());
  return config;
}

void initialize_adapter(const AdapterTable& table, float* buffer) {
  const TensorTable& tensors = table.tensors();
  std::fill_n(buffer, tensors.count(), 0.0F);
  for (const auto& linear : table.linears()) {
    const Parameter& a = tensors.parameters()[linear.a];
    const double bound = 1 / std::sqrt(static_cast<double>(linear.inputs));
    RandomStream random(mix(table.config().init_seed, stable_hash(a.name)));
    for (int64_t i = 0; i < a.count; ++i)
      buffer[a.offset + i] = static_cast<float>(bound * (2 * random.uniform() - 1));
  }
  buffer[tensors.at(kAdapterScaling).offset] = static_cast<float>(scaling_of(table.config()));
}

void merge_adapter(const TensorTable& model, const AdapterTable& table, const float* adapter,
                   float* weights) {
  CHECK(!needs_own_head(model, table.config()), "the embedding would be merged too");
  const auto scaling = static_cast<float>(scaling_of(table.config()));
  const int64_t rank = table.config().rank;
  const auto of_adapter = [&](size_t parameter) {
    return adapter + table.tensors().parameters()[parameter].offset;
  };
  for (const AdapterLinear& linear : table.linears()) {
    const Parameter& matrix = model.parameters()[linear.parameter];
    const int64_t rows = matrix.shape[matrix.shape.size() - 2];
    float* weight = weights + matrix.offset + (linear.group * rows + linear.column) * linear.inputs;
    const float *a = of_adapter(linear.a), *b = of_adapter(linear.b);
    std::vector<float> added(static_cast<size_t>(linear.inputs));
    for (int64_t output = 0; output < linear.outputs; ++output, weight += linear.inputs) {
      std::fill(added.begin(), added.end(), 0.0F);
      for (int64_t r = 0; r < rank; ++r) {
        const float factor = b[output * rank + r];
        for (size_t i = 0; i < added.size(); ++i)
          added[i] += factor * a[static_cast<size_t>(r * linear.inputs) + i];
      }
      for (size_t i = 0; i < added.size(); ++i) weight[i] += scaling * added[i];
    }
  }
}

}  // namespace primerl
