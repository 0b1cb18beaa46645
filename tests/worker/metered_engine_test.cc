// The reported versions of an engine are the applied ones only.
#include "runtime/worker/metered_engine.h"

#include <gtest/gtest.h>

#include <numeric>
#include <utility>

#include "kernels/engine/engine.h"
#include "kernels/engine/options.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

/// Accepts versions below ten.
class PickyEngine final : public Engine {
 public:
  Status submit(SequenceRequest) override { return ok(); }
  Status take_over(SequenceId) override { return ok(); }
  void expire(SequenceId) override {}
  void abort(SequenceId) override {}
  std::vector<PrefillEvent> take_prefilled() override { return {}; }
  std::vector<FinishEvent> take_finished() override { return {}; }
  bool prepare(const std::shared_ptr<const WeightSnapshot>&) override {
    return std::exchange(is_prepared, true);
  }
  Result<uint64_t> apply(const WeightSnapshot& snapshot) override {
    if (snapshot.version >= PolicyVersion(10)) return error(Code::kInvalid, "too new");
    return uint64_t{0};
  }
  EngineState state() const override { return {}; }
  int32_t max_sequence_tokens() const override { return 1; }

  bool is_prepared = false;
};

/// Prefills and ends the sequences that the test chooses.
class ToldEngine final : public Engine {
 public:
  Status submit(SequenceRequest request) override {
    if (request.prompt_tokens.empty()) return error(Code::kInvalid, "no prompt");
    return ok();
  }
  Status take_over(SequenceId) override { return ok(); }
  void expire(SequenceId) override {}
  void abort(SequenceId) override {}
  std::vector<PrefillEvent> take_prefilled() override { return std::exchange(prefilled, {}); }
  std::vector<FinishEvent> take_finished() override { return std::exchange(finished, {}); }
  Result<uint64_t> apply(const WeightSnapshot&) override { return uint64_t{0}; }
  KvEvents take_kv_events() override { return std::exchange(kv_events, {}); }
  EngineState state() const override { return {}; }
  int32_t max_sequence_tokens() const override { return 1; }

  KvEvents kv_events;
  std::vector<PrefillEvent> prefilled;
  std::vector<FinishEvent> finished;
};

class OtherResource final : public Resource {};

Plan plan_of_one_group() {
  Plan plan;
  plan.resources.resize(2);
  plan.groups.resize(1);
  plan.groups[0].resources = {0, 1};
  return plan;
}

TEST(EngineMeter, HoldsWhatItAppliedLast) {
  auto board = std::make_shared<EngineMetrics>();
  const auto make = metering_factory(
      [](const Plan&, int32_t) -> Result<std::shared_ptr<Resource>> {
        return std::shared_ptr<Resource>(std::make_unique<PickyEngine>());
      },
      board, "");
  auto made = make(plan_of_one_group(), 1);
  ASSERT_TRUE(made.ok());
  auto& engine = dynamic_cast<Engine&>(**made);
  ASSERT_EQ(board->reports().size(), 1u);
  EXPECT_EQ(board->reports()[0].resource, 1u);
  EXPECT_EQ(board->reports()[0].group, 0u);
  EXPECT_EQ(board->reports()[0].version, -1) << "nothing was applied";
  const auto apply = [&](int64_t version, uint32_t tenant = 0) {
    WeightSnapshot snapshot;
    snapshot.key.tenant = TenantSlot(tenant);
    snapshot.version = PolicyVersion(version);
    return engine.apply(snapshot).ok();
  };
  EXPECT_TRUE(apply(3));
  EXPECT_FALSE(apply(10));  // refused: it still has the third
  EXPECT_EQ(board->reports()[0].version, 3);
  EXPECT_EQ(board->reports()[0].num_applied, 1u);
  const auto ninth =
      std::make_shared<const WeightSnapshot>(WeightSnapshot{{}, PolicyVersion(9), {}});
  EXPECT_FALSE(engine.apply_prepared(ninth).value().has_value());
  EXPECT_EQ(board->reports()[0].version, 3) << "the ninth is still being prepared";
  EXPECT_TRUE(engine.apply_prepared(ninth).value().has_value());
  EXPECT_EQ(board->reports()[0].version, 9);
  EXPECT_EQ(board->reports()[0].num_applied, 2u);
  EXPECT_TRUE(apply(9, 1));
  const auto reports = board->reports();
  ASSERT_EQ(reports.size(), 2u) << "equal versions of two tenants";
  EXPECT_EQ(reports[0].num_applied, 2u);
  EXPECT_EQ(reports[1].tenant, 1u);
  EXPECT_EQ(reports[1].version, 9);
  EXPECT_EQ(reports[1].num_applied, 1u);
  EXPECT_EQ(reports[1].group, 0u);
}

