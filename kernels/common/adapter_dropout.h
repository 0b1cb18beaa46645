/// Dropout of adapters as peft has it: in a training step each A reads x with a part of its numbers
/// left out and the rest scaled by 1 / (1 - rate); the base reads all of x.
///
/// Which numbers are left out is drawn by counter, in steps of 1 / 65536: a hash of the key, the
/// row's name, the linear and the number's place in the row. So neighbours, threads, the cut into
/// micro-batches and a second look (recomputation, backward, replay) change nothing. Plain
/// functions, any thread.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/models/adapter.h"

namespace primerl {

struct AdapterDropout {
  double rate = 0;   // [0, 1)
  uint64_t key = 0;  // of seed, tenant and step

  bool is_there() const { return rate > 0; }
};

/// Of optimizer step `step` of an adapter: its seed is of the tenant's name.
AdapterDropout dropout_of(const AdapterConfig& config, int64_t step);
/// Draws of 65536 that leave a number out: those below it.
uint32_t dropout_threshold(double rate);
float dropout_scale(double rate);

/// A row as all linears of a step know it.
uint64_t row_key(const AdapterDropout& dropout, uint64_t row);

/// Whether number `column` of row `row` is left out for linear `module`: the definition.
bool is_left_out(const AdapterDropout& dropout, uint64_t module, uint64_t row, int64_t column);

/// What is drawn for linear `module` and the numbers of some rows, by their row_key():
/// [rows, drawn_columns(columns)] (ops.h). `keys` are changed.
void draw_left_out(uint64_t module, std::span<uint64_t> keys, int64_t columns, uint16_t* draws);

/// y = what is left of x, [rows, columns] both, after what was drawn. `adds`: y += instead.
void drop_out(const AdapterDropout& dropout, int64_t rows, int64_t columns, const uint16_t* draws,
              const float* x, float* y, bool adds);

}  // namespace primerl
