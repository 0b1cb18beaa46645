/// Gives given answers to the trainer: supervised fine-tuning as a graph.
///
///            [ data ]  -> group
///
/// Examples come from a JSONL file of {"prompt", "completion"} objects, or, without a file, from
/// the tenant's environment: its tasks and its own answers. A group is `group_size` examples with a
/// mask over the completion and no policy version, so it never grows stale.
///
/// Threads: own thread (it reads a file). State: the next ordinal; example n of the run is a
/// function of n and the seed. Order: ordinals rise; those a resumed run has consumed are left out.
#pragma once

#include <memory>
#include <optional>

#include "actors/common/ordinals.h"
#include "actors/env/environment.h"
#include "actors/messages/rollout.h"
#include "graph/contract.h"
#include "kernels/text/tokenizer.h"

namespace primerl {

struct DataOptions {
  std::string model;               // whose tokenizer; empty = the only one
  std::string file;                // JSONL; empty = the environment's answers
  int64_t examples_max = 1000000;  // lines of the file
};

/// One line of the file.
struct DataExample {
  std::string prompt;
  std::string completion;
};

/// Reads a JSONL file; an error names the line. More than `examples_max` lines are an error.
Result<std::vector<DataExample>> read_examples(const std::string& file, int64_t examples_max);

/// Which of `count` examples is number `index` of the run: each pass over the file has an order of
/// its own, keyed by `key`. A permutation of each pass.
uint64_t shuffled_index(uint64_t index, uint64_t count, uint64_t key);

class Data final : public Actor {
 public:
  using Options = DataOptions;
  static Contract contract();
  explicit Data(const DataOptions& options) : options_(options) {}

  Status start(Resources& resources) override;
  Result<bool> work() override;

 private:
  Result<DataExample> example(uint64_t index);
  /// Prompt, completion and an end token, masked; failed when it does not fit.
  Trajectory trajectory(uint64_t index, const DataExample& example) const;

  const DataOptions options_;
  // Constant after start.
  Tokenizer* tokenizer_ = nullptr;
  TenantSlot tenant_;
  OrdinalSet consumed_;
  std::vector<DataExample> examples_;         // of the file
  std::unique_ptr<Environment> environment_;  // without one
  uint64_t shuffle_key_ = 0;
  uint32_t attempt_ = 0;
  // Touched only by handlers.
  uint64_t next_ordinal_ = 0;
  Out<TrajectoryGroup> group_;
};

}  // namespace primerl
