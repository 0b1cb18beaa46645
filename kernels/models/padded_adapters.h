/// Adapters of several ranks and targets in memory of one layout, so that one product can take all
/// of them.
///
/// Each has the rank of the largest, rounded up to kRankUnit, and all targets that one of them has.
/// What an adapter has not is 0: it adds 0, has a gradient of 0 and stays 0 in training. The A's
/// that read the same input lie one after the other; those of a matrix of experts lie expert after
/// expert, at equal distances, and so do the B's of each part. Torch-free; immutable after
/// construction.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kernels/models/adapter.h"

namespace primerl {

class PaddedAdapters {
 public:
  static constexpr int64_t kRankUnit = 16;  // what tensor cores take at a time

  /// One targeted linear: columns [column, column + outputs) of a matrix of the model, or of each
  /// expert's.
  struct Part {
    std::vector<std::string> modules;  // one, or by expert
    int64_t column = 0;
    int64_t outputs = 0;
    int64_t b = 0;  // offset of [groups, outputs, rank]
  };
  struct Matrix {
    size_t parameter = 0;  // of the model, index
    int64_t groups = 1;    // experts
    int64_t inputs = 0;
    int64_t a = 0;         // offset of [parts * rank, inputs]
    int64_t a_stride = 0;  // from a group's to the next one's
    std::vector<Part> parts;
  };

  /// `adapters` are valid, and at least one.
  PaddedAdapters(const TensorTable& model, std::span<const AdapterConfig> adapters);

  int64_t rank() const { return rank_; }
  /// Names as peft has them, in padded shapes.
  const TensorTable& tensors() const { return tensors_; }
  /// Null: no linear of that parameter of the model is targeted.
  const Matrix* matrix(size_t parameter) const;

  /// An adapter's numbers, laid out as its table is, to this layout, all of which is written, and
  /// back.
  void pad(const AdapterTable& adapter, const float* numbers, float* padded) const;
  void cut(const AdapterTable& adapter, const float* padded, float* numbers) const;

 private:
  /// Rows of numbers that both have.
  struct Piece {
    int64_t here = 0, there = 0;  // offsets
    int64_t rows = 0, width = 0;
    int64_t stride_here = 0;
  };
  std::vector<Piece> pieces_of(const AdapterTable& adapter) const;

  int64_t rank_ = 0;
  std::vector<Matrix> matrices_;  // by parameter
  TensorTable tensors_;
  std::map<std::string, int64_t> offsets_;  // by name of a tensor
};

}  // namespace primerl
