/// The tensors of a model: our name, shape and place of each parameter, and the Hugging Face
/// tensors it is made of. The one table that engine, learner, checkpoint and weight channel read.
///
/// Parameters of one product are one matrix: q, k and v are [(heads + 2 kv_heads) * head_dim,
/// hidden], gate and up [2 width, hidden], the experts of a layer [experts, 2 width, hidden] and
/// [experts, hidden, width]. All of them lie in one flat buffer (and gradients and moments in
/// others of the same layout), so that the optimizer, the clip and a snapshot are one pass over
/// memory; what is not trained lies at the end. Torch-free; immutable after construction.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/models/config.h"
#include "kernels/weights/snapshot.h"

namespace primerl {

enum class ParameterKind : uint8_t {
  kEmbedding,
  kHead,
  kNorm,
  kAttention,
  kMlp,
  kExperts,
  kSharedExpert,
  kRouter
};
std::string_view to_string(ParameterKind kind);

/// One matrix or vector that a stage uses.
struct Parameter {
  std::string name;  // ours: "layers.3.attention.qkv"
  ParameterKind kind = ParameterKind::kMlp;
  std::vector<int64_t> shape;  // a matrix [rows, terms]; of experts [experts, rows, terms]
  bool is_trained = true;
  int64_t offset = 0;  // in the flat buffer, in elements
  int64_t count = 0;
};

/// One Hugging Face tensor: elements [offset, offset + count) of the flat buffer.
struct TensorSlice {
  std::string name;
  std::vector<int64_t> shape;
  size_t parameter = 0;  // index
  int64_t offset = 0;
  int64_t count = 0;
};

class TensorTable {
 public:
  explicit TensorTable(const ModelConfig& config);
  /// Of other tensors than a model's: each parameter is one tensor, of its own name and shape.
  explicit TensorTable(const std::vector<Parameter>& parameters);

  std::span<const Parameter> parameters() const { return parameters_; }
  /// As they are written, sorted by name.
  std::span<const TensorSlice> slices() const { return slices_; }
  /// Other spellings that are read as well, each in the place of several slices.
  std::span<const TensorSlice> fused() const { return fused_; }
  /// Null: the model has none of that name.
  const Parameter* find(std::string_view name) const;
  /// That there is one is certain.
  const Parameter& at(std::string_view name) const;

  bool is_tied() const { return find("head") == nullptr; }
  int64_t count() const { return count_; }                  // elements of the flat buffer
  int64_t trained_count() const { return trained_count_; }  // the first ones are trained
  /// Elements of all parameters, without the gaps between them.
  int64_t num_parameters() const;
  /// Layers whose tensors may be there and that nothing here runs: [first, first + second).
  std::pair<int32_t, int32_t> unused_layers() const { return unused_layers_; }

 private:
  friend class TensorTableBuilder;
  std::vector<Parameter> parameters_;
  std::vector<TensorSlice> slices_;
  std::vector<TensorSlice> fused_;
  int64_t count_ = 0;
  int64_t trained_count_ = 0;
  std::pair<int32_t, int32_t> unused_layers_;
};

/// Tensors of a folder or a snapshot and the places they fill.
struct TensorMatch {
  struct Source {
    const WeightTensor* tensor = nullptr;
    const TensorSlice* slice = nullptr;
  };
  std::vector<Source> sources;  // fill the whole buffer
  /// Of layers after the last, which nothing here runs (multi-token prediction).
  std::vector<const WeightTensor*> unused;
};

/// Strict: all missing, unknown and misshapen tensors are named in one error. A `lm_head.weight`
/// that a tied model carries anyway is ignored. `tensors` are sorted by name and outlive the match.
Result<TensorMatch> match_tensors(const TensorTable& table,
                                  const std::vector<WeightTensor>& tensors);

/// Why engines and learners of this build cannot run the model of a folder; reads its config and
/// the headers of its weights, no data. kNotFound: all is well but that there are no weights.
Status check_model_folder(const std::filesystem::path& folder);

/// Elements [begin, begin + count) of a tensor of type F32, F16 or BF16, as fp32.
void convert_to_f32(const WeightTensor& tensor, int64_t begin, int64_t count, float* to);

/// Copies `tensors` into a flat buffer, as fp32. All or nothing; errors as match_tensors().
Status fill_parameters(const TensorTable& table, const std::vector<WeightTensor>& tensors,
                       float* buffer);

/// Those that are not trained, as fp32: [table.count() - table.trained_count()] of its buffer's
/// end. `tensors` are all of the model's.
Status fill_untrained(const TensorTable& table, const std::vector<WeightTensor>& tensors,
                      float* buffer);

/// Random weights of a seed: matrices normal with deviation `deviation`, norms 1, biases 0. A pure
/// function of seed, tensor name and place in it.
void randomize_parameters(const TensorTable& table, uint64_t seed, double deviation, float* buffer);

/// The tensors of a buffer as views of it, which `owner` keeps alive; without an owner the caller
/// does. Its numbers must not change while a view is in use.
std::vector<WeightTensor> view_parameters(const TensorTable& table, const float* buffer,
                                          std::shared_ptr<const void> owner = nullptr);
/// The same of one shared copy of it.
std::vector<WeightTensor> copy_parameters(const TensorTable& table, const float* buffer);

}  // namespace primerl
