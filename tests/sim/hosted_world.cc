#include "tests/sim/hosted_world.h"

#include <algorithm>
#include <fstream>
#include <tuple>

#include "actors/messages/rollout.h"
#include "graph/base/files.h"
#include "graph/base/json.h"
#include "graph/base/random.h"
#include "graph/joining.h"
#include "graph/tenancies.h"
#include "kernels/engine/engine.h"
#include "kernels/weights/snapshot.h"
#include "runtime/backends/backends.h"
#include "runtime/backends/resource_catalog.h"
#include "runtime/backends/tenant_resources.h"
#include "runtime/exec/virtual_executor.h"
#include "tests/sim/demo_run.h"
#include "tests/sim/field_tree.h"

namespace primerl::sim {
namespace {

using ChangeKind = TenantChange::Kind;

constexpr std::string_view kStayer = "stays";
const std::vector<std::string> kGuestNames = {"ada", "bo", "cy", "di", "ed", "fay"};

std::string table_of(std::string_view name, int64_t stayer_steps) {
  const uint64_t draw = stable_hash(name);
  const uint64_t group_size = 2 + draw % 2, num_groups = 1 + draw / 8 % 2;
  const auto guest_steps = static_cast<int64_t>(2 + draw / 32 % 3);
  return fmt::format(
      "[tenant.{0}]\n"
      "environment = {{ name = \"{1}\" }}\n"
      "group_size = {2}\nbatch_size = {3}\nmax_steps = {4}\nmax_off_policy_steps = 0\n"
      "filters = {{ zero_advantage = false }}\nsampling = {{ max_tokens = {5} }}\n"
      "[tenant.{0}.adapter]\nrank = {6}\n\n",
      name, draw / 16 % 2 == 0 ? "reverse_text" : "copy", group_size, group_size * num_groups,
      name == kStayer ? stayer_steps : guest_steps, 4 + draw / 128 % 8, 2 + draw / 1024 % 14);
}

/// The graph of examples/two_tenants with these tenants instead, and four slots.
CheckedGraph graph_of(const std::vector<std::string>& names, int64_t stayer_steps,
                      const std::vector<std::string>& sets = {}) {
  const std::string example = std::string(PRIMERL_SOURCE_DIR) + "/examples/two_tenants/graph.toml";
  const std::string text = read_text_file(example, 1 << 20).value();
  const size_t begin = text.find("[tenant."), end = text.find("[model.");
  std::string tables;
  for (const auto& name : names) tables += table_of(name, stayer_steps);
  const auto file = scratch_folder() / "hosted.toml";
  std::ofstream(file) << text.substr(0, begin) << tables << text.substr(end);
  Overrides overrides;
  overrides.sets = {
      fmt::format("model.policy.path=\"{}/examples/reverse_text/base\"", PRIMERL_SOURCE_DIR),
      "resource.engine.backend=\"scripted\"",
      "resource.learner.backend=\"scripted\"",
      "node.rollout.max_inflight=8",
      "node.trainer.lost_batches_max=3",
      "graph.tenant_limits={ tenants_max = 4, rank = 16, group_size = 4, batch_size = 8 }"};
  overrides.sets.insert(overrides.sets.end(), sets.begin(), sets.end());
  overrides.cores = 2;
  return load_graph(file.string(), overrides, full_catalog());
}

/// The tables that a join brings, by name.
const std::map<std::string, std::string>& guest_tables() {
  static const std::map<std::string, std::string> all = [] {
    std::map<std::string, std::string> tables;
    for (const std::string& name : kGuestNames) {
      const CheckedGraph graph = graph_of({std::string(kStayer), name}, 12);
      CHECK(graph.plan != nullptr, "a guest's table is not valid");
      tables[name] = tenant_tables(graph.plan->resolved_toml).at(name);
    }
    return tables;
  }();
  return all;
}

class Host final : public ProcessServices, public RunFiles {
 public:
  RunFiles& files() override { return *this; }
  void publish_metrics(TenantSlot tenant, int64_t step, const MetricValues& values) override {
    if (tenant != stayer) return;
    std::string line = fmt::format("{}", step);
    for (const auto& [name, value] : values)
      if (!name.starts_with("time/") && !name.starts_with("perf/"))
        line += fmt::format(" {}={}", name, value);
    left.metrics.push_back(std::move(line));
  }
  void log(LogLevel, std::string_view, std::string_view) override {}
  const ResumePoint* resume_point(TenantSlot) const override { return nullptr; }
  Status append_line(std::string_view file, std::string_view text) override {
    if (file != "rollouts.jsonl") return ok();
    const Json line = parse_json(std::string(text), "a line").value();
    const bool is_trained = *line.get_string("end") == "trained";
    num_trained += is_trained ? 1 : 0;
    if (is_trained && *line.get_string("tenant") == kStayer) left.rollouts.emplace_back(text);
    return ok();
  }
  Result<std::filesystem::path> begin_checkpoint(TenantSlot, int64_t) override {
    return scratch_folder();
  }
  Status commit_checkpoint(TenantSlot, int64_t, const Json&) override { return ok(); }

