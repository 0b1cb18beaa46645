// The calls that a LearnerCore makes to a backend, and the answers of one that cannot compute.
#include "kernels/common/learner_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "kernels/common/memory.h"
#include "tests/cpu/never.h"
#include "tests/cpu/tiny_adapters.h"
#include "tests/cpu/tiny_model.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

/// Writes its calls down, and computes nothing.
class FakeBackend final : public LearnerBackend {
 public:
  FakeBackend(ModelFolder model, size_t num_adapters)
      : model_(std::move(model)), table_(model_.config) {
    for (size_t i = 0; i < num_adapters; ++i)
      adapters_.push_back(
          std::make_unique<AdapterTable>(table_, AdapterConfig{.rank = 2, .dropout = 0.25}));
  }

  Status run(std::string_view doing, int64_t rows, const std::function<Status()>& body) override {
    calls.push_back(fmt::format("run '{}', {} rows", doing, rows));
    return body();
  }
  const ModelFolder& model() const override { return model_; }
  const TensorTable& table() const override { return table_; }
  const AdapterTable* adapter(size_t slot) const override {
    return adapters_.empty() ? nullptr : adapters_[slot].get();
  }
  int64_t num_steps(size_t /*slot*/) const override { return num_updates; }
  bool can_share_passes() const override { return !adapters_.empty(); }
  std::optional<int32_t> adapter_batch_tokens() const override { return wanted; }
  std::string device_text() const override { return where; }
  void visit(ActivationVisitor visitor) override { visitor_ = std::move(visitor); }
  void on_layer(std::function<void()> done) override { layer_done = std::move(done); }
  Status fill(const std::vector<WeightTensor>&) override { return ok(); }
  Status randomize(uint64_t) override { return ok(); }
  Status fill_adapter(size_t, const std::vector<WeightTensor>&) override { return ok(); }
  Status begin(size_t slot, const AdapterDropout& dropout) override {
    calls.push_back(fmt::format("begin {}{}", slot, dropout.rate > 0 ? " with dropout" : ""));
    return ok();
  }
  Status pass(const MicroBatch& pass, std::span<const LearnedPart> parts) override {
    calls.push_back(fmt::format("pass of {} rows, {} parts", pass.rows.num_rows(), parts.size()));
    if (visitor_) visitor_("layers.0.broken", broken);
    for (int layer = 0; layer < num_layers; ++layer) layer_done();
    return fault;
  }
  Status update(size_t slot, const AdamNumbers* adam, TrainReport& report) override {
    calls.push_back(fmt::format("update {}{}", slot, adam == nullptr ? "" : " with numbers"));
    report.grad_norm = 3;
    ++num_updates;
    return ok();
  }
  Status snapshot(size_t, WeightSnapshot&) override { return ok(); }
  Result<std::vector<float>> score(size_t, const MicroBatch&) override {
    return std::vector<float>();
  }
  Result<std::vector<float>> measure(size_t slot, const MicroBatch& batch,
                                     bool is_of_reference) override {
    calls.push_back(fmt::format("measure {} of {}, {} rows", is_of_reference ? "the reference" : "",
                                slot, batch.rows.num_rows()));
    return std::vector<float>(batch.targets.size(), -1.0F);
  }
  std::vector<WeightTensor> weights(size_t) override { return {}; }
  std::vector<WeightTensor> gradients(size_t) override { return {}; }
  Result<LearnerCopy> capture(size_t) override { return LearnerCopy(); }
  Status load(size_t, const std::vector<WeightTensor>&, const std::filesystem::path&) override {
    return ok();
  }

  std::vector<std::string> calls;
  std::optional<int32_t> wanted;
  std::string where;
  Status fault;
  int64_t num_updates = 0;
  int num_layers = 0;  // of a pass
  std::function<void()> layer_done;
  at::Tensor broken;

 private:
  const ModelFolder model_;
  const TensorTable table_;
  std::vector<std::unique_ptr<AdapterTable>> adapters_;
  ActivationVisitor visitor_;
};

class ALearnerCore : public ::testing::Test {
 protected:
  /// A learner of whole weights, or of adapters of tenants 0, 1, ...
  LearnerCore& make(size_t num_adapters, const LearnerOptions& options = {}) {
    const auto folder = testing::write_config({}, testing::scratch_folder("core"));
    auto backend = std::make_unique<FakeBackend>(read_model_folder(folder).value(), num_adapters);
    backend_ = backend.get();
    std::vector<AdapterTraining> adapters(num_adapters);
    for (uint32_t i = 0; i < num_adapters; ++i) adapters[i].tenant = TenantSlot(i);
    core_ = std::make_unique<LearnerCore>(options, std::move(backend), "base", adapters);
    return *core_;
  }

