/// RoutedExperts: which experts a mixture of experts chose for the tokens of a sequence. Pure
/// values.
#pragma once

#include <cstdint>
#include <string_view>

#include "graph/base/blob.h"
#include "graph/base/result.h"

namespace primerl {

/// Experts above this number need two bytes.
inline constexpr int32_t kNarrowExpertMax = 255;

/// Row i has the experts of position start + i: of each layer with experts the chosen ones, the
/// most important first.
struct RoutedExperts {
  Blob bytes;  // [num_rows, num_layers, per_token], little-endian; empty: none are reported
  int32_t start = 0;
  int32_t num_layers = 0;
  int32_t per_token = 0;
  bool is_wide = false;  // two bytes an expert, else one

  size_t row_bytes() const {
    return static_cast<size_t>(num_layers) * static_cast<size_t>(per_token) * (is_wide ? 2U : 1U);
  }
  size_t num_rows() const { return row_bytes() == 0 ? 0 : bytes.size() / row_bytes(); }

  template <class F>
  static void fields(F& f) {
    using R = RoutedExperts;
    f("bytes", &R::bytes)("start", &R::start)("num_layers", &R::num_layers)(
        "per_token", &R::per_token)("is_wide", &R::is_wide);
  }
};

}  // namespace primerl
