/// The tensors of a model: name, shape and offset of each parameter, and the Hugging Face tensors
/// it consists of. Engine, learner, checkpoint and weight channel use this one table.
///
/// Parameters with the same input form one matrix: q, k and v are [(heads + 2 kv_heads) * head_dim,
/// hidden], gate and up [2 width, hidden], the experts of a layer [experts, 2 width, hidden] and
/// [experts, hidden, width]. All are in one flat buffer; gradients and moments use buffers of the
/// same layout. So the optimizer, the clip and a snapshot each walk memory once. Untrained
/// parameters are at the end. Independent of torch; immutable after construction.
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
  std::string name;  // our name: "layers.3.attention.qkv"
  ParameterKind kind = ParameterKind::kMlp;
  std::vector<int64_t> shape;  // a matrix [outputs, inputs]; of experts [experts, outputs, inputs]
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
  /// For tensors that are not a model's: each parameter is one tensor with its own name and shape.
  explicit TensorTable(const std::vector<Parameter>& parameters);

  std::span<const Parameter> parameters() const { return parameters_; }
  /// The tensors as they are written, sorted by name.
  std::span<const TensorSlice> slices() const { return slices_; }
  /// Alternative tensors that are accepted when reading; each replaces several slices.
  std::span<const TensorSlice> fused() const { return fused_; }
  /// Null: the model has no parameter of that name.
  const Parameter* find(std::string_view name) const;
  /// Like find(); the parameter must exist.
  const Parameter& at(std::string_view name) const;

  bool is_tied() const { return find("head") == nullptr; }
  int64_t count() const { return count_; }                  // elements of the flat buffer
  int64_t trained_count() const { return trained_count_; }  // trained parameters come first
  /// Elements of all parameters, without the gaps between them.
  int64_t num_parameters() const;
  /// Layers whose tensors may be present but are not run: [first, first + second).
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

/// Tensors of a folder or a snapshot and the ranges they fill.
struct TensorMatch {
  struct Source {
    const WeightTensor* tensor = nullptr;
    const TensorSlice* slice = nullptr;
  };
  std::vector<Source> sources;  // together they fill the whole buffer
  /// Tensors of layers after the last, which are not run (multi-token prediction).
  std::vector<const WeightTensor*> unused;
  /// Angles of the rotary embedding that older programs saved: they follow from config.json.
  std::vector<const WeightTensor*> buffers;
};

/// Strict: one error names all missing, unknown and misshapen tensors. An extra `lm_head.weight` in
/// a tied model is ignored; without the embedding's tensor it is the embedding. `tensors` are
/// sorted by name and must stay valid while the match is used.
Result<TensorMatch> match_tensors(const TensorTable& table,
                                  const std::vector<WeightTensor>& tensors);

/// Why engines and learners of this build cannot run the model of a folder. Reads its config and
/// the headers of its weights, no data. kNotFound: only the weights are missing.
Status check_model_folder(const std::filesystem::path& folder);

/// Sentences about tensors of a usable folder that are passed over; empty without weights.
std::vector<std::string> unused_tensors_text(const std::filesystem::path& folder,
                                             const ModelConfig& config);

/// Elements [begin, begin + count) of a tensor of type F32, F16 or BF16, as fp32.
void convert_to_f32(const WeightTensor& tensor, int64_t begin, int64_t count, float* to);

/// Copies `tensors` into a flat buffer, as fp32. All or nothing; errors as in match_tensors().
Status fill_parameters(const TensorTable& table, const std::vector<WeightTensor>& tensors,
                       float* buffer);

/// Copies only the untrained parameters, as fp32: [table.count() - table.trained_count()], the end
/// of the buffer. `tensors` are all tensors of the model.
Status fill_untrained(const TensorTable& table, const std::vector<WeightTensor>& tensors,
                      float* buffer);

/// Random weights from a seed: matrices are normal with standard deviation `deviation`, norms 1,
/// biases 0. A pure function of seed, tensor name and element index.
void randomize_parameters(const TensorTable& table, uint64_t seed, double deviation, float* buffer);

/// The tensors of a buffer as views, kept alive by `owner`; without an owner, by the caller. The
/// values must not change while a view is in use.
std::vector<WeightTensor> view_parameters(const TensorTable& table, const float* buffer,
                                          std::shared_ptr<const void> owner = nullptr);
/// The same as views of one shared copy of the buffer.
std::vector<WeightTensor> copy_parameters(const TensorTable& table, const float* buffer);

}  // namespace primerl