  FakeBackend* backend_ = nullptr;
  std::unique_ptr<LearnerCore> core_;
};

TEST_F(ALearnerCore, RunsAStepInsideOfTheBackend) {
  LearnerCore& core = make(2);
  const auto report = core.step(testing::two_groups(TenantSlot(1)), testing::never);
  ASSERT_TRUE(report.ok()) << report.error().text();
  EXPECT_EQ(report->grad_norm, 3);
  ASSERT_EQ(backend_->calls.size(), 6U);
  EXPECT_EQ(backend_->calls[0], "run 'training step', 0 rows");
  EXPECT_EQ(backend_->calls[1], "begin 1 with dropout");
  EXPECT_THAT(backend_->calls[2], StartsWith("run 'training step', "));
  EXPECT_THAT(backend_->calls[3], StartsWith("pass of "));
  EXPECT_THAT(backend_->calls[3], HasSubstr(", 1 parts"));
  EXPECT_EQ(backend_->calls[5], "update 1");
}

TEST_F(ALearnerCore, UpdatesNothingAfterAPassThatFails) {
  LearnerCore& core = make(0);
  backend_->fault = error(Code::kDeviceLost, "the device is lost");
  const auto report = core.step(testing::two_groups(TenantSlot(7)), testing::never);
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code(), Code::kDeviceLost);
  EXPECT_EQ(backend_->num_updates, 0);
  EXPECT_EQ(backend_->calls[1], "begin 0") << "whole weights are of any tenant";
}

TEST_F(ALearnerCore, GivesASignOfLifeAfterEachLayer) {
  LearnerCore& core = make(0);
  backend_->num_layers = 5;
  int num_signs = 0;
  // A stop that comes within a pass counts before the next one: here there is none.
  const auto report =
      core.step(testing::two_groups(TenantSlot(0)), [&] { return ++num_signs > 1; });
  ASSERT_TRUE(report.ok()) << report.error().text();
  EXPECT_EQ(num_signs, 1 + 5);
  backend_->layer_done();
  EXPECT_EQ(num_signs, 1 + 5) << "the step is over";
}

LossBatch two_data(TenantSlot tenant) {
  LossBatch made;
  made.tenant = tenant;
  made.loss = tinker_loss("cross_entropy", {}).value();
  for (int32_t i = 0; i < 2; ++i) {
    LossDatum& datum = made.data.emplace_back();
    datum.tokens = {1, 2, 3, 4};
    datum.targets = {2, 3, 4, 5};
  }
  return made;
}

TEST_F(ALearnerCore, ClearsTheGradientsOnceForAllCallsBeforeAnUpdate) {
  LearnerCore& core = make(2);
  for (int i = 0; i < 2; ++i)
    ASSERT_TRUE(core.accumulate(two_data(TenantSlot(1)), testing::never).ok());
  EXPECT_EQ(core.apply(TenantSlot(1), {})->grad_norm, 3);
  EXPECT_EQ(std::ranges::count(backend_->calls, "begin 1 with dropout"), 1);
  EXPECT_EQ(std::ranges::count(backend_->calls, "pass of 8 rows, 1 parts"), 2);
  EXPECT_EQ(backend_->calls.back(), "update 1 with numbers");
  ASSERT_TRUE(core.accumulate(two_data(TenantSlot(1)), testing::never).ok());
  EXPECT_EQ(std::ranges::count(backend_->calls, "begin 1 with dropout"), 2);
}

TEST_F(ALearnerCore, DiscardsOpenGradientsAfterAPassThatFails) {
  LearnerCore& core = make(1);
  ASSERT_TRUE(core.accumulate(two_data(TenantSlot(0)), testing::never).ok());
  backend_->fault = error(Code::kExhausted, "no memory");
  const auto failed = core.accumulate(two_data(TenantSlot(0)), testing::never);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code(), Code::kExhausted);
  EXPECT_THAT(failed.error().text(), HasSubstr("of 1 earlier calls are discarded"));
  EXPECT_FALSE(core.apply(TenantSlot(0), {}).ok());
  EXPECT_EQ(backend_->num_updates, 0);
}

