/// KnownAdapters: the weights an engine computes with. Either the whole weights of one tenant or,
/// if it has adapter slots, an adapter for each key that was applied.
///
/// Adapters are numbered from 0 in the order in which their keys were applied, and keep their
/// number until drop(). The next new one then has the lowest free number. If there may be more
/// adapters than slots, each has a copy in AdapterCopies. The copy that is used for computing
/// belongs to the engine. Bound: adapters_max() adapters. Used by one thread.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "kernels/engine/adapter_copies.h"
#include "kernels/engine/options.h"
#include "kernels/engine/row_batch.h"
#include "kernels/models/adapter.h"
#include "kernels/weights/snapshot.h"

namespace primerl {

class KnownAdapters {
 public:
  struct Adapter {
    WeightsKey key;
    AdapterConfig config;
  };

  /// `model` must stay valid while this object exists.
  KnownAdapters(const TensorTable& model, const EngineOptions& options)
      : model_(model),
        num_slots_(options.adapter_slots),
        adapters_max_(std::max(options.adapters_max, options.adapter_slots)),
        rank_max_(options.max_adapter_rank),
        copies_(options.adapter_host_bytes_max, options.adapter_folder) {}

  /// False: the engine applies whole weights.
  bool applies_adapters() const { return num_slots_ > 0; }

  /// Whether an engine with `versions` may apply, or serve requests of, `key`.
  Status check_key(WeightsKey key, const VersionsByKey& versions) const;
  /// The number of the adapter of `key`; kNoAdapter if the engine applies whole weights.
  Result<int32_t> number_of(WeightsKey key) const;
  /// The adapter config of a snapshot, if there is space for it.
  Result<AdapterConfig> check(const WeightSnapshot& snapshot) const;
  /// Makes what check() accepted the adapter of its key, and returns its number. An error if there
  /// is no space for its copy: the earlier version stays.
  Result<int32_t> take(const WeightSnapshot& snapshot, const AdapterConfig& config);
  /// The copy of an adapter that is about to be loaded; only if there may be more than slots.
  std::vector<WeightTensor> tensors_of(int32_t number) { return copies_.use(number); }
  /// A prompt of adapter `number` begins to wait.
  void expect_use(int32_t number) const { copies_.expect_use(number); }

  /// Forgets the adapter of `key` and returns its number; empty: there was none.
  std::optional<int32_t> drop(WeightsKey key);

  int32_t count() const {
    return static_cast<int32_t>(std::ranges::count_if(
        adapters_, [](const std::optional<Adapter>& one) { return one.has_value(); }));
  }
  const Adapter& at(int32_t number) const { return *adapters_[static_cast<size_t>(number)]; }
  const AdapterCopies& copies() const { return copies_; }

 private:
  const TensorTable& model_;
  const int32_t num_slots_;
  const int32_t adapters_max_;
  const int32_t rank_max_;
  std::vector<std::optional<Adapter>> adapters_;  // by number; empty: the number is free
  AdapterCopies copies_;                          // by number; empty if every adapter has a slot
};

}  // namespace primerl