TEST(EngineMeter, HasOneEntryForASlotWhateverItsUses) {
  auto board = std::make_shared<EngineMetrics>();
  const auto make = metering_factory(
      [](const Plan&, int32_t) -> Result<std::shared_ptr<Resource>> {
        return std::shared_ptr<Resource>(std::make_unique<PickyEngine>());
      },
      board, "");
  auto made = make(plan_of_one_group(), 1);
  auto& engine = dynamic_cast<Engine&>(**made);
  const auto apply = [&](WeightsKey key) {
    WeightSnapshot snapshot;
    snapshot.key = key;
    snapshot.version = PolicyVersion(3);
    ASSERT_TRUE(engine.apply(snapshot).ok());
  };
  const WeightsKey stays{TenantSlot(1)};
  for (uint32_t use = 0; use < 100; ++use) {
    const WeightsKey key{TenantSlot(0), AdapterId(use)};
    apply(key);
    if (use == 50) apply(stays);
    EXPECT_EQ(board->reports().size(), use < 50 ? 1U : 2U);
    engine.drop({TenantSlot(7)});
    engine.drop(key);
    if (use < 50) {
      EXPECT_EQ(board->reports()[0].version, -1) << "as before the first";
    }
  }
  ASSERT_EQ(board->reports().size(), 1U);
  EXPECT_EQ(board->reports()[0].tenant, 1U);
}

TEST(EngineMeter, TellsHowLongEachRequestTook) {
  Time now;
  auto board = std::make_shared<EngineMetrics>([&now] { return now; });
  ToldEngine* told = nullptr;
  const auto make = metering_factory(
      [&told](const Plan&, int32_t) -> Result<std::shared_ptr<Resource>> {
        auto engine = std::make_unique<ToldEngine>();
        told = engine.get();
        return std::shared_ptr<Resource>(std::move(engine));
      },
      board, "");
  auto made = make(plan_of_one_group(), 1);
  ASSERT_TRUE(made.ok());
  auto& engine = dynamic_cast<Engine&>(**made);
  const auto pass = [&now](int64_t milliseconds) {
    now = now + Duration::nanoseconds(milliseconds * 1'000'000);
  };
  const auto submit = [&engine](uint64_t id, std::vector<int32_t> prompt) {
    SequenceRequest request;
    request.id = SequenceId(id);
    request.prompt_tokens = std::move(prompt);
    return engine.submit(std::move(request)).ok();
  };
  EXPECT_TRUE(submit(1, {1, 2, 3}));
  EXPECT_TRUE(submit(2, {1}));
  EXPECT_FALSE(submit(3, {}));
  pass(30);
  told->prefilled.push_back({SequenceId(1)});
  EXPECT_EQ(engine.take_prefilled().size(), 1U);
  pass(400);
  FinishEvent whole;
  whole.id = SequenceId(1);
  whole.reason = FinishReason::kLength;
  whole.tokens = {7, 7, 7, 7, 7};
  FinishEvent cancelled;
  cancelled.id = SequenceId(2);
  cancelled.reason = FinishReason::kCancelled;
  FinishEvent unknown;
  unknown.id = SequenceId(3);
  told->finished = {whole, cancelled, unknown};
  EXPECT_EQ(engine.take_finished().size(), 3U);
  const auto uses = board->uses();
  ASSERT_EQ(uses.size(), 1U);
  ASSERT_EQ(uses[0].requests.size(), kRequestValues);
  const auto sum = [&uses](RequestValue kind) {
    return uses[0].requests[static_cast<size_t>(kind)].sum;
  };
  EXPECT_DOUBLE_EQ(sum(RequestValue::kTimeToFirstToken), 0.03);
  EXPECT_DOUBLE_EQ(sum(RequestValue::kTime), 0.43);
  EXPECT_DOUBLE_EQ(sum(RequestValue::kTimePerOutputToken), 0.1);
  EXPECT_EQ(sum(RequestValue::kPromptTokens), 3);
  EXPECT_EQ(sum(RequestValue::kGenerationTokens), 5);
  for (const RequestHistogram& one : uses[0].requests)
    EXPECT_EQ(std::accumulate(one.counts.begin(), one.counts.end(), uint64_t{0}), 1U);
}