TEST_F(ALearnerCore, MixesNoCallOfAClientIntoAnUnfinishedStep) {
  LearnerOptions options;
  options.micro_batch_tokens = 20;
  LearnerCore& core = make(2, options);
  const auto batch = std::make_shared<const TrainBatch>(testing::two_groups(TenantSlot(0)));
  const std::shared_ptr<const TrainBatch> asked[] = {batch};
  ASSERT_FALSE(core.pass_together(asked, testing::never).front().has_value());
  const auto refused = core.accumulate(two_data(TenantSlot(0)), testing::never);
  EXPECT_THAT(refused.error().text(), HasSubstr("unfinished step"));
  EXPECT_TRUE(core.accumulate(two_data(TenantSlot(1)), testing::never).ok());
  core.discard(TenantSlot(0));
  EXPECT_TRUE(core.accumulate(two_data(TenantSlot(0)), testing::never).ok());
}

TEST_F(ALearnerCore, AsksTheBackendForNothingIfNoTokenHasALoss) {
  LearnerCore& core = make(0);
  TrainBatch batch = testing::two_groups(TenantSlot(0));
  for (TrainSample& sample : batch.samples) sample.loss_mask.assign(sample.tokens.size(), 0);
  const auto report = core.step(batch, testing::never);
  ASSERT_TRUE(report.ok()) << report.error().text();
  EXPECT_TRUE(report->skipped);
  EXPECT_THAT(backend_->calls, IsEmpty());
}

TEST_F(ALearnerCore, RefusesATenantWithoutAnAdapter) {
  LearnerCore& core = make(2);
  const auto report = core.step(testing::two_groups(TenantSlot(2)), testing::never);
  ASSERT_FALSE(report.ok());
  EXPECT_THAT(report.error().text(), HasSubstr("no adapter of tenant 2"));
  EXPECT_THAT(core.save(TenantSlot(2), "nowhere").error().text(), HasSubstr("no adapter"));
  EXPECT_THAT(backend_->calls, IsEmpty());
}

TEST_F(ALearnerCore, SkipsAStepWhoseActivationIsNotFinite) {
  LearnerOptions options;
  options.debug.check_finite = true;
  LearnerCore& core = make(1, options);
  backend_->broken = zero_floats(6);
  backend_->broken.mutable_data_ptr<float>()[4] = std::numeric_limits<float>::quiet_NaN();
  const auto report = core.step(testing::two_groups(TenantSlot(0)), testing::never);
  ASSERT_TRUE(report.ok()) << report.error().text();
  EXPECT_TRUE(report->skipped);
  EXPECT_THAT(report->skip_reason, HasSubstr("activation 'layers.0.broken' is nan"));
  EXPECT_EQ(backend_->num_updates, 0);
}

TEST_F(ALearnerCore, CountsTheNextPassByWhatTheBackendDividesBy) {
  LearnerOptions options;
  options.micro_batch_tokens = 20;
  LearnerCore& core = make(1, options);
  const TrainBatch batch = testing::two_groups(TenantSlot(0));  // 62 tokens
  EXPECT_EQ(core.next_tokens(batch), 20) << "at most a pass";
  backend_->wanted = 12;
  EXPECT_LE(core.next_tokens(batch), 20);
  EXPECT_EQ(core.next_tokens(batch), pack(batch.samples, 20, 12).front().rows.num_rows());
  LearnerCore& whole = make(0, options);
  EXPECT_GT(whole.next_tokens(batch), 20) << "a step that shares no pass is not divided";
}

TEST_F(ALearnerCore, SaysWhereItTrains) {
  LearnerCore& whole = make(0);
  EXPECT_THAT(whole.describe(), HasSubstr("0 optimizer steps, "));
  EXPECT_THAT(whole.describe(), ::testing::EndsWith(" parameters"));
  backend_->where = "cuda:0 in bfloat16";
  EXPECT_THAT(whole.describe(), ::testing::EndsWith(" parameters on cuda:0 in bfloat16"));
  LearnerCore& adapters = make(3);
  EXPECT_THAT(adapters.describe(), HasSubstr("3 adapters of "));
  backend_->where = "cuda:0 in bfloat16";
  EXPECT_THAT(adapters.describe(), ::testing::EndsWith("that are frozen, on cuda:0 in bfloat16"));
}

}  // namespace
}  // namespace primerl
