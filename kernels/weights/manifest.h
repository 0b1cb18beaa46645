/// WeightManifest: names, types and shapes of a policy's weights, without bytes; and VersionRecord:
/// the checksums of one version.
///
/// Every weight channel between processes uses them. The publisher's manifest of a key is made from
/// its first version and never changes. A receiver passes its engine's manifest to
/// WeightChannel::expect(). The two are compared once, at the first version: unknown, missing and
/// misshapen tensors are found before a byte of data is read, and named with both shapes. Buffers
/// are tensors like parameters. Values, no threads; decoders check everything.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/weights/snapshot.h"

namespace primerl {

inline constexpr size_t kManifestTensorsMax = 1'000'000;
inline constexpr size_t kManifestBytesMax = 256'000'000;  // encoded

/// One tensor without its bytes.
struct TensorFacts {
  std::string name;
  DataType type = DataType::kF32;
  std::vector<int64_t> shape;

  friend bool operator==(const TensorFacts&, const TensorFacts&) = default;
};

/// "F32 [4, 8]".
std::string describe(const TensorFacts& facts);
/// Size of its data; kInvalid if it exceeds 64 bits.
Result<uint64_t> num_bytes(const TensorFacts& facts);

struct WeightManifest {
  std::vector<TensorFacts> tensors;  // sorted by name, names unique

  bool empty() const { return tensors.empty(); }
  /// Equal manifests have equal hashes, in every process.
  uint64_t hash() const;
  friend bool operator==(const WeightManifest&, const WeightManifest&) = default;
};

/// One published version: its manifest's hash, and the CRC-32C of each tensor's bytes in the
/// manifest's order.
struct VersionRecord {
  KeyedVersion version;
  uint64_t manifest_hash = 0;
  std::vector<uint32_t> checks;

  friend bool operator==(const VersionRecord&, const VersionRecord&) = default;
};

/// The manifest of a snapshot, on host or device. kInvalid if tensors are not sorted, a name occurs
/// twice, or a size does not match a shape.
Result<WeightManifest> manifest_of(const WeightSnapshot& snapshot);

/// Checks that `offered` is exactly `wanted`. The error names unknown, missing and misshapen
/// tensors (the first eight, then how many more), the latter with both shapes.
Status check_offered(const WeightManifest& wanted, const WeightManifest& offered);

/// The same, but F32 may be offered as BF16 or F16: engines convert when they apply it.
Status check_taken(const WeightManifest& wanted, const WeightManifest& offered);

/// The error for a tensor whose bytes differ from the published ones.
Error wrong_check(const KeyedVersion& version, const TensorFacts& tensor, uint32_t found,
                  uint32_t wanted);

/// Compares every tensor's bytes with the record.
Status check_bytes(const WeightSnapshot& snapshot, const VersionRecord& record);

std::vector<std::byte> encode(const WeightManifest& manifest);
Result<WeightManifest> decode_manifest(std::span<const std::byte> bytes);
std::vector<std::byte> encode(const VersionRecord& record);
Result<VersionRecord> decode_version_record(std::span<const std::byte> bytes);

}  // namespace primerl
