/// Rotary embedding: the rotation angles of queries and keys, with the scalings that extend a
/// model's context. A plain value.
///
/// Pair j of a head rotates by position * frequency_j. frequency_j = theta^(-2j / rotary_dim), then
/// scaled: "linear" divides by `factor`; "llama3" divides only the low frequencies; "yarn" (arXiv
/// 2309.00071) interpolates between both and scales cosine and sine.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "graph/base/result.h"
#include "kernels/models/config_reader.h"

namespace primerl {

struct RopeConfig {
  std::string kind = "default";  // or "linear", "llama3", "yarn"; "dynamic" is read as "default"
  double theta = 10000.0;
  double factor = 1.0;
  double low_freq_factor = 1.0;          // llama3
  double high_freq_factor = 4.0;         // llama3
  double original_max_positions = 8192;  // llama3, yarn
  double beta_fast = 32;                 // yarn: rotations in the original context at the fast end
  double beta_slow = 1;                  // yarn: at the slow end
  bool truncate = true;                  // yarn: round the ends of the interpolation to whole
                                         // numbers
  double attention_factor = 1.0;         // yarn: multiplies cosine and sine
  double partial_factor = 0;             // share of head_dim that is rotated; 0: not set, all of it

  friend bool operator==(const RopeConfig&, const RopeConfig&) = default;
};

/// Reads `rope_theta`, and `rope_parameters` or `rope_scaling`. Sets `rope.partial_factor` only if
/// it is given there. Adds their keys that are not known to `unknown`, quoted.
Status read_rope(ConfigReader& reader, int32_t max_positions, RopeConfig& rope,
                 std::vector<std::string>& unknown);

/// The inverse frequency of each rotated pair, scaling applied: [rotary_dim / 2].
std::vector<float> rope_frequencies(const RopeConfig& rope, int32_t rotary_dim);

/// Cosine and sine of the angles at positions [begin, end): [end - begin, frequencies] each.
void write_rope_angles(const RopeConfig& rope, std::span<const float> frequencies, int64_t begin,
                       int64_t end, float* cosine, float* sine);

}  // namespace primerl
