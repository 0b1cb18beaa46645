/// TransformersModel: a model that transformers computes in a Python worker, for families that
/// this program does not have (docs/formats/outside.md, "A model in a worker").
///
/// `score` and `generate` use it. A run does not: engines and learners need weights that change,
/// gradients and equal log-probabilities. Use it on one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/json.h"
#include "graph/base/result.h"
#include "kernels/engine/engine.h"
#include "runtime/cli/outside_asker.h"
#include "runtime/program/model_options.h"

namespace primerl {

/// Most ids of one call: prompt and completion, or a scored sequence.
inline constexpr size_t kTransformersIdsMax = 32768;

class TransformersModel {
 public:
  /// Starts the worker and loads the folder of `arguments`.
  static Result<std::unique_ptr<TransformersModel>> load(const ModelCommandArguments& arguments);

  /// The log-probability of every id after the first.
  Result<std::vector<float>> score(const std::vector<int32_t>& ids);

  /// Tokens until one ends the sequence, with their log-probabilities; stop texts do not end it.
  struct Sampled {
    std::vector<int32_t> tokens;
    std::vector<float> logprobs;
  };
  Result<Sampled> generate(const std::vector<int32_t>& ids, const SamplingParams& sampling,
                           uint64_t seed);

  const std::vector<int32_t>& end_ids() const { return end_ids_; }

 private:
  TransformersModel(OutsideSpec spec, std::string folder)
      : asker_(std::move(spec)), folder_(std::move(folder)) {}
  Result<Json> ask(const Json& body);
  Status check_ids(const std::vector<int32_t>& ids, size_t num_more) const;

  OutsideAsker asker_;
  const std::string folder_;
  int64_t vocab_size_ = 0;
  std::vector<int32_t> end_ids_;
};

/// The text of python/model_worker.py.
std::string_view model_worker_source();

/// `impl` is auto, native or transformers. True if transformers computes the folder; with auto it
/// does if this program cannot, and a note says why.
bool is_for_transformers(const std::string& impl, const std::string& folder);

/// The commands `generate` and `score`. They return exit codes.
int generate_with_transformers(const GenerateArguments& arguments);
int score_with_transformers(const ScoreArguments& arguments);

}  // namespace primerl
