#include "kernels/torch/adapter_dropout.h"

#include <algorithm>

#include "graph/base/random.h"

namespace primerl {
namespace {

constexpr int64_t kDrawsOfBlock = 4;  // of 16 bits each
constexpr double kDraws = 65536;

/// Of the columns of a row from kDrawsOfBlock * block on.
uint64_t draws_of(uint64_t key, int64_t block) { return mix(key, static_cast<uint64_t>(block)); }

uint64_t draw(uint64_t draws, int64_t index) { return draws >> (16 * index) & 0xFFFF; }

uint64_t key_of(const AdapterDropout& dropout, uint64_t module, uint64_t row) {
  return mix(mix(dropout.key, row), module);
}

}  // namespace

AdapterDropout dropout_of(const AdapterConfig& config, int64_t step) {
  return {config.dropout,
          mix(stable_hash("dropout", config.init_seed), static_cast<uint64_t>(step))};
}

uint32_t dropout_threshold(double rate) { return static_cast<uint32_t>(rate * kDraws); }

float dropout_scale(double rate) { return static_cast<float>(1 / (1 - rate)); }

bool is_left_out(const AdapterDropout& dropout, uint64_t module, uint64_t row, int64_t column) {
  const uint64_t draws = draws_of(key_of(dropout, module, row), column / kDrawsOfBlock);
  return draw(draws, column % kDrawsOfBlock) < dropout_threshold(dropout.rate);
}

void drop_out(const AdapterDropout& dropout, uint64_t module, std::span<const uint64_t> rows,
              int64_t columns, const float* x, float* y, bool adds) {
  const uint64_t threshold = dropout_threshold(dropout.rate);
  const float scale = dropout_scale(dropout.rate);
  for (const uint64_t row : rows) {
    const uint64_t key = key_of(dropout, module, row);
    for (int64_t first = 0; first < columns; first += kDrawsOfBlock) {
      const uint64_t draws = draws_of(key, first / kDrawsOfBlock);
      const int64_t count = std::min(kDrawsOfBlock, columns - first);
      for (int64_t i = 0; i < count; ++i) {
        const float left = draw(draws, i) < threshold ? 0 : scale * x[first + i];
        y[first + i] = adds ? y[first + i] + left : left;
      }
    }
    x += columns;
    y += columns;
  }
}

}  // namespace primerl
