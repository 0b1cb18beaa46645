/// The weights of a decoder as its stages read them.
///
/// A learner keeps all of them as fp32 masters in one flat buffer; its products read them there. An
/// engine keeps no such copy of a matrix: it packs the tensors it is given, whatever their type,
/// straight into panels (ops.h). What a learner does not train is packed as well: its products read
/// the panels, forward and backward, and an engine may have the same ones (frozen_weights.h).
/// Addresses are fixed for life. One thread at a time writes, which shares packing out over its
/// compute threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "kernels/models/tensors.h"
#include "kernels/ops/ops.h"

namespace primerl {

/// How products are computed. Invariant: linear_rows, equal to the bit in engine and learner, for
/// any number of rows and threads. Fast: what libtorch's vendor library does; an engine's are
/// linear_rows all the same, since that library is slower for the few rows of a decode step.
enum class Numerics : uint8_t { kInvariant, kFast };

/// "invariant" or "fast".
Numerics numerics_of(std::string_view name);

/// One weight matrix, or one of each expert: [groups, columns, terms].
struct Matrix {
  int64_t groups = 1;
  int64_t columns = 0;
  int64_t terms = 0;
  const float* plain = nullptr;   // row-major, or null
  const float* packed = nullptr;  // [groups] panels of linear_rows, or null
  size_t parameter = 0;           // of its table, index

  bool is_there() const { return plain != nullptr || packed != nullptr; }
};

class DecoderWeights {
 public:
  /// Packed, or flat to be trained.
  enum class Use : uint8_t { kEngine, kLearner };

  /// All weights are 0. `table` outlives it.
  DecoderWeights(const TensorTable& table, Numerics numerics, Use use);

  Numerics numerics() const { return numerics_; }
  const TensorTable& table() const { return table_; }
  int64_t count() const;  // numbers that it holds
  Matrix matrix(std::string_view name) const;
  Matrix matrix(size_t parameter) const;
  /// Null: the model has none of that name.
  const float* vector(std::string_view name) const;
  const float* vector(size_t parameter) const;

  /// Takes what a folder or a snapshot has; all or nothing (tensors.h).
  Status load(const std::vector<WeightTensor>& tensors);
  /// load() of weights that nobody reads yet, in parts: it begins, then load_more() until that is
  /// true. `tensors` live until then. A load that was begun before is given up.
  Status begin_load(const std::vector<WeightTensor>& tensors);
  /// Some `count` elements more, and at least one part; true: all are there.
  bool load_more(int64_t count);

  /// [table.count()]: of a learner.
  at::Tensor& flat() { return flat_; }

 private:
  /// Elements [begin, end) of a tensor that are copied, or rows that are packed into one panel.
  struct Part {
    const TensorMatch::Source* source = nullptr;
    int64_t begin = 0, end = 0;
    int64_t count = 0;  // elements
    bool is_packed = false;
  };
  void add_copies(const TensorMatch::Source& source);
  void add_panels(const TensorMatch::Source& source);
  void load(const Part& part);
  void pack(const Part& part);

  const TensorTable& table_;
  const Numerics numerics_;
  at::Tensor flat_;
  std::vector<at::Tensor> plain_;   // by parameter: undefined where it is in flat_, or only packed
  std::vector<at::Tensor> packed_;  // by parameter: undefined where it is not packed
  // Of a load that was begun.
  TensorMatch match_;
  std::vector<Part> parts_;
  size_t num_loaded_ = 0;  // parts
};

}  // namespace primerl