/// Counts prompt tokens that were not in the cache, and sampled tokens, of all ended requests,
/// however they ended.
TEST(EngineMeter, CountsWhatItComputedForEachTenant) {
  auto board = std::make_shared<EngineMetrics>();
  ToldEngine* told = nullptr;
  const auto make = metering_factory(
      [&told](const Plan&, int32_t) -> Result<std::shared_ptr<Resource>> {
        auto engine = std::make_unique<ToldEngine>();
        told = engine.get();
        return std::shared_ptr<Resource>(std::move(engine));
      },
      board, "");
  auto made = make(plan_of_one_group(), 1);
  ASSERT_TRUE(made.ok());
  auto& engine = dynamic_cast<Engine&>(**made);
  for (const uint32_t tenant : {0U, 1U}) {
    board->applied(1, 0, {{TenantSlot(tenant)}, PolicyVersion(0)}, Duration());
    SequenceRequest request;
    request.id = SequenceId(tenant);
    request.tenant = TenantSlot(tenant);
    request.prompt_tokens.resize(10 + tenant);
    ASSERT_TRUE(engine.submit(std::move(request)).ok());
  }
  FinishEvent ended;
  ended.id = SequenceId(0);
  ended.reason = FinishReason::kStop;
  ended.tokens = {7, 7, 7};
  ended.num_cached_tokens = 8;
  FinishEvent cancelled;
  cancelled.id = SequenceId(1);
  cancelled.reason = FinishReason::kCancelled;
  told->finished = {ended, cancelled};
  EXPECT_EQ(engine.take_finished().size(), 2U);
  const auto reports = board->reports();
  ASSERT_EQ(reports.size(), 2U);
  EXPECT_EQ(reports[0].num_tokens, 5U);
  EXPECT_EQ(reports[1].num_tokens, 11U);
}

/// One step of an engine with one cache event, with the option `kv_events_bytes_max`.
EngineUse use_after_an_event(int64_t kv_events_bytes_max, const std::filesystem::path& run_folder) {
  auto board = std::make_shared<EngineMetrics>();
  const auto make = metering_factory(
      [](const Plan&, int32_t) -> Result<std::shared_ptr<Resource>> {
        auto engine = std::make_unique<ToldEngine>();
        engine->kv_events.events.emplace_back().number = 1;
        return std::shared_ptr<Resource>(std::move(engine));
      },
      board, run_folder);
  Plan plan = plan_of_one_group();
  plan.groups[0].name = "prefill+decode";
  plan.groups[0].process = ProcessId(0);
  plan.processes.resize(1);
  EngineOptions options;
  options.kv_events_bytes_max = kv_events_bytes_max;
  plan.resources[1].name = "engine";
  plan.resources[1].backend = "torch";
  plan.resources[1].options = std::make_shared<EngineOptions>(options);
  const auto made = make(plan, 1);
  EXPECT_TRUE(made.ok());
  EXPECT_TRUE((*made)->step().ok());
  return board->uses().at(0);
}

TEST(EngineMeter, WritesTheEventsOfItsCacheWhereOptionsAskForThem) {
  const ScratchFolder folder;
  EXPECT_EQ(use_after_an_event(0, folder.path()).num_kv_events, 0U);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  EXPECT_EQ(use_after_an_event(1 << 20, folder.path()).num_kv_events, 1U);
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "kv_events" / "engine.prefill+decode.jsonl"));
  const EngineUse full = use_after_an_event(8, folder.path());
  EXPECT_EQ(full.num_kv_events, 0U);
  EXPECT_EQ(full.num_kv_events_dropped, 1U);
}

TEST(EngineMeter, OtherResourcesAndErrorsPassUnchanged) {
  auto board = std::make_shared<EngineMetrics>();
  const auto make = metering_factory(
      [](const Plan&, int32_t index) -> Result<std::shared_ptr<Resource>> {
        if (index == 1) return error(Code::kUnavailable, "none");
        return std::shared_ptr<Resource>(std::make_unique<OtherResource>());
      },
      board, "");
  const auto made = make(plan_of_one_group(), 0);
  ASSERT_TRUE(made.ok());
  EXPECT_NE(dynamic_cast<OtherResource*>(made->get()), nullptr);
  EXPECT_FALSE(make(plan_of_one_group(), 1).ok());
  EXPECT_TRUE(board->reports().empty());
}

TEST(EngineMetrics, TellsWhoHoldsAnEngineAndHowLongYet) {
  Time now = Time::from_nanoseconds(1'000);
  EngineMetrics board([&now] { return now; });
  board.add(3, 5);
  EXPECT_TRUE(board.uses().at(0).holders.empty());
  board.set_holders(3, 5, {{"anna", Duration::seconds(60)}, {"bert", Duration::seconds(5)}});
  now = now + Duration::seconds(10);
  const auto holders = board.uses().at(0).holders;
  ASSERT_EQ(holders.size(), 2U);
  EXPECT_EQ(holders[0].owner, "anna");
  EXPECT_EQ(holders[0].left_ns, Duration::seconds(50).to_nanoseconds());
  EXPECT_EQ(holders[1].left_ns, 0) << "its end is about to be told";
  board.set_holders(3, 5, {});
  EXPECT_TRUE(board.uses().at(0).holders.empty());
}

}  // namespace
}  // namespace primerl
