// The tenants of a fork: those that were in the other run at its step.
#include "runtime/replay/forked_graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/joining.h"
#include "kernels/scripted/scripted_learner.h"
#include "runtime/backends/backends.h"
#include "runtime/backends/resource_catalog.h"
#include "runtime/replay/traced_learner.h"
#include "runtime/trace/record/recorder.h"
#include "runtime/trace/record/segment_writer.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::Pair;

/// A run of the graph with slots, whose trainer's group takes the steps that a test names.
class ForkedGraphs : public ::testing::Test {
 protected:
  ForkedGraphs() {
    const std::string file = std::string(PRIMERL_SOURCE_DIR) + "/examples/hosted/graph.toml";
    Overrides overrides;
    overrides.may_lack_weights = true;
    const CheckedGraph checked = load_graph(file, overrides, full_catalog());
    CHECK(checked.plan != nullptr, "the graph with slots is not valid");
    plan_ = checked.plan;
    for (size_t i = 0; i < plan_->resources.size(); ++i)
      if (plan_->resources[i].kind == Learner::kResourceKind)
        group_ = owner_of(*plan_, static_cast<int32_t>(i));
    TraceCatalog catalog = make_trace_catalog(*plan_, *make_wiring(*plan_));
    catalog.program_version = program_text(*plan_->catalog);
    catalog.graph_text = plan_->resolved_toml;
    catalog.graph_hash = plan_->graph_hash;
    write_text(folder_.path() / "graph.resolved.toml", plan_->resolved_toml);
    write_text(folder_.path() / "run.json", "{}\n");
    SegmentWriterOptions options;
    options.folder = folder_.path() / "trace";
    options.catalog = catalog.to_json().dump();
    writer_ = SegmentWriter::open(options).value();
    recorder_ = std::make_unique<Recorder>(catalog, *writer_);
    recorder_->on_start(group_, Time());
    learner_ = std::make_unique<TracedLearner>(make_scripted_learner({}).value(),
                                               [this](std::vector<std::byte> answer) {
                                                 recorder_->add_answer(group_, std::move(answer));
                                               });
  }

  void change(TenantChange::Kind kind, uint32_t slot, uint32_t tenancy, const std::string& name) {
    const TenantChange change{kind, TenantSlot(slot), tenancy, name, table(name)};
    StepRecord step;
    step.kind = StepKind::kTenant;
    step.tenant_change = &change;
    record(step);
  }
  void train(uint32_t slot) {
    TrainBatch batch;
    batch.tenant = TenantSlot(slot);
    batch.loss = LossKind::kCrossEntropy;
    TrainSample& sample = batch.samples.emplace_back();
    sample.tokens = {5, 6, 7, 8};
    sample.loss_mask = {0, 1, 1, 1};
    ASSERT_TRUE(learner_->step(batch, [] { return false; }).ok());
    StepRecord step;
    step.kind = StepKind::kWork;
    record(step);
  }
  static std::string table(const std::string& name) {
    return fmt::format("[tenant.{}]\nmax_steps = 10\n", name);
  }
  ForkedGraph fork(int64_t step) {
    EXPECT_TRUE(writer_->close().ok());
    const auto forked = forked_graph(folder_.path(), step);
    EXPECT_TRUE(forked.ok()) << forked.error().text();
    return forked.ok() ? *forked : ForkedGraph();
  }

  const ScratchFolder folder_;
  std::shared_ptr<const Plan> plan_;
  GroupId group_;

 private:
  void record(StepRecord step) {
    step.group = group_;
    step.step = ++num_steps_;
    step.began = step.ended = Time::from_nanoseconds(static_cast<int64_t>(num_steps_) * 1000);
    recorder_->on_step(step);
  }

  std::unique_ptr<SegmentWriter> writer_;
  std::unique_ptr<Recorder> recorder_;
  std::unique_ptr<TracedLearner> learner_;
  uint64_t num_steps_ = 0;
};

constexpr auto kJoin = TenantChange::Kind::kJoin;
constexpr auto kLeave = TenantChange::Kind::kLeave;

TEST_F(ForkedGraphs, HaveTheTenantsOfTheMoment) {
  change(kJoin, 0, 0, "alice");
  change(kJoin, 1, 0, "bob");
  train(0);
  change(kLeave, 1, 0, "bob");
  change(kJoin, 1, 1, "carl");
  train(1);  // his first step, as alice's before
  train(0);
  change(kJoin, 2, 0, "late");
  train(2);
  const ForkedGraph first = fork(1);
  EXPECT_THAT(tenant_tables(first.text), ElementsAre(Key("alice"), Key("bob")));
  EXPECT_THAT(first.tenancies, ElementsAre(Pair("alice", 0U), Pair("bob", 0U)));
  const auto second = forked_graph(folder_.path(), 2);
  ASSERT_TRUE(second.ok());
  EXPECT_THAT(tenant_tables(second->text),
              ElementsAre(Pair("alice", table("alice")), Pair("carl", table("carl"))));
  EXPECT_THAT(second->tenancies, ElementsAre(Pair("alice", 0U), Pair("carl", 1U)));
  EXPECT_THAT(second->notes, ElementsAre("the fork has the tenants of that moment: alice, carl~1"));
}

TEST_F(ForkedGraphs, BeyondTheRecordHaveTheTenantsOfItsEnd) {
  change(kJoin, 0, 0, "alice");
  train(0);
  change(kLeave, 0, 0, "alice");
  change(kJoin, 0, 1, "bob");
  const ForkedGraph forked = fork(7);
  EXPECT_THAT(tenant_tables(forked.text), ElementsAre(Key("bob")));
  EXPECT_THAT(forked.notes.front(), HasSubstr("no tenant of the record has ended training step 7"));
}

TEST_F(ForkedGraphs, WithoutJoinsAreThatOfTheRun) {
  train(0);
  EXPECT_THAT(fork(1).text, IsEmpty());
}

TEST_F(ForkedGraphs, WithoutATenantAreRefused) {
  change(kJoin, 0, 0, "alice");
  change(kLeave, 0, 0, "alice");
  change(kJoin, 1, 0, "bob");
  change(kLeave, 1, 0, "bob");
  const auto forked = forked_graph(folder_.path(), 1);  // the record has no end
  ASSERT_FALSE(forked.ok());
  EXPECT_THAT(forked.error().text(), HasSubstr("no tenant was in"));
}

}  // namespace
}  // namespace primerl
