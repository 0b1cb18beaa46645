/// KvLayout: what the KV cache of an engine has for each token, and in which form.
///
/// A layout has groups of layers. Sequences have one block table for each group; today every model
/// has one group. In a group, each layer has planes: arrays with `width` numbers for each token.
/// The layout decides the size of the cache, and it is part of the names of blocks (block_hash.h),
/// so caches of two layouts never share a block. A plain value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/models/config.h"
#include "kernels/weights/snapshot.h"

namespace primerl {

/// One array of a layer: [cache rows, width].
struct KvPlane {
  int32_t layer = 0;
  std::string name;  // "keys", "values"
  DataType type = DataType::kF32;
  int64_t width = 0;  // numbers for each token

  friend bool operator==(const KvPlane&, const KvPlane&) = default;
};

/// Layers that share a block table.
struct KvGroup {
  std::string name;
  std::vector<KvPlane> planes;

  friend bool operator==(const KvGroup&, const KvGroup&) = default;
};

struct KvLayout {
  std::vector<KvGroup> groups;

  /// The sum over all planes of all groups.
  int64_t bytes_per_token() const;
  /// The size of a whole cache; a double, because the product may exceed the range of an integer.
  double cache_bytes(int64_t num_blocks, int64_t block_size) const;
  /// Equal for equal layouts alone: "all: 0.keys F32 256, 0.values F32 256".
  std::string text() const;

  friend bool operator==(const KvLayout&, const KvLayout&) = default;
};

/// The layout of a model's cache: one group "all" with keys and values of each layer.
KvLayout kv_layout(const ModelConfig& config, DataType type);

}  // namespace primerl
