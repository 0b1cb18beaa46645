/// The fixture for tests of a Trainer whose tenant a client trains: a scripted learner, and one
/// alone that gets the same calls.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "actors/trainer/trainer.h"
#include "graph/testing/node_runner.h"
#include "kernels/scripted/scripted_learner.h"
#include "tests/actors/fakes.h"
#include "tests/store/scratch_folder.h"

namespace primerl::testing {

inline constexpr TenantSlot kClient(0);
inline constexpr int32_t kSeqLen = 16;

inline Tenant a_client() {
  Tenant tenant = a_tenant(1, 1, 0);
  tenant.name = "alice";
  tenant.is_client = true;
  tenant.max_steps = kClientStepsMax;
  tenant.seq_len = kSeqLen;
  tenant.adapter.rank = 4;
  tenant.share = 1;
  return tenant;
}

inline LossBatch a_client_batch(int32_t num_data = 2, int32_t num_tokens = 8) {
  LossBatch made;
  made.tenant = kClient;
  made.loss = tinker_loss("cross_entropy", {}).value();
  for (int32_t d = 0; d < num_data; ++d) {
    LossDatum& datum = made.data.emplace_back();
    for (int32_t i = 0; i < num_tokens; ++i) {
      datum.tokens.push_back((d * 7 + i) % 90);
      datum.targets.push_back((d * 7 + i + 1) % 90);
    }
  }
  return made;
}

/// Micro-batches of 8 tokens.
inline std::unique_ptr<Learner> a_client_learner(Duration save_time = {}) {
  ScriptedLearnerOptions options;
  options.micro_batch_tokens = 8;
  options.save_time = save_time;
  return make_scripted_learner(options).value();
}

struct ClientStory : ::testing::Test {
  explicit ClientStory(Tenant tenant = a_client(), Duration save_time = {})
      : learner(a_client_learner(save_time)),
        alone(a_client_learner()),
        weights(make_memory_channel()),
        folder(new_scratch_folder()) {
    trainer.set_tenants({std::move(tenant)});
    trainer.use("learner", *learner);
    trainer.use("weights", *weights);
    trainer.set_checkpoint_folder(folder);
  }
  void work() {
    const auto turns = trainer.run_work_until_done(100);
    ASSERT_TRUE(turns.ok()) << turns.error().text();
  }
  PassDone pass(LossBatch batch, bool forward_only = false) {
    batch.forward_only = forward_only;
    PassRequest request;
    request.request = ++number;
    request.batch = std::move(batch);
    EXPECT_TRUE(trainer.give("pass", request).ok());
    work();
    return only(trainer.take<PassDone>("passed"));
  }
  UpdateDone update(const AdamNumbers& adam = {}) {
    UpdateRequest request;
    request.request = ++number;
    request.adam = adam;
    EXPECT_TRUE(trainer.give("update", request).ok());
    work();
    return only(trainer.take<UpdateDone>("updated"));
  }
  Status ask(WeightsAction action, const std::string& name = "", bool flag = false,
             AdapterId adapter = {}) {
    WeightsRequest request;
    request.request = ++number;
    request.action = action;
    request.name = name;
    request.with_optimizer = request.overwrites = flag;
    request.adapter = adapter;
    return trainer.give("weights_request", request);
  }
  WeightsDone change(WeightsAction action, const std::string& name = "", bool flag = false,
                     AdapterId adapter = {}) {
    EXPECT_TRUE(ask(action, name, flag, adapter).ok());
    work();
    return only(trainer.take<WeightsDone>("weights_done"));
  }
  template <class Done>
  Done only(const std::vector<Done>& answers) {
    EXPECT_EQ(answers.size(), 1U);
    if (answers.empty()) return {};
    EXPECT_EQ(answers.front().request, number);
    return answers.front();
  }
  std::vector<int64_t> checkpoints() {
    std::vector<int64_t> steps;
    for (const auto& one : trainer.checkpoints()) steps.push_back(one.step);
    return steps;
  }
  static Blob bytes_of(Learner& of) {
    return of.snapshot(kClient, PolicyVersion(0)).value()->tensors.front().bytes;
  }
  std::filesystem::path client_folder(const std::string& path) { return folder / "clients" / path; }

  std::unique_ptr<Learner> learner, alone;
  std::shared_ptr<WeightChannel> weights;
  std::filesystem::path folder;
  NodeRunner<Trainer> trainer;
  uint64_t number = 0;
};

}  // namespace primerl::testing
