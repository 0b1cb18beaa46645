/// Dropout of adapters as in peft: in a training step each A reads x with a part of its elements
/// set to 0 and the rest scaled by 1 / (1 - rate); the base reads all of x.
///
/// Random numbers are counter-based, in steps of 1 / 65536: a hash of the key, the row's random
/// key, the linear and the column. So other tenants, threads, the division into micro-batches and
/// repeated computation (recomputation, backward, replay) change nothing. Plain functions, any
/// thread.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/models/adapter.h"

namespace primerl {

struct AdapterDropout {
  double rate = 0;   // [0, 1)
  uint64_t key = 0;  // hash of seed, tenant and step

  bool is_there() const { return rate > 0; }
};

/// For optimizer step `step` of an adapter; its seed depends on the tenant's name.
AdapterDropout dropout_of(const AdapterConfig& config, int64_t step);
/// A 16-bit random number below it drops the element.
uint32_t dropout_threshold(double rate);
float dropout_scale(double rate);

/// The key of a row, shared by all linears of a step.
uint64_t row_key(const AdapterDropout& dropout, uint64_t row);

/// The definition: whether element `column` of row `row` is dropped for linear `module`.
bool is_element_dropped(const AdapterDropout& dropout, uint64_t module, uint64_t row,
                        int64_t column);

/// The random numbers of linear `module` for some rows, given their row_key(): [rows,
/// drawn_columns(columns)] (ops.h). `keys` are changed.
void draw_dropout(uint64_t module, std::span<uint64_t> keys, int64_t columns, uint16_t* draws);

/// y = x after dropout by `draws`, both [rows, columns]. `adds`: y += instead.
void apply_dropout(const AdapterDropout& dropout, int64_t rows, int64_t columns,
                   const uint16_t* draws, const float* x, float* y, bool adds);

}  // namespace primerl
