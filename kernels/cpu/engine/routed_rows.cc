#include "kernels/cpu/engine/routed_rows.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace primerl {

RoutedRows::RoutedRows(const EngineOptions& options, const ModelConfig& config)
    : block_size_(options.block_size) {
  if (!options.routed_experts || !config.moe) return;
  num_layers_ = num_mixtures(config);
  per_token_ = config.moe->experts_per_token;
  is_wide_ = config.moe->num_experts - 1 > kNarrowExpertMax;
  layer_bytes_ = static_cast<size_t>(per_token_) * (is_wide_ ? 2U : 1U);
  row_bytes_ = layer_bytes_ * static_cast<size_t>(num_layers_);
  bytes_.resize(static_cast<size_t>(options.kv_blocks) * static_cast<size_t>(block_size_) *
                row_bytes_);
}

void RoutedRows::copy(std::span<const RowCopy> copies) {
  if (is_empty()) return;
  for (const RowCopy& copy : copies)
    std::memmove(at(copy.to, 0), at(copy.from, 0), static_cast<size_t>(copy.num_rows) * row_bytes_);
}

void RoutedRows::keep(int32_t layer, std::span<const int32_t> cache_rows, const int32_t* experts) {
  for (const int32_t row : cache_rows) {
    std::byte* to = at(row, layer);
    for (int32_t i = 0; i < per_token_; ++i, ++experts) {
      *to++ = static_cast<std::byte>(*experts & 0xff);
      if (is_wide_) *to++ = static_cast<std::byte>(*experts >> 8);
    }
  }
}

RoutedExperts RoutedRows::of(const Sequence& sequence, int32_t start) const {
  RoutedExperts routed{.bytes = {},
                       .start = start,
                       .num_layers = num_layers_,
                       .per_token = per_token_,
                       .is_wide = is_wide_};
  const auto& blocks = sequence.prefill != nullptr ? sequence.prefill->blocks : sequence.blocks;
  std::vector<std::byte> bytes;
  const int32_t end = sequence.size() - 1;
  for (int32_t position = start; position < end; ++position) {
    const int32_t block = blocks[static_cast<size_t>(position / block_size_)];
    const std::byte* from =
        bytes_.data() +
        static_cast<size_t>(block * block_size_ + position % block_size_) * row_bytes_;
    bytes.insert(bytes.end(), from, from + row_bytes_);
  }
  routed.bytes = Blob(std::move(bytes));
  return routed;
}

}  // namespace primerl
