/// KnownAdapters: whose weights an engine computes with. Either the whole ones of one tenant, or,
/// where it has adapter slots, an adapter for each key that was applied.
///
/// Adapters are numbered from 0 in the order in which their keys came, and keep their number. Where
/// there may be more of them than slots it owns a copy of each one's tensors. What computes with
/// them is the engine's. Bound: adapters_max() adapters. One thread.
#pragma once

#include <algorithm>
#include <vector>

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
    std::vector<WeightTensor> tensors;  // its own copy; none where every adapter has a slot
  };

  /// `model` outlives it.
  KnownAdapters(const TensorTable& model, const EngineOptions& options)
      : model_(model),
        num_slots_(options.adapter_slots),
        adapters_max_(std::max(options.adapters_max, options.adapter_slots)),
        rank_max_(options.max_adapter_rank) {}

  /// False: whole weights change.
  bool are_there() const { return num_slots_ > 0; }

  /// Whether what `key` names may be applied to an engine that has `versions`, or asked of it.
  Status check_key(WeightsKey key, const VersionsByKey& versions) const;
  /// The number of the adapter of `key`; kNoAdapter where whole weights change.
  Result<int32_t> number_of(WeightsKey key) const;
  /// The adapter that a snapshot is one of, if there is room for it.
  Result<AdapterConfig> check(const WeightSnapshot& snapshot) const;
  /// What check() gave is the adapter of its key from now on; its number.
  int32_t take(const WeightSnapshot& snapshot, const AdapterConfig& config);

  int32_t count() const { return static_cast<int32_t>(adapters_.size()); }
  const Adapter& at(int32_t number) const { return adapters_[static_cast<size_t>(number)]; }

 private:
  const TensorTable& model_;
  const int32_t num_slots_;
  const int32_t adapters_max_;
  const int32_t rank_max_;
  std::vector<Adapter> adapters_;  // by number
};

}  // namespace primerl
