/// Adapters of tiny models with numbers in A and in B, as no training leaves them so soon.
#pragma once

#include <cmath>
#include <vector>

#include "graph/base/random.h"
#include "kernels/models/adapter.h"
#include "kernels/torch/training/learner.h"

namespace primerl::testing {

/// Random tensors of a seed; the scaling is the table's.
inline std::vector<WeightTensor> random_adapter(const AdapterTable& table, uint64_t seed,
                                                double deviation = 0.2) {
  std::vector<float> buffer(static_cast<size_t>(table.tensors().count()));
  initialize_adapter(table, buffer.data());
  RandomStream random(seed);
  for (int64_t i = 0; i < table.tensors().trained_count(); ++i)
    buffer[static_cast<size_t>(i)] =
        static_cast<float>(deviation * std::sqrt(3.0) * (2 * random.uniform() - 1));
  return copy_parameters(table.tensors(), buffer.data());
}

/// A learner of adapters that begin with the numbers of random_adapter(), seeded by their tenant.
inline std::unique_ptr<TorchLearner> make_adapter_learner(const std::filesystem::path& folder,
                                                          std::vector<AdapterTraining> adapters,
                                                          const LearnerOptions& options = {}) {
  auto made = make_torch_adapter_learner(options, adapters, folder);
  CHECK(made.ok(), made.error().text());
  std::unique_ptr<TorchLearner> learner(dynamic_cast<TorchLearner*>(made->release()));
  const TensorTable model(read_model_config(folder).value());
  for (const auto& training : adapters) {
    const AdapterTable table(model, training.adapter);
    const TenantSlot tenant = training.tenant;
    CHECK(learner->fill_adapter(tenant, random_adapter(table, tenant.value + 1)).ok(), "no fill");
  }
  return learner;
}

/// What `tenant` of the learner publishes, under her own key.
inline std::shared_ptr<const WeightSnapshot> adapter_of(TorchLearner& learner, TenantSlot tenant,
                                                        int64_t version) {
  return with_key(*learner.snapshot(tenant, PolicyVersion(version)).value(), {tenant});
}

}  // namespace primerl::testing
