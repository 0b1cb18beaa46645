/// Search for NaN and infinity. Any thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <cmath>
#include <string>

namespace primerl {

/// "nan at row 3, column 17", for the first element of fp32 rows that is not finite; "" if all are
/// finite, and for rows of integers.
inline std::string first_not_finite(const at::Tensor& rows) {
  if (rows.scalar_type() != at::kFloat || rows.numel() == 0) return {};
  const int64_t width = rows.size(-1);
  const float* data = rows.const_data_ptr<float>();
  for (int64_t i = 0; i < rows.numel(); ++i)
    if (!std::isfinite(data[i]))
      return fmt::format("{} at row {}, column {}", data[i], i / width, i % width);
  return {};
}

}  // namespace primerl
