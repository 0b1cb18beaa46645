/// Several adapters of different ranks and targets, stored in one common layout, so that one GEMM
/// can compute all of them.
///
/// Each is padded to the largest rank, rounded up to kRankUnit, and to the union of the targets.
/// Padding is 0: it adds 0, has gradient 0 and stays 0 in training. The A's that read the same
/// input are adjacent. Those of an expert matrix are stored expert after expert, at equal
/// distances, and so are the B's of each part. Independent of torch; immutable after construction.
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
  static constexpr int64_t kRankUnit = 16;  // the K size of one tensor-core instruction

  /// One targeted linear: columns [column, column + outputs) of a matrix of the model, or of each
  /// expert's matrix.
  struct Part {
    std::vector<std::string> modules;  // one name, or one per expert
    int64_t column = 0;
    int64_t outputs = 0;
    int64_t b = 0;  // offset of [groups, outputs, rank]
  };
  struct Matrix {
    size_t parameter = 0;  // index of the model's parameter
    int64_t groups = 1;    // experts
    int64_t inputs = 0;
    int64_t a = 0;         // offset of [parts * rank, inputs]
    int64_t a_stride = 0;  // elements from one group to the next
    std::vector<Part> parts;
  };

  /// `adapters` are valid and not empty.
  PaddedAdapters(const TensorTable& model, std::span<const AdapterConfig> adapters);

  int64_t rank() const { return rank_; }
  /// peft's names, padded shapes.
  const TensorTable& tensors() const { return tensors_; }
  /// Null: no linear of that model parameter is targeted.
  const Matrix* matrix(size_t parameter) const;

  /// pad() copies an adapter's values from its own layout to this one and writes every element;
  /// unpad() copies them back.
  void pad(const AdapterTable& adapter, const float* numbers, float* padded) const;
  void cut(const AdapterTable& adapter, const float* padded, float* numbers) const;

 private:
  /// A block of rows that exists in both layouts.
  struct Piece {
    int64_t here = 0, there = 0;  // offsets
    int64_t rows = 0, width = 0;
    int64_t stride_here = 0;
  };
  std::vector<Piece> pieces_of(const AdapterTable& adapter) const;

  int64_t rank_ = 0;
  std::vector<Matrix> matrices_;  // by parameter
  TensorTable tensors_;
  std::map<std::string, int64_t> offsets_;  // by tensor name
};

}  // namespace primerl
