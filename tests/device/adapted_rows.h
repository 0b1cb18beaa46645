/// Adapters for tests: those of a linear, their deltas as sums in double on the host, and the rows
/// of a decode step that use them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/ops/cuda_adapters.h"
#include "tests/device/buffer.h"

namespace primerl::cuda_test {

/// A matrix of up to three parts, as q, k and v are, and slots of adapters of any rank.
struct AdaptedLinear {
  int64_t terms = 0;
  std::vector<int64_t> widths;

  int64_t columns() const;
  /// Elements of a part for each rank.
  int64_t size_of(int64_t width) const { return terms + (width + 7) / 8 * 8; }
  int64_t slot_stride() const;
  cuda::AddAdaptersArgs args(cuda::Type type) const;
};

/// before + the deltas of the tiles, one row after the other.
Floats wanted_of_tiles(const cuda::AddAdaptersArgs& args,
                       const std::vector<cuda::AdapterTile>& tiles, const Floats& slots,
                       const Floats& x, Floats before);

/// Rows of a decode step, read by a linear: tiles of one to eight rows, with ranks 4 to 64, without
/// an adapter, and with adapters that add to some of the parts.
class AdaptedRows {
 public:
  struct Change {
    bool has_small_tiles = false;  // tiles of one row each; must change nothing
    int32_t broken_slot = -1;      // a slot filled with NaN
  };
  AdaptedRows(cuda::Type type, int64_t rows, const AdaptedLinear& linear, uint64_t seed,
              Change change = {false, -1});

  /// The deltas of the adapters, [rows, columns].
  Floats sums() const;
  const cuda::LoraDelta* lora_delta() const { return &lora_delta_; }
  /// Whether the row uses values of `slot`.
  bool has_slot(int64_t row, int32_t slot) const;
  /// Computes u, then launches the operation that reads it.
  template <class Launch>
  cuda::Outcome before(const Launch& launch, cuda::Stream stream) const {
    const cuda::Outcome outcome = cuda::shrink_adapters(lora_delta_, stream);
    return outcome.is_ok() ? launch() : outcome;
  }

 private:
  const AdaptedLinear linear_;
  const std::vector<cuda::AdapterTile> tiles_;
  const std::vector<cuda::AdapterRow> rows_;
  const cuda::Type type_;
  const Floats slots_, x_;
  const Buffer on_slots_, on_x_, on_tiles_, on_rows_;
  cuda::LoraDelta lora_delta_;
  const Buffer u_;
};

}  // namespace primerl::cuda_test