  TenantSlot stayer;
  StayerResults left;
  int64_t num_trained = 0;
};

/// Fails messages to actors of guests, rarely.
class FaultsOfGuests final : public StepHooks {
 public:
  FaultsOfGuests(const Plan& plan, TenantSlot stayer, uint64_t seed)
      : plan_(plan), stayer_(stayer), seed_(seed) {}
  Injection before(const StepAbout& about) override {
    if (about.kind != StepKind::kMessage || about.instance.is_none()) return {};
    const TenantSlot own = plan_.instance(about.instance).tenant;
    if (own.is_none() || own == stayer_) return {};
    if (mix(mix(seed_, about.instance.value), about.delivery) % 150 != 0) return {};
    ++num_faults;
    return {error(Code::kInternal, "made to fail"), {}};
  }
  int64_t num_faults = 0;

 private:
  const Plan& plan_;
  const TenantSlot stayer_;
  const uint64_t seed_;
};

/// Lets guests join and leave at random moments, as a control plane would.
class GuestsOfWorld {
 public:
  GuestsOfWorld(const Plan& plan, TenantSlot stayer, const HostedCase& hosted)
      : stayer_(stayer), joins_max_(hosted.joins_max), random_(mix(hosted.seed, 41)) {
    for (uint32_t slot = 0; slot < plan.num_slots(); ++slot)
      if (TenantSlot(slot) != stayer) places_[TenantSlot(slot)];
    // As the control plane does: the tenants of the file have number 0.
    for (const Tenant& tenant : plan.tenants) (void)tenancies_.begin(tenant.slot, tenant.name);
  }

  ExecutorEvents events() {
    ExecutorEvents events;
    events.tenant_changed = [this](const TenantChange& change, const Status& status) {
      Place& place = places_.at(change.slot);
      if (!status.ok()) faults.push_back(status.error().text());
      if (change.kind == ChangeKind::kJoin) place.state = State::kJoined;
      if (change.kind == ChangeKind::kStart) {
        place.state = State::kTrains;
        ++num_started;
      }
      if (change.kind == ChangeKind::kLeave) {
        place = Place();
        ++num_left;
      }
    };
    events.tenant_drained = [this](TenantSlot slot) { places_.at(slot).state = State::kDrained; };
    events.tenant_finished = [this](TenantSlot slot, uint32_t) {
      if (slot == stayer_)
        has_stayer_finished = true;
      else
        places_.at(slot).has_finished = true;
    };
    events.tenant_failed = [this](TenantSlot slot, const std::string& why) {
      if (slot == stayer_)
        faults.push_back("the one who stays failed: " + why);
      else
        places_.at(slot).has_finished = true;
    };
    return events;
  }

