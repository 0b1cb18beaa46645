#include "kernels/engine/kv_layout.h"

#include <fmt/format.h>

namespace primerl {

int64_t KvLayout::bytes_per_token() const {
  int64_t bytes = 0;
  for (const KvGroup& group : groups)
    for (const KvPlane& plane : group.planes)
      bytes += plane.width * static_cast<int64_t>(size_in_bytes(plane.type));
  return bytes;
}

double KvLayout::cache_bytes(int64_t num_blocks, int64_t block_size) const {
  return static_cast<double>(bytes_per_token()) * static_cast<double>(num_blocks) *
         static_cast<double>(block_size);
}

std::string KvLayout::text() const {
  std::string text;
  for (const KvGroup& group : groups) {
    text += fmt::format("{}{}:", text.empty() ? "" : "; ", group.name);
    const char* before = " ";
    for (const KvPlane& plane : group.planes) {
      text += fmt::format("{}{}.{} {} {}", before, plane.layer, plane.name, to_string(plane.type),
                          plane.width);
      before = ", ";
    }
  }
  return text;
}

KvLayout kv_layout(const ModelConfig& config, DataType type) {
  const int64_t width =
      static_cast<int64_t>(config.attention.num_kv_heads) * config.attention.head_dim;
  KvGroup group{.name = "all", .planes = {}};
  for (int32_t layer = 0; layer < config.num_layers(); ++layer)
    for (const char* name : {"keys", "values"}) group.planes.push_back({layer, name, type, width});
  return {.groups = {std::move(group)}};
}

}  // namespace primerl
