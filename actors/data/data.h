/// Gives given answers to the trainer: supervised fine-tuning as a graph.
///
///            [ data ]  -> group
///
/// Examples come from a JSONL file (examples.h), or, without a file, from the tenant's environment:
/// its tasks and how it demonstrates them. A group is `group_size` examples and has no policy
/// version, so it never grows stale. The mask of an example covers what the policy says, each turn
/// with its end token as a sampled one has; prompts and observations are only read.
///
/// One of it (per tenant): a second would give the same examples under the same ordinals.
///
/// Threads: own thread (it reads a file). State: the next ordinal; example n of the run is a
/// function of n and the seed. Order: ordinals rise; those a resumed run has consumed are left out.
#pragma once

#include <memory>
#include <optional>

#include "actors/common/ordinals.h"
#include "actors/data/examples.h"
#include "actors/env/environment.h"
#include "actors/messages/rollout.h"
#include "graph/contract.h"
#include "kernels/text/tokenizer.h"

namespace primerl {

struct DataOptions {
  std::string model;               // whose tokenizer; empty = the only one
  std::string file;                // JSONL; empty = the environment demonstrates
  int64_t examples_max = 1000000;  // lines of the file
};

class Data final : public Actor {
 public:
  using Options = DataOptions;
  static Contract contract();
  explicit Data(const DataOptions& options) : options_(options) {}
  /// With an environment already made, whose demonstrations are taken instead of the file.
  Data(const DataOptions& options, std::unique_ptr<Environment> environment)
      : options_(options), environment_(std::move(environment)) {}

  Status start(Resources& resources) override;
  Result<bool> work() override;

 private:
  Result<DataExample> example(uint64_t index);
  /// The example's tokens, masked; failed when they cannot be made or do not fit.
  Trajectory trajectory(uint64_t index, const DataExample& example) const;
  Status fill(Trajectory& trajectory, const DataExample& example) const;
  /// `is_said`: by the policy, with an end token and under the mask.
  Status append(Trajectory& trajectory, const std::string& text, bool is_said) const;

  const DataOptions options_;
  // Constant after start.
  Tokenizer* tokenizer_ = nullptr;
  TenantSlot tenant_;
  OrdinalSet consumed_;
  std::vector<DataExample> examples_;         // of the file
  std::unique_ptr<Environment> environment_;  // that demonstrates; null: the file is read
  uint64_t shuffle_key_ = 0;
  uint32_t attempt_ = 0;
  // Touched only by handlers.
  uint64_t next_ordinal_ = 0;
  Out<TrajectoryGroup> group_;
};

}  // namespace primerl