  void after_event(VirtualExecutor& executor) {
    for (auto& [slot, place] : places_) {
      switch (place.state) {
        case State::kFree:
          if (!is_over() && random_.below(300) == 0) join(executor, slot, place);
          break;
        case State::kJoined:
          give(executor, ChangeKind::kStart, slot, place);
          break;
        case State::kTrains:
          if (place.has_finished || is_over() || random_.below(4'000) == 0) {
            place.state = State::kDrains;
            executor.drain_tenant(slot);
          } else if (random_.below(2'000) == 0) {
            give(executor, place.is_paused ? ChangeKind::kResume : ChangeKind::kPause, slot, place);
            place.state = State::kTrains;
            place.is_paused = !place.is_paused;
            ++num_pauses;
          } else if (random_.below(1'000) == 0) {
            give(executor, ChangeKind::kSet, slot, place);
            place.state = State::kTrains;
            ++num_set;
          }
          break;
        case State::kDrained:
          give(executor, ChangeKind::kLeave, slot, place);
          break;
        case State::kAsked:
        case State::kDrains:
          break;
      }
    }
  }
  /// No guest joins any more, and those that are there leave.
  bool is_over() const { return has_stayer_finished || std::ssize(uses) >= joins_max_; }
  bool are_gone() const {
    return std::ranges::all_of(places_,
                               [](const auto& each) { return each.second.state == State::kFree; });
  }

  /// The state of each slot, for a person.
  std::string text() const {
    std::string text;
    for (const auto& [slot, place] : places_)
      text +=
          fmt::format("slot {}: '{}', state {}\n", slot, place.name, static_cast<int>(place.state));
    return text;
  }

  bool has_stayer_finished = false;
  int64_t num_started = 0, num_left = 0, num_pauses = 0, num_set = 0;
  std::vector<WeightsKey> uses;  // of slots, by guests
  std::vector<std::string> faults;

 private:
  enum class State { kFree, kAsked, kJoined, kTrains, kDrains, kDrained };
  struct Place {
    State state = State::kFree;
    std::string name;
    uint32_t tenancy = 0;
    bool has_finished = false, is_paused = false;
  };
  void join(VirtualExecutor& executor, TenantSlot slot, Place& place) {
    const std::string& name = kGuestNames[random_.below(kGuestNames.size())];
    const bool is_here = std::ranges::any_of(
        places_, [&name](const auto& each) { return each.second.name == name; });
    if (is_here) return;
    place.name = name;
    place.tenancy = tenancies_.begin(slot, name).value();
    uses.push_back({slot, AdapterId(place.tenancy)});
    give(executor, ChangeKind::kJoin, slot, place);
  }
  void give(VirtualExecutor& executor, ChangeKind kind, TenantSlot slot, Place& place) {
    place.state = State::kAsked;
    const std::string table = kind == ChangeKind::kJoin  ? guest_tables().at(place.name)
                              : kind == ChangeKind::kSet ? some_values()
                                                         : "";
    const Status given = executor.change_tenant({kind, slot, place.tenancy, place.name, table});
    if (!given.ok()) faults.push_back(given.error().text());
  }
  std::string some_values() {
    return fmt::format("inflight = {}\nmax_off_policy_steps = {}\nmax_steps = {}\nshare = 0.{}\n",
                       4 + random_.below(5), random_.below(3), 1 + random_.below(4),
                       1 + random_.below(3));
  }

  const TenantSlot stayer_;
  const int64_t joins_max_;
  RandomStream random_;
  Tenancies tenancies_;
  std::map<TenantSlot, Place> places_;
};

/// Adds the entries of the lists in a saved state.
void count_lists(const FieldTree& tree, const std::string& path, Census& census) {
  if (tree.kind == FieldTree::Kind::kList) census[path] += tree.items.size();
  for (size_t i = 0; i < tree.items.size(); ++i) {
    const bool is_named = tree.kind == FieldTree::Kind::kStruct && i < tree.names.size();
    count_lists(tree.items[i], is_named ? path + "." + tree.names[i] : path + "[]", census);
  }
}

void count_group(const Plan& plan, const GroupState& state, HostedResult& ended) {
  const PlanGroup& group = plan.group(state.group);
  if (!state.slots.empty() || !state.values.empty())
    ended.faults.push_back(fmt::format("'{}' has a tenant left", group.name));
  Census& census = ended.census;
  for (size_t place = 0; place < state.actors.size(); ++place) {
    const SavedActor& saved = state.actors[place];
    const PlanInstance& instance = plan.instance(group.instances[place]);
    const PlanNode& node = plan.node(instance.node);
    census[instance.name + " restarts"] = saved.restarts.size();
    census[instance.name + " counters"] = saved.counters.size();
    if (saved.state.body.empty()) continue;  // a place holder
    count_lists(tree_of(*node.contract, node.options.get(), saved.state), instance.name, census);
  }
  census[group.name + " failed"] = state.failed.size();
  census[group.name + " set_aside"] = state.set_aside.size();
  census[group.name + " leaving"] = state.leaving.size();
  census[group.name + " paused"] = state.paused.size();
  census[group.name + " inputs"] = state.inputs.size();
  census[group.name + " timers"] = state.timers.size();
  for (const SavedOutLink& link : state.out_links)
    census[group.name + " outboxes"] += link.outbox.size() + link.unacknowledged.size();
}

/// Adds a fault for each thing that a resource still has of guests, who all have left.
void look_for_rests(Resource& resource, const std::vector<WeightsKey>& uses,
                    std::vector<std::string>& faults) {
  if (auto* engine = dynamic_cast<Engine*>(&resource); engine != nullptr) {
    const EngineState state = engine->state();
    if (state.num_running + state.num_waiting + state.num_held > 0)
      faults.emplace_back("an engine has sequences left");
    for (const WeightsKey& key : uses)
      if (!state.versions.of(key).is_none())
        faults.push_back(fmt::format("an engine has a version of {} left", key));
  }
  if (auto* channel = dynamic_cast<WeightChannel*>(&resource); channel != nullptr)
    for (const WeightsKey& key : uses)
      if (!channel->newest(key).is_none())
        faults.push_back(fmt::format("a channel has a version of {} left", key));
}

}  // namespace

CheckedGraph hosted_graph(int64_t max_steps, const std::vector<std::string>& sets) {
  return graph_of({std::string(kStayer)}, max_steps, sets);
}

HostedResult run_hosted(const CheckedGraph& graph, const HostedCase& hosted) {
  const uint64_t seed = hosted.seed;
  auto plan = std::make_shared<Plan>(*graph.plan);
  plan->settings.seed = static_cast<int64_t>(seed);
  HostedResult ended;
  Host host;
  host.stayer = plan->tenants.front().slot;
  GuestsOfWorld guests(*plan, host.stayer, hosted);
  FaultsOfGuests faults(*plan, host.stayer, seed);
  std::vector<std::shared_ptr<Resource>> resources;
  const ResourceFactory make = resource_factory();
  const ResourceFactory factory = [&](const Plan& of,
                                      int32_t index) -> Result<std::shared_ptr<Resource>> {
    auto made = make(of, index);
    if (made.ok()) resources.push_back(*made);
    return made;
  };
  std::map<std::tuple<std::string, TenantSlot, uint32_t>, std::shared_ptr<const Tenant>> made;
  const bool has_faults = hosted.guests == Guests::kFaulty || hosted.guests == Guests::kAll;
  const bool remakes_groups = hosted.guests == Guests::kRemakes || hosted.guests == Guests::kAll;
  VirtualOptions options;
  options.seed = seed;
  options.step_hooks = has_faults ? &faults : nullptr;
  options.events_max = 4'000'000'000;
  options.tenant_resources = notify_resource;
  options.events = guests.events();
  options.is_hosted = true;
  options.make_tenant = [&](const Plan& of, const TenantChange& change) {
    auto& tenant = made[{change.name, change.slot, change.tenancy}];
    if (tenant == nullptr) tenant = tenant_of_join(of, change, *of.catalog).value();
    return Result<std::shared_ptr<const Tenant>>(tenant);
  };
  options.repeat_with =
      fmt::format("PRIMERL_SEED={} build/bin/sim_test --gtest_filter='Hosted.*'", seed);
  VirtualExecutor executor(plan, factory, host, options);
  if (const Status started = executor.start(); !started.ok()) {
    ended.faults.push_back(started.error().text());
    return ended;
  }
  const Time began = executor.now();
  RandomStream remakes(mix(seed, 43));
  bool is_drained = false;
  while (executor.advance()) {
    if (hosted.guests != Guests::kNone) guests.after_event(executor);
    if (remakes_groups && remakes.below(50) == 0) {
      const GroupId group(static_cast<uint32_t>(remakes.below(plan->groups.size())));
      if (executor.may_remake(group)) {
        const Status remade = executor.remake(group);
        if (!remade.ok()) ended.faults.push_back(remade.error().text());
        ++ended.num_remade;
      }
    }
    const bool is_over = guests.is_over() || host.left.metrics.size() >= hosted.steps_max;
    if (!is_drained && is_over && guests.are_gone()) {
      is_drained = true;
      executor.request_drain();
    }
  }
  ended.outcome = executor.wait();
  if (ended.outcome.end == RunEnd::kStalled)
    ended.faults.push_back(guests.text() + executor.stall_report().text());
  const bool is_at_rest = ended.outcome.end == RunEnd::kInterrupted;
  for (uint32_t i = 0; i < plan->groups.size() && is_at_rest; ++i)
    count_group(*plan, executor.group(GroupId(i)).state(), ended);
  for (const auto& resource : resources) look_for_rests(*resource, guests.uses, ended.faults);
  ended.faults.insert(ended.faults.end(), guests.faults.begin(), guests.faults.end());
  ended.num_started = guests.num_started;
  ended.num_left = guests.num_left;
  ended.num_pauses = guests.num_pauses;
  ended.num_set = guests.num_set;
  ended.lasted = executor.now() - began;
  ended.num_faults = faults.num_faults;
  ended.num_trained = host.num_trained;
  std::sort(host.left.rollouts.begin(), host.left.rollouts.end());
  ended.stayer = std::move(host.left);
  return ended;
}

}  // namespace primerl::sim
