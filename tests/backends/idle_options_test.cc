// Every option of every resource: where it changes something, and the warning where it does not.
#include "runtime/backends/idle_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <sstream>

#include "kernels/engine/options.h"
#include "kernels/scripted/options.h"
#include "kernels/train/options.h"
#include "runtime/backends/resource_catalog.h"

namespace primerl {
namespace {

using testing::Contains;
using testing::IsEmpty;
using testing::Not;
using testing::UnorderedElementsAre;

using Names = std::set<std::string>;

Names names(const std::string& text) {
  std::istringstream words(text);
  return {std::istream_iterator<std::string>(words), std::istream_iterator<std::string>()};
}

/// "optimizer.lr" and so on; the options of tables in place of the tables.
void add_paths(const OptionSet& options, const std::string& prefix, Names& paths) {
  for (const auto& field : options.fields)
    if (field.table != nullptr)
      add_paths(*field.table, prefix + field.name + ".", paths);
    else
      paths.insert(prefix + field.name);
}

const std::string kEngine =
    "kv_blocks block_size max_running max_waiting max_batched_tokens max_prefill_tokens "
    "prefix_cache max_sequence_tokens threads ";
const std::string kLearner =
    "loss.kind optimizer.kind optimizer.lr optimizer.weight_decay optimizer.max_norm "
    "optimizer.no_decay schedule.kind schedule.warmup_steps micro_batch_tokens threads ";
const std::string kOptimizer =
    "optimizer.beta1 optimizer.beta2 optimizer.epsilon optimizer.momentum optimizer.nesterov "
    "optimizer.decay_rate optimizer.update_clip optimizer.scale_min optimizer.moments_dtype "
    "optimizer.moments_on ";
const std::string kSchedule = "schedule.decay_steps schedule.min_lr ";
const std::string kLoss =
    "loss.clip_low loss.clip_high loss.advantage_weight loss.kl_weight loss.clip_dual "
    "loss.weight_low loss.weight_high loss.moment_max loss.proximal_share loss.reference_weight "
    "loss.jsd_beta loss.mean loss.mean_tokens ";

/// An option is in exactly one list. `always`: it changes something on every device and for all
/// tenants. A scripted resource accepts the options of the real one that it replaces.
struct Effects {
  std::string always;
  std::string sometimes;  // idle_options() reports where it does not; the tests below
};
const std::map<std::string, Effects> kEffects = {
    {"engine torch",
     {kEngine + "dtype products routed_experts debug.check_finite",
      "adapter_slots adapter_host_bytes_max numerics kv_events_bytes_max"}},
    {"engine scripted",
     {kEngine + "seed vocab_size first_token eos_id new_tokens_min new_tokens_max tail_fraction "
                "refuse_every device_fault_file logprob_shift step_cost prefill_token_cost "
                "decode_token_cost apply_cost",
      "adapter_slots adapter_host_bytes_max tail_factor adapter_load_cost"}},
    {"learner torch",
     {kLearner +
          "recompute numerics dtype products debug.check_finite debug.batch_folder init_seed "
          "peak_tflops",
      kLoss + kOptimizer + kSchedule + "adapter_batch_tokens device_snapshots debug.batches_max"}},
    {"learner scripted",
     {kLearner + kLoss + kOptimizer +
          "seed vocab_size max_sequence_tokens step_cost token_cost snapshot_cost "
          "save_time device_fault_file loss_shift",
      kSchedule + "adapter_batch_tokens"}},
    {"outside http",
     {"listen keys_file key_prefix tenant_tokens tls_cert tls_key url connections_max requests_max "
      "header_bytes_max "
      "body_bytes_max "
      "bytes_max idle_timeout receive_timeout send_timeout",
      ""}},
    {"weight_channel auto", {"versions_max", ""}},
    {"weight_channel memory", {"versions_max", ""}},
    {"weight_channel shm", {"versions_max", ""}},
    {"weight_channel files", {"versions_max", ""}},
    {"weight_channel stream", {"versions_max", ""}},
};

const Names kCpu = {"cpu"}, kCuda = {"cuda:0"}, kBoth = {"cpu", "cuda:1"};

std::vector<Tenant> tenants(int64_t rank) {
  Tenant tenant;
  tenant.adapter.rank = rank;
  return {tenant};
}

/// The options that change nothing; each has a reason and says what to do.
std::vector<std::string> idle(const std::string& kind, const std::string& backend,
                              const void* options, const Names& devices, int64_t rank = 0) {
  const auto* contract = full_catalog().find_resource(kind, backend);
  std::vector<std::string> found;
  for (const auto& each : contract->idle_options(options, devices, tenants(rank))) {
    EXPECT_FALSE(each.reason.empty()) << each.option;
    EXPECT_THAT(each.help, testing::HasSubstr("remove the key")) << each.option;
    found.push_back(each.option);
  }
  return found;
}

TEST(IdleOptions, EveryOptionStatesWhereItHasAnEffect) {
  for (const auto& contract : resource_contracts()) {
    const std::string resource = contract.kind + " " + contract.backend;
    const auto found = kEffects.find(resource);
    ASSERT_NE(found, kEffects.end()) << resource;
    const Names always = names(found->second.always), sometimes = names(found->second.sometimes);
    Names stated = always, paths;
    stated.insert(sometimes.begin(), sometimes.end());
    EXPECT_EQ(stated.size(), always.size() + sometimes.size()) << resource << ": one is in both";
    add_paths(contract.options, "", paths);
    EXPECT_EQ(stated, paths) << resource;
    if (!contract.idle_options) {
      EXPECT_THAT(sometimes, IsEmpty()) << resource;
      continue;
    }
    // With the values of the structs, in every setup.
    Names idle_ones;
    for (const Names& devices : {kCpu, kCuda, kBoth})
      for (const int64_t rank : {0, 8})
        for (const auto& each :
             contract.idle_options(contract.options.make().get(), devices, tenants(rank)))
          idle_ones.insert(each.option);
    for (const std::string& option : idle_ones) {
      EXPECT_THAT(sometimes, Contains(option)) << resource;
      EXPECT_THAT(paths, Contains(option)) << resource << " has no such option";
    }
  }
}

TEST(IdleOptions, AnEngineOnTheCpuHasInvariantNumericsOnly) {
  EngineOptions options;
  EXPECT_THAT(idle("engine", "torch", &options, kCpu), IsEmpty()) << "it says what is so";
  options.numerics = "fast";
  EXPECT_THAT(idle("engine", "torch", &options, kCpu), UnorderedElementsAre("numerics"));
  EXPECT_THAT(idle("engine", "torch", &options, kBoth), IsEmpty());
  EXPECT_THAT(idle("engine", "torch", &options, kCuda), IsEmpty());
}

TEST(IdleOptions, EventsNeedThePrefixCacheThatTheyAreOf) {
  EngineOptions options;
  options.kv_events_bytes_max = 1;
  EXPECT_THAT(idle("engine", "torch", &options, kCuda), IsEmpty());
  options.prefix_cache = false;
  EXPECT_THAT(idle("engine", "torch", &options, kCuda),
              UnorderedElementsAre("kv_events_bytes_max"));
  options.kv_events_bytes_max = 0;
  EXPECT_THAT(idle("engine", "torch", &options, kCuda), IsEmpty());
}

TEST(IdleOptions, CopiesOfAdaptersNeedFewerSlotsThanAdapters) {
  EngineOptions options;
  const auto is_idle = [&](std::vector<Tenant> all) {
    const auto found =
        full_catalog().find_resource("engine", "torch")->idle_options(&options, kCuda, all);
    return std::ranges::any_of(
        found, [](const auto& each) { return each.option == "adapter_host_bytes_max"; });
  };
  std::vector<Tenant> two = {tenants(8).front(), tenants(8).front()};
  EXPECT_FALSE(is_idle(two)) << "it says what is so";
  options.adapter_host_bytes_max = 1 << 20;
  EXPECT_TRUE(is_idle(two)) << "a slot for each";
  EXPECT_TRUE(is_idle(tenants(0)));
  options.adapter_slots = 1;
  EXPECT_FALSE(is_idle(two));
  options.adapter_slots = 0;
  two.front().is_client = true;
  two.front().snapshots = 2;
  EXPECT_FALSE(is_idle(two)) << "snapshots of a client have no slot each";
}

TEST(IdleOptions, AdapterBatchesNeedAdaptersThatShareAPass) {
  LearnerOptions options;
  const auto is_idle = [&](const Names& devices, int64_t rank) {
    const auto found = idle("learner", "torch", &options, devices, rank);
    return std::ranges::find(found, "adapter_batch_tokens") != found.end();
  };
  EXPECT_TRUE(is_idle(kCpu, 0));
  EXPECT_FALSE(is_idle(kCpu, 1));
  EXPECT_TRUE(is_idle(kCuda, 1));
  EXPECT_FALSE(is_idle(kBoth, 1));
  options.numerics = "fast";
  EXPECT_TRUE(is_idle(kCpu, 1));
  ScriptedLearnerOptions scripted;
  EXPECT_THAT(idle("learner", "scripted", &scripted, kCpu, 0), Contains("adapter_batch_tokens"));
  EXPECT_THAT(idle("learner", "scripted", &scripted, kCpu, 1),
              Not(Contains("adapter_batch_tokens")));
}

TEST(IdleOptions, SnapshotsOnADeviceNeedOne) {
  const LearnerOptions options;
  EXPECT_THAT(idle("learner", "torch", &options, kCpu), Contains("device_snapshots"));
  EXPECT_THAT(idle("learner", "torch", &options, kCuda), Not(Contains("device_snapshots")));
}

TEST(IdleOptions, ValuesOfALossOrScheduleNeedATenantThatUsesIt) {
  LearnerOptions options;
  EXPECT_THAT(idle("learner", "torch", &options, kCuda),
              testing::IsSupersetOf({"schedule.decay_steps", "schedule.min_lr"}));
  EXPECT_THAT(idle("learner", "torch", &options, kCuda), Not(Contains("loss.clip_low")));
  options.schedule.kind = "cosine";
  EXPECT_THAT(idle("learner", "torch", &options, kCuda), Not(Contains("schedule.min_lr")));
  // Tenants of other objectives take none of its numbers.
  std::vector<Tenant> two(2);
  two[0].loss.kind = two[1].loss.kind = "grpo";
  std::vector<std::string> found;
  for (const auto& each : idle_learner_options(&options, kCuda, two)) found.push_back(each.option);
  EXPECT_THAT(found, testing::IsSupersetOf({"loss.clip_low", "loss.kl_weight", "loss.mean"}));
  two[1].loss.kind.clear();
  for (const auto& each : idle_learner_options(&options, kCuda, two))
    EXPECT_THAT(each.option, Not(testing::StartsWith("loss.")));
}

TEST(IdleOptions, TheRestNeedsTheOptionThatItBelongsTo) {
  LearnerOptions learner;
  EXPECT_THAT(idle("learner", "torch", &learner, kCpu), Contains("debug.batches_max"));
  learner.debug.batch_folder = "batches";
  EXPECT_THAT(idle("learner", "torch", &learner, kCpu), Not(Contains("debug.batches_max")));
  ScriptedEngineOptions engine;
  EXPECT_THAT(idle("engine", "scripted", &engine, kCpu),
              UnorderedElementsAre("tail_factor", "adapter_load_cost"));
  engine.tail_fraction = 0.01;
  EXPECT_THAT(idle("engine", "scripted", &engine, kCpu, 1), IsEmpty());
}

}  // namespace
}  // namespace primerl
