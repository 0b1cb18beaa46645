/// WeightSnapshot: one immutable version of a policy's weights. WeightChannel: carries snapshots
/// from the one publisher (Trainer) to n receivers (Prefill, Decode).
///
/// The channel is the only resource that two threads use; every other kernel object belongs to one
/// thread. Bytes never pass through Broadcaster: it sends versions, the channel has the bytes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "graph/base/blob.h"
#include "graph/base/ids.h"
#include "graph/base/resource.h"
#include "kernels/weights/weights_key.h"

namespace primerl {

enum class DataType : uint8_t {
  kBool,
  kU8,
  kI8,
  kI16,
  kU16,
  kI32,
  kU32,
  kI64,
  kU64,
  kF16,
  kBF16,
  kF32,
  kF64,
  kF8E4M3,
  kF8E5M2
};

std::string_view to_string(DataType type);  // as in safetensors: "F32", "BF16"
Result<DataType> parse_data_type(std::string_view text);
size_t size_in_bytes(DataType type);  // of one element

/// One tensor of a snapshot: row-major, little-endian, contiguous.
struct WeightTensor {
  std::string name;  // Hugging Face name
  DataType type = DataType::kF32;
  std::vector<int64_t> shape;
  Blob bytes;
};

struct WeightManifest;  // manifest.h
class DeviceWeights;    // device_weights.h

struct WeightSnapshot {
  WeightsKey key;  // tenant and adapter of these weights
  PolicyVersion version;
  std::vector<WeightTensor> tensors;  // sorted by name
  /// If it is set, the bytes are on a device, and those of `tensors` are empty; on_host() copies
  /// them.
  std::shared_ptr<const DeviceWeights> device{};

  KeyedVersion name() const { return {key, version}; }
};

/// The same weights under the key `key`; the tensors are shared.
std::shared_ptr<const WeightSnapshot> with_key(const WeightSnapshot& snapshot, WeightsKey key);

/// The same tensors, on the host and all zero: an adapter that adds nothing to its base model.
WeightSnapshot zeros_like(const WeightSnapshot& snapshot);

/// One publisher, n receivers. Versions of different keys are independent: each is readable until
/// every receiver has released it or two newer ones of its key exist. All have the same tensors.
/// Thread-safe.
class WeightChannel : public Resource {
 public:
  static constexpr std::string_view kResourceKind = "weight_channel";
  /// Versions of a key rise; at most kWeightsKeysMax keys.
  virtual Status publish(std::shared_ptr<const WeightSnapshot> snapshot) = 0;
  /// The snapshot of `version`. kNotFound: it was retired (ask for the newest instead).
  /// kUnavailable: its bytes have not arrived yet (call again).
  virtual Result<std::shared_ptr<const WeightSnapshot>> fetch(WeightsKey key,
                                                              PolicyVersion version) = 0;
  /// The newest published version of `key`; none() before the first.
  virtual PolicyVersion newest(WeightsKey key) const = 0;
  /// Forgets every version of `key` at this end. Call it at every end of the channel, in any order,
  /// after the last publish() and fetch() of the key. After the publisher's call no end finds a
  /// version of it; snapshots that were fetched stay valid. Do not publish the key again: a key has
  /// the number of its tenancy (graph/tenancies.h), which never comes back, so an end may ignore
  /// what is still on its way. An unknown key is ignored. By default there is nothing to forget.
  virtual void drop(WeightsKey key) { (void)key; }
  /// Waits until `version` or a newer one can be fetched; false: it did not arrive within
  /// `at_most`, or was refused. For callers that have nothing else to do. The default does not
  /// wait.
  virtual bool wait_for(WeightsKey key, PolicyVersion version, Duration at_most) {
    (void)at_most;
    return newest(key) >= version;
  }
  /// A receiver calls it before its first fetch() with the tensors of its engine. From then on a
  /// version with other tensors is refused whole (kInvalid); the error has both shapes. All
  /// receivers of a process expect the same; an empty manifest accepts all. By default
  /// Engine::apply() makes the comparison.
  virtual Status expect(const WeightManifest&) { return ok(); }
};

}  // namespace primerl
