/// The weights of a decoder in the layout that its stages read.
///
/// A learner keeps all of them as fp32 masters in one flat buffer, which its GEMMs read. An engine
/// keeps no such copy of a matrix: it packs the given tensors, of any type, directly into panels
/// (ops.h). Frozen weights of a learner are packed as well: its GEMMs read the panels, forward and
/// backward, and an engine may share them (frozen_weights.h). Addresses never change. One thread at
/// a time writes, and divides packing over its compute threads.
///
/// With FP8 numbers the GEMMs of FP8 matrices (fp8_matrices.h) read rounded numbers: those that
/// e4m3 codes with a scale for each 128 x 128 stand for. An engine rounds its panels in place; a
/// learner keeps its masters, and a rounded copy of those matrices. Both round the fp32 values of
/// the same tensors, so their bits are equal.
///
/// With bf16 numbers the GEMMs of bf16 matrices (bf16_matrices.h) read bf16 numbers. An engine
/// packs those matrices as bf16; a learner keeps its masters only, and its GEMMs round what they
/// read.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "kernels/models/tensors.h"
#include "kernels/ops/ops.h"

namespace primerl {

/// How GEMMs are computed. Invariant: linear_rows, with the same bits in engine and learner, for
/// any number of rows and threads. Fast: libtorch's vendor library. Engines use linear_rows in both
/// cases, since that library is slower for the few rows of a decode step.
enum class Numerics : uint8_t { kInvariant, kFast };

/// "invariant" or "fast".
Numerics numerics_of(std::string_view name);

/// What GEMMs read: the fp32 numbers, those rounded to bf16, or FP8 numbers with block scales.
enum class GemmNumbers : uint8_t { kDtype, kBf16, kFp8 };

/// "dtype", "bf16" or "fp8".
GemmNumbers gemm_numbers_of(std::string_view name);

/// One weight matrix, or one of each expert: [groups, columns, terms].
struct Matrix {
  int64_t groups = 1;
  int64_t columns = 0;
  int64_t terms = 0;
  const float* plain = nullptr;           // row-major, or null
  const float* packed = nullptr;          // [groups] panels of linear_rows, or null
  const uint16_t* packed_bf16 = nullptr;  // [groups] panels of linear_bf16, or null
  size_t parameter = 0;                   // index in its table
  bool is_bf16 = false;                   // its GEMMs are linear_bf16
  bool is_fp8 = false;                    // its numbers are rounded, and its GEMMs round their rows

  bool is_packed() const { return packed != nullptr || packed_bf16 != nullptr; }
  bool is_there() const { return plain != nullptr || is_packed(); }
};

class DecoderWeights {
 public:
  /// kEngine: packed. kLearner: flat, to be trained.
  enum class Use : uint8_t { kEngine, kLearner };

  /// All weights are 0. `table` must stay valid while this exists.
  DecoderWeights(const TensorTable& table, Numerics numerics, Use use,
                 GemmNumbers numbers = GemmNumbers::kDtype);

  Numerics numerics() const { return numerics_; }
  const TensorTable& table() const { return table_; }
  int64_t count() const;  // floats that it stores, where two bf16 numbers count as one
  Matrix matrix(std::string_view name) const;
  Matrix matrix(size_t parameter) const;
  /// Null: the model has no parameter of that name.
  const float* vector(std::string_view name) const;
  const float* vector(size_t parameter) const;

  /// Loads the tensors of a folder or a snapshot; all or nothing (tensors.h). FP8 matrices with a
  /// number that is NaN or infinite are refused, since such a block has no scale.
  Status load(const std::vector<WeightTensor>& tensors);
  /// Why load() would refuse the tensors. It writes nothing, and drops an unfinished load.
  Status check(const std::vector<WeightTensor>& tensors);
  /// load() in parts, for weights that are not read yet: begin_load(), then load_more() until it is
  /// true. `tensors` must stay valid until then. An unfinished earlier load is dropped.
  Status begin_load(const std::vector<WeightTensor>& tensors);
  /// Loads `count` more elements, and at least one part; true: complete, or refused.
  bool load_more(int64_t count);
  /// Why the tensors of the last load are refused; nothing was written then.
  Status load_status() const;
  /// In a learner, after its masters changed: rounds the FP8 matrices again. An error names the
  /// tensor that has NaN or infinity.
  Status round();
  /// Whether round() may fail: some matrices are FP8.
  bool has_scales() const { return numbers_ == GemmNumbers::kFp8; }

  /// [table.count()]: only in a learner.
  at::Tensor& flat() { return flat_; }

 private:
  static constexpr size_t kNone = std::numeric_limits<size_t>::max();

  /// Elements [begin, end) of a tensor that are checked or copied, rows that are packed into one
  /// panel, or a row of blocks of a parameter that is rounded.
  struct Part {
    enum class Work : uint8_t { kCheck, kCopy, kPack, kRound };
    Work work = Work::kCopy;
    const TensorMatch::Source* source = nullptr;
    size_t parameter = 0;
    int64_t begin = 0, end = 0;
    int64_t count = 0;  // elements
  };
  void add_copies(const TensorMatch::Source& source, Part::Work work);
  void add_panels(const TensorMatch::Source& source);
  void add_rounding(std::vector<Part>& parts) const;
  void load(size_t index);
  void copy(const Part& part);
  void pack(const Part& part);
  /// False: a block has NaN or infinity.
  bool round(const Part& part);
  bool is_fp8(size_t parameter) const;
  bool is_bf16(size_t parameter) const;

  const TensorTable& table_;
  const Numerics numerics_;
  const GemmNumbers numbers_;
  at::Tensor flat_;
  std::vector<at::Tensor> plain_;    // by parameter: undefined if it is in flat_, or only packed
  std::vector<at::Tensor> packed_;   // by parameter: undefined if it is not packed; fp32 or bf16
  std::vector<at::Tensor> rounded_;  // by parameter: undefined if it is not FP8, or in an engine
  // For a load in progress.
  TensorMatch match_;
  std::vector<Part> parts_;
  std::vector<size_t> stage_ends_;       // parts of a stage need all those of the stages before
  size_t num_loaded_ = 0;                // parts
  std::atomic<size_t> refused_ = kNone;  // the first part that was refused
};

}  // namespace primerl
