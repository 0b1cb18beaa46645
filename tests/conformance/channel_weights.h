/// Weights for tests of weight channels: small tensors in which every byte depends on the version,
/// so that a wrong version is detected.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "graph/base/random.h"
#include "kernels/weights/manifest.h"

namespace primerl {

struct WeightsShape {
  int64_t num_rows = 33;  // no power of two, nor a multiple of one
  std::string last = "b.buffer";
};

inline WeightTensor channel_tensor(std::string name, DataType type, std::vector<int64_t> shape,
                                   int64_t version) {
  const TensorFacts facts{name, type, shape};
  std::vector<std::byte> bytes(num_bytes(facts).value());
  const uint64_t key = stable_hash(name, static_cast<uint64_t>(version));
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(mix(key, i / 8) >> (8 * (i % 8)));
  return {std::move(name), type, std::move(shape), Blob(std::move(bytes))};
}

/// Two matrices and a buffer.
inline std::shared_ptr<const WeightSnapshot> channel_weights(int64_t version,
                                                             WeightsShape shape = {}) {
  auto snapshot = std::make_shared<WeightSnapshot>();
  snapshot->version = PolicyVersion(version);
  snapshot->tensors.push_back(
      channel_tensor("a.weight", DataType::kF32, {shape.num_rows, 65}, version));
  snapshot->tensors.push_back(channel_tensor("a.weight_scale", DataType::kBF16, {}, version));
  snapshot->tensors.push_back(channel_tensor(shape.last, DataType::kU8, {7, 0, 3}, version));
  snapshot->tensors.push_back(channel_tensor("c.positions", DataType::kI64, {129}, version));
  return snapshot;
}

/// Weights of a key; no byte is equal to that of another key with the same version number.
inline std::shared_ptr<const WeightSnapshot> channel_weights_of(WeightsKey key, int64_t version) {
  const int64_t own = 1'000'000 * key.tenant.value + 10'000'000 * key.adapter.value + version;
  auto snapshot = *with_key(*channel_weights(own), key);
  snapshot.version = PolicyVersion(version);
  return std::make_shared<const WeightSnapshot>(std::move(snapshot));
}

inline bool are_same(const WeightSnapshot& one, const WeightSnapshot& other) {
  if (one.name() != other.name() || one.tensors.size() != other.tensors.size()) return false;
  for (size_t i = 0; i < other.tensors.size(); ++i) {
    const auto& a = one.tensors[i];
    const auto& b = other.tensors[i];
    if (a.name != b.name || a.type != b.type || a.shape != b.shape || !(a.bytes == b.bytes))
      return false;
  }
  return true;
}

/// Whether every byte of `snapshot` belongs to `version`.
inline bool is_whole(const WeightSnapshot& snapshot, int64_t version, WeightsShape shape = {}) {
  return are_same(snapshot, *channel_weights(version, shape));
}

}  // namespace primerl
