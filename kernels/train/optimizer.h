/// Optimizers by name: which options each one has, and how it divides the tensors of a table.
/// kernels/common/optimizer.h computes the steps.
///
/// Independent of torch; plain values and pure functions, any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "graph/base/result.h"
#include "kernels/models/tensors.h"
#include "kernels/train/options.h"

namespace primerl {

enum class UpdateRule : uint8_t { kAdamw, kMuon, kSgd, kSignSgd, kAdafactor };

/// The options of a valid OptimizerOptions, with the kind's own numbers for those not written.
struct OptimizerRules {
  UpdateRule rule = UpdateRule::kAdamw;
  double beta1 = 0, beta2 = 0, epsilon = 0, momentum = 0;
  double decay_rate = 0, update_clip = 0, scale_min = 0;
  bool nesterov = true;
};

std::vector<std::string> optimizer_names();
/// Groups of tensors for `no_decay`.
std::vector<std::string> decay_groups();

/// Refuses an unknown kind, an option of another kind, and numbers out of range. The message names
/// the option as it is in a graph, "'optimizer.momentum'".
Status validate(const OptimizerOptions& options);
OptimizerRules rules_of(const OptimizerOptions& options);

/// Weights [offset, offset + count) of the flat buffer that one rule updates. Its state is in the
/// optimizer's two buffers: from `states[0]` and from `states[1]` on.
///
/// adamw: first and second moments, `count` each. muon and sgd: the momentum, `count`. adafactor:
/// a factor for each row and for each column, or, if it has no rows, `count` second moments.
struct UpdatePart {
  UpdateRule rule = UpdateRule::kAdamw;
  bool decays = true;
  int64_t offset = 0, count = 0;
  /// `num` matrices [rows, columns], one after another; 0: no shape.
  int64_t num = 0, rows = 0, columns = 0;
  /// Their sizes without padding, which are those in files; of a vector [0, columns].
  int64_t file_rows = 0, file_columns = 0;
  std::array<int64_t, 2> states{};
};

/// An array of the state as files have it: the first `file_shape` of each dimension of `shape`.
struct StateTensor {
  std::string name;  // "momentum.model.layers.0.mlp.up_proj.weight"
  std::vector<int64_t> shape, file_shape;
  size_t buffer = 0;  // 0 or 1
  int64_t offset = 0, count = 0;
};

struct OptimizerPlan {
  std::vector<UpdatePart> parts;     // by offset; together all trained tensors
  std::vector<StateTensor> tensors;  // sorted by name
  std::array<int64_t, 2> counts{};   // elements of the two buffers
};

/// `files` has the same tensors without padding (padded_adapters.h), maybe fewer; else it is
/// `table`. A tensor that files do not have is not updated.
OptimizerPlan plan_optimizer(const OptimizerOptions& options, const TensorTable& table,
                             const TensorTable& files);
inline OptimizerPlan plan_optimizer(const OptimizerOptions& options, const TensorTable& table) {
  return plan_optimizer(options, table, table);
}

/// Whether the moments are beside the device, and the bytes of an element of them.
bool has_host_moments(const OptimizerOptions& options);
int64_t bytes_of_moment(const OptimizerOptions& options);
/// The bytes of the state of `plan`.
double state_bytes(const OptimizerOptions& options, const OptimizerPlan& plan);
/// The most floats that a step needs beside the state, for the largest matrix of `plan`.
int64_t scratch_floats(const OptimizerPlan& plan);

}  // namespace primerl
