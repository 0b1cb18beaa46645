/// A tensor of the Tinker wire: a vector or a matrix, dense or sparse by rows. Pure, any thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "graph/base/result.h"

namespace primerl::tinker {

/// Most cells of one tensor, listed or not.
inline constexpr int64_t kTensorCellsMax = int64_t{1} << 24;

struct WireTensor {
  enum class Type : uint8_t { kFloat32 = 1, kInt64 = 2, kInt32 = 3, kBfloat16 = 4 };
  Type type = Type::kFloat32;
  int64_t num_rows = 0;
  int64_t num_columns = 0;      // 0: a vector
  std::string_view values;      // of the listed cells, by rows; the bytes of the request
  bool is_sparse = false;       // else every cell is listed
  std::vector<int64_t> listed;  // sparse: row * num_columns + column of each value, rising

  int64_t num_cells() const { return num_columns == 0 ? num_rows : num_rows * num_columns; }
  int64_t num_values() const;
  bool is_integer() const { return type == Type::kInt64 || type == Type::kInt32; }
};

/// Refuses a shape, sizes or indices that do not fit, by name.
Result<WireTensor> read_tensor(std::string_view message);

/// The values of `cells`, which rise and have all that a sparse tensor lists; empty: of all cells.
/// A cell that is not listed is 0. Integers become floats; bf16 is exact.
std::vector<float> floats_of(const WireTensor& tensor, const std::vector<int64_t>& cells);
/// The same of an integer tensor. Refuses values outside of [0, 2^31).
Result<std::vector<int32_t>> ids_of(const WireTensor& tensor, const std::vector<int64_t>& cells);

}  // namespace primerl::tinker
