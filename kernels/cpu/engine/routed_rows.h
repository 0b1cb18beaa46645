/// RoutedRows: the experts that a mixture chose for each cached token. They are kept beside the KV
/// cache, by cache row, so a token that another sequence finds in the prefix cache has them too.
///
/// Not thread-safe: lives on its engine's thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "graph/base/blob.h"
#include "kernels/cpu/stages/stage.h"
#include "kernels/engine/options.h"
#include "kernels/engine/routed_experts.h"
#include "kernels/engine/sequence.h"

namespace primerl {

class RoutedRows {
 public:
  /// Keeps nothing, unless the options ask for it and the model has experts.
  RoutedRows(const EngineOptions& options, const ModelConfig& config);

  bool is_empty() const { return bytes_.empty(); }
  void copy(std::span<const RowCopy> copies);
  /// The experts of a step's rows in the `layer`-th mixture of the model: [rows, per_token].
  void keep(int32_t layer, std::span<const int32_t> cache_rows, const int32_t* experts);
  /// The experts of the sequence's tokens from `start` on, without its last token, which no step
  /// has computed.
  RoutedExperts of(const Sequence& sequence, int32_t start) const;

 private:
  std::byte* at(int32_t cache_row, int32_t layer) {
    return bytes_.data() + static_cast<size_t>(cache_row) * row_bytes_ +
           static_cast<size_t>(layer) * layer_bytes_;
  }

  const int32_t block_size_;
  int32_t num_layers_ = 0;  // with a mixture
  int32_t per_token_ = 0;
  bool is_wide_ = false;
  size_t layer_bytes_ = 0, row_bytes_ = 0;
  std::vector<std::byte> bytes_;  // [cache rows, layers, per_token]
};

}  // namespace primerl
