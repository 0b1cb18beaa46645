/// An Optimizer of a few tensors on the CPU, with weights and gradients that make_optimizers.py
/// makes too.
#pragma once

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/common/memory.h"
#include "kernels/common/optimizer.h"
#include "kernels/cpu/learner/optimizer_device.h"

namespace primerl::testing {

inline std::vector<Parameter> small_tensors() {
  return {{"embedding", ParameterKind::kEmbedding, {5, 4}},
          {"wide", ParameterKind::kMlp, {4, 6}},
          {"tall", ParameterKind::kAttention, {6, 4}},
          {"bias", ParameterKind::kAttention, {3}},
          {"norm", ParameterKind::kNorm, {4}}};
}

inline OptimizerOptions optimizer_of(const std::string& kind, double lr = 0.01,
                                     double weight_decay = 0.1) {
  OptimizerOptions options;
  options.kind = kind;
  options.lr = lr;
  options.weight_decay = weight_decay;
  options.max_norm = 0;
  return options;
}

class OptimizerStage {
 public:
  explicit OptimizerStage(const OptimizerOptions& options,
                          const std::vector<Parameter>& parameters = small_tensors())
      : options_(options),
        table_(parameters),
        weights_(zero_floats(table_.count())),
        gradients_(zero_floats(table_.count())),
        optimizer(options, table_, table_, {weights_, gradients_, {}},
                  std::make_unique<CpuOptimizerDevice>(table_, gradients_)) {
    fill(weights_, [](int tensor, int64_t i) {
      return 0.5 * std::sin(0.7 * static_cast<double>(i) + 1.3 * tensor + 0.2);
    });
  }

  /// `value` of the number of a tensor, as given, and of an element.
  template <class Value>
  void fill_gradients(const Value& value) {
    fill(gradients_, value);
  }
  TrainReport step(const AdamNumbers* adam = nullptr) {
    const double step = static_cast<double>(optimizer.num_steps() + 1);
    fill_gradients([&](int tensor, int64_t i) {
      const auto at = static_cast<double>(i);
      return std::cos(1.1 * at + 0.37 * step + tensor) * (0.2 + 0.1 * std::sin(0.9 * at)) /
             (1 + tensor);
    });
    return update(adam);
  }
  TrainReport update(const AdamNumbers* adam = nullptr) {
    const c10::InferenceMode guard(true);
    TrainReport report;
    report.learning_rate = options_.lr;
    const Status done = optimizer.update(report, adam);
    EXPECT_TRUE(done.ok());
    return report;
  }
  OptimizerStage& steps(int count) {
    for (int i = 0; i < count; ++i) step();
    return *this;
  }

  std::vector<float> weights(const std::string& name) const {
    const Parameter& found = table_.at(name);
    const float* data = weights_.const_data_ptr<float>() + found.offset;
    return {data, data + found.count};
  }
  /// All of them, with the gaps between tensors.
  std::vector<float> weights() const {
    const float* data = weights_.const_data_ptr<float>();
    return {data, data + table_.count()};
  }
  /// As learner/ of a checkpoint.
  Status save(const std::filesystem::path& folder) {
    return write_optimizer_files(folder, optimizer.copy_state(), optimizer.header());
  }
  Status load(const std::filesystem::path& folder) {
    const auto state = optimizer.read(folder);
    if (!state.ok()) return state.error();
    optimizer.set_state(*state);
    return ok();
  }
  /// The weights of `other`, as a checkpoint has them beside the state.
  void copy_weights(const OptimizerStage& other) { weights_.copy_(other.weights_); }

 private:
  template <class Value>
  void fill(const at::Tensor& flat, const Value& value) {
    int tensor = 0;
    for (const Parameter& parameter : table_.parameters()) {
      float* const data = flat.mutable_data_ptr<float>() + parameter.offset;
      for (int64_t i = 0; i < parameter.count; ++i) data[i] = static_cast<float>(value(tensor, i));
      ++tensor;
    }
  }

  // Declared before the optimizer, which refers to them.
  const OptimizerOptions options_;
  const TensorTable table_;
  at::Tensor weights_, gradients_;

 public:
  Optimizer optimizer;
};

}  // namespace primerl::testing
