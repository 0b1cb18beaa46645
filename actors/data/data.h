/// Sends examples with given answers to the trainer: supervised fine-tuning as a graph.
///
///            [ data ]  -> group
///
/// Examples come from a JSONL file (examples.h). Without a file, they come from the tasks and
/// demonstrations of the tenant's environment. A group is `group_size` examples and has no policy
/// version, so it never becomes stale. The mask of an example covers the policy's text; each turn
/// ends with an end token, as a sampled turn does. Prompts and observations are not under the mask.
///
/// With `eval_file`, the groups of its examples come first. Their ordinals are those of
/// evaluations: they do not train, and the trainer measures their loss.
///
/// One instance per tenant: a second one would send the same examples under the same ordinals.
///
/// Threads: own thread (it reads a file). State: the next ordinal; example n of the run is a
/// function of n and the seed. Order: ordinals rise; a resumed run skips those that it has
/// consumed. With `[tenant.x] epochs` it stops after the last whole group of all epochs; each epoch
/// has every example once, in an order of its own.
#pragma once

#include <memory>
#include <optional>

#include "actors/common/ordinals.h"
#include "actors/common/tenant_chat.h"
#include "actors/data/examples.h"
#include "actors/env/environment.h"
#include "actors/messages/rollout.h"
#include "graph/contract.h"
#include "kernels/text/tokenizer.h"

namespace primerl {

struct DataOptions {
  std::string model;               // model whose tokenizer is used; empty = the only model
  std::string file;                // JSONL; empty = the environment demonstrates
  std::string file_sha256;         // of the file; "" = any
  int64_t file_bytes = -1;         // size of the file; -1 = any
  int64_t examples_max = 1000000;  // lines of the file
  std::string eval_file;           // JSONL of held-out examples; empty = none
  std::string eval_file_sha256;    // as those of `file`
  int64_t eval_file_bytes = -1;
};

class Data final : public Actor {
 public:
  using Options = DataOptions;
  static Contract contract();
  explicit Data(const DataOptions& options) : options_(options) {}
  /// With an environment that exists already; its demonstrations are used instead of the file.
  Data(const DataOptions& options, std::unique_ptr<Environment> environment)
      : options_(options), environment_(std::move(environment)) {}

  Status start(Resources& resources) override;
  Result<bool> work() override;

 private:
  Result<DataExample> example(uint64_t index);
  /// The example's tokens with their mask. The trajectory is failed if the tokens cannot be made or
  /// do not fit into seq_len.
  Trajectory trajectory(uint64_t index, const DataExample& example) const;
  /// Sends the next group of held-out examples.
  void send_held_out();
  Status fill(Trajectory& trajectory, const DataExample& example) const;

  const DataOptions options_;
  // Constant after start.
  Tokenizer* tokenizer_ = nullptr;
  /// The chat format, or why there is none: it counts only if an example needs it.
  std::optional<Result<chat::ChatFormat>> chat_;
  TenantSlot tenant_;
  OrdinalSet consumed_;
  std::vector<DataExample> examples_;         // of the file
  std::vector<DataExample> held_out_;         // of the evaluation's file
  std::unique_ptr<Environment> environment_;  // gives demonstrations; null: the file is used
  uint64_t shuffle_key_ = 0;
  uint32_t attempt_ = 0;
  // Touched only by handlers.
  uint64_t next_ordinal_ = 0;
  uint64_t next_held_out_ = 0;  // example
  Out<TrajectoryGroup> group_;
};

}  // namespace primerl
