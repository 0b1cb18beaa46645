#include "kernels/common/adapter_dropout.h"

#include "graph/base/random.h"
#include "kernels/ops/ops.h"

namespace primerl {
namespace {

constexpr int64_t kNumbersPerHash = 4;  // of 16 bits each
constexpr double kDraws = 65536;

}  // namespace

AdapterDropout dropout_of(const AdapterConfig& config, int64_t step) {
  return {config.dropout,
          mix(stable_hash("dropout", config.init_seed), static_cast<uint64_t>(step))};
}

uint32_t dropout_threshold(double rate) { return static_cast<uint32_t>(rate * kDraws); }

float dropout_scale(double rate) { return static_cast<float>(1 / (1 - rate)); }

uint64_t row_key(const AdapterDropout& dropout, uint64_t row) { return mix(dropout.key, row); }

bool is_element_dropped(const AdapterDropout& dropout, uint64_t module, uint64_t row,
                        int64_t column) {
  const uint64_t key = mix(row_key(dropout, row), module);
  const uint64_t draws = mix(key, static_cast<uint64_t>(column / kNumbersPerHash));
  const auto draw = static_cast<int32_t>(draws >> (16 * (column % kNumbersPerHash)) & 0xFFFF);
  return draw < static_cast<int32_t>(dropout_threshold(dropout.rate));
}

void draw_dropout(uint64_t module, std::span<uint64_t> keys, int64_t columns, uint16_t* draws) {
  for (uint64_t& key : keys) key = mix(key, module);
  cpu_ops().draw({.rows = static_cast<int64_t>(keys.size()),
                  .columns = columns,
                  .keys = keys.data(),
                  .draws = draws});
}

void apply_dropout(const AdapterDropout& dropout, int64_t rows, int64_t columns,
                   const uint16_t* draws, const float* x, float* y, bool adds) {
  cpu_ops().apply_dropout({.rows = rows,
                           .columns = columns,
                           .draws = draws,
                           .threshold = static_cast<int32_t>(dropout_threshold(dropout.rate)),
                           .scale = dropout_scale(dropout.rate),
                           .adds = adds,
                           .x = x,
                           .y = y});
}

}  // namespace primerl
