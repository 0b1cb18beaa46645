/// Adapters of tiny models with values in A and in B, larger than after a few training steps;
/// batches and requests for their learners.
#pragma once

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "graph/base/random.h"
#include "kernels/cpu/learner/learner.h"
#include "kernels/devices/make.h"
#include "kernels/models/adapter.h"
#include "tests/cpu/never.h"

namespace primerl::testing {

/// Random tensors from a seed; the scaling is the table's.
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

/// A learner of adapters with the initial values of random_adapter(), seeded by their tenant.
inline std::unique_ptr<CpuLearner> make_adapter_learner(const std::filesystem::path& folder,
                                                        std::vector<AdapterTraining> adapters,
                                                        const LearnerOptions& options = {}) {
  auto made = make_torch_adapter_learner(options, adapters, folder);
  CHECK(made.ok(), made.error().text());
  std::unique_ptr<CpuLearner> learner(dynamic_cast<CpuLearner*>(made->release()));
  const TensorTable model(read_model_config(folder).value());
  for (const auto& training : adapters) {
    const AdapterTable table(model, training.adapter);
    const TenantSlot tenant = training.tenant;
    CHECK(learner->fill_adapter(tenant, random_adapter(table, tenant.value + 1)).ok(), "no fill");
  }
  return learner;
}

/// The snapshot that the learner publishes for `tenant`, under its key.
inline std::shared_ptr<const WeightSnapshot> adapter_of(CpuLearner& learner, TenantSlot tenant,
                                                        int64_t version) {
  return with_key(*learner.snapshot(tenant, PolicyVersion(version)).value(), {tenant});
}

/// Two groups of the tenant with shared prompts; lengths 6 to 10.
inline TrainBatch two_groups(TenantSlot tenant, LossKind loss = LossKind::kPolicy,
                             int32_t shift = 0) {
  TrainBatch made;
  made.tenant = tenant;
  made.loss = loss;
  for (int32_t i = 0; i < 8; ++i) {
    TrainSample& sample = made.samples.emplace_back();
    for (int32_t t = 0; t < 6 + i % 5; ++t) {
      const bool is_sampled = t >= 4;
      sample.tokens.push_back(((is_sampled ? i * 13 : i / 4 * 31) + shift + 7 * t) % 61);
      sample.loss_mask.push_back(is_sampled ? 1 : 0);
      sample.logprobs.push_back(is_sampled ? -3.0F : 0.0F);
      sample.advantages.push_back(is_sampled ? static_cast<float>(i % 3) - 0.8F : 0.0F);
    }
  }
  return made;
}

inline std::vector<float> values(const WeightTensor& tensor) {
  std::vector<float> numbers(tensor.bytes.size() / sizeof(float));
  std::memcpy(numbers.data(), tensor.bytes.bytes().data(), tensor.bytes.size());
  return numbers;
}

inline std::vector<std::byte> bytes_of(const std::vector<WeightTensor>& tensors) {
  std::vector<std::byte> all;
  for (const auto& tensor : tensors)
    all.insert(all.end(), tensor.bytes.bytes().begin(), tensor.bytes.bytes().end());
  return all;
}

/// The current adapter of `tenant` in the learner.
inline std::vector<std::byte> adapter_bytes(CpuLearner& learner, TenantSlot tenant) {
  return bytes_of(learner.snapshot(tenant, PolicyVersion(1)).value()->tensors);
}

/// Tensor `name` with `step` times `direction` added.
inline std::vector<WeightTensor> moved(std::vector<WeightTensor> tensors, const std::string& name,
                                       double step, const std::vector<float>& direction) {
  for (auto& tensor : tensors) {
    if (tensor.name != name) continue;
    auto numbers = values(tensor);
    for (size_t i = 0; i < numbers.size(); ++i)
      numbers[i] += static_cast<float>(step * direction[i]);
    const auto* bytes = reinterpret_cast<const std::byte*>(numbers.data());
    tensor.bytes = Blob(std::vector<std::byte>(bytes, bytes + numbers.size() * sizeof(float)));
  }
  return tensors;
}

}  // namespace primerl::testing
