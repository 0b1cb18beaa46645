// Every field of every `.state(...)` matters: in some world there is a moment at which an actor
// that is made again without that field continues differently.
//
// The moments are in state_fields.tsv: field, world, event, instance. PRIMERL_UPDATE_GOLDEN=1
// searches for moments that are missing or no longer valid (a minute or two) and writes the table
// again. PRIMERL_SIM_WORLD=300211 with --gtest_filter=States.ARunWhose*DoesNotStall runs one world.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "actors/catalog.h"
#include "graph/base/random.h"
#include "tests/sim/field_tree.h"
#include "tests/sim/state_world.h"

namespace primerl::sim {
namespace {

constexpr uint64_t kWorldsMade = 48;   // worlds whose groups are made again at random moments
constexpr uint64_t kSavingMade = 18;   // the same for worlds that take time to write checkpoints
constexpr uint64_t kOutsideMade = 24;  // the same for worlds that ask outside
constexpr uint64_t kEvaluationsMade = 24;    // the same for worlds that measure their policy
constexpr uint64_t kClientsMade = 24;        // the same for worlds with a gateway or judges
constexpr uint64_t kTeachersMade = 24;       // the same for worlds with a teacher
constexpr uint64_t kMixesMade = 12;          // the same for worlds with several environments
constexpr uint64_t kTinkersMade = 24;        // the same for worlds with a Tinker client
constexpr uint64_t kDrainedWorld = 300'078;  // its router is down when the drain begins
constexpr uint64_t kWorldsSearched = 600;    // worlds searched for moments
constexpr uint64_t kLooksMax = 1500;         // looks at one of those worlds

/// A moment at which `field` matters.
struct Moment {
  std::string field;
  uint64_t world = 0, event = 0;
  std::string instance;
  bool is_found = true;  // false: no world has such a moment yet
};

std::string table_file() { return std::string(PRIMERL_SOURCE_DIR) + "/tests/sim/state_fields.tsv"; }

std::vector<Moment> read_table() {
  std::vector<Moment> table;
  std::ifstream file(table_file());
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    Moment& moment = table.emplace_back();
    words >> moment.field >> moment.world >> moment.event >> moment.instance;
    moment.is_found = !moment.instance.empty();
  }
  return table;
}

void write_table(std::vector<Moment> table, const std::set<std::string>& missing) {
  std::ranges::sort(table, {}, &Moment::field);
  std::ofstream file(table_file());
  file << "# When a field of a saved state matters: field, world, event, instance "
          "(states_test.cc).\n# A field alone is a debt: no world shows yet that it matters.\n";
  for (const std::string& field : missing) file << field << "\n";
  for (const Moment& moment : table)
    file << fmt::format("{}\t{}\t{}\t{}\n", moment.field, moment.world, moment.event,
                        moment.instance);
}

struct KnownField {
  StateField field;
  const StateShape* shape = nullptr;
};

/// All fields of all states, by name.
const std::map<std::string, KnownField>& all_fields() {
  static const auto all = [] {
    std::map<std::string, KnownField> fields;
    static std::vector<std::unique_ptr<StateShape>> shapes;
    for (const Contract& contract : actor_catalog()) {
      if (contract.state.kind != StateOfActor::Kind::kFields) continue;
      shapes.push_back(std::make_unique<StateShape>(contract));
      for (const StateField& field : shapes.back()->fields())
        fields[field.name] = {field, shapes.back().get()};
    }
    return fields;
  }();
  return all;
}

InstanceId instance_of(const Plan& plan, const std::string& name) {
  for (uint32_t i = 0; i < plan.instances.size(); ++i)
    if (plan.instances[i].name == name) return InstanceId(i);
  return {};
}

const PlanNode& node_of(const Plan& plan, InstanceId instance) {
  return plan.nodes[plan.instances[instance.index()].node.index()];
}

/// The index of an instance in its group, and so in a GroupState.
size_t place_of(const Plan& plan, InstanceId instance) {
  const auto& all = plan.group(plan.instances[instance.index()].group).instances;
  return static_cast<size_t>(std::ranges::find(all, instance) - all.begin());
}

WorldCut cut_without(const Plan& plan, uint64_t event, InstanceId instance,
                     const KnownField& known) {
  const PlanNode& node = node_of(plan, instance);
  return {
      event, instance,
      [&node, known, place = place_of(plan, instance)](GroupState& saved, const GroupState& fresh) {
        const void* options = node.options.get();
        const Contract& contract = *node.contract;
        FieldTree tree = tree_of(contract, options, saved.actors[place].state);
        known.shape->drop(tree, tree_of(contract, options, fresh.actors[place].state), known.field);
        saved.actors[place].state = saved_of(contract, options, tree);
      }};
}

/// Whether the world continues differently after this cut, or does not continue. It runs in a
/// process of its own, because an actor without a field may fail a CHECK.
bool continues_otherwise(uint64_t world, const WorldCut& cut, const std::vector<uint64_t>& marks) {
  const pid_t child = ::fork();
  if (child == 0) {
    (void)!::freopen("/dev/null", "w", stderr);
    const WorldRun run = run_world(world, {.cuts = {cut}, .expected = &marks, .look = nullptr});
    ::_exit(run.differs ? 1 : 0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

std::string_view text_of(const Blob& blob) {
  return {reinterpret_cast<const char*>(blob.bytes().data()), blob.size()};
}

/// Moments of one world at which a wanted field has a value, a few for each field.
class Candidates {
 public:
  static constexpr size_t kOfField = 3;
  Candidates(const Plan& plan, const std::set<std::string>& wanted, uint64_t stride)
      : plan_(plan), stride_(stride) {
    for (const std::string& name : wanted) wanted_.push_back(&all_fields().at(name));
  }

  void look(VirtualExecutor& executor, uint64_t event) {
    for (uint32_t i = 0; i < plan_.groups.size(); ++i) {
      if (mix(event, i) % stride_ != 0 || !executor.may_remake(GroupId(i))) continue;
      const GroupState state = executor.group(GroupId(i)).state();
      const auto& instances = plan_.groups[i].instances;
      for (size_t place = 0; place < instances.size(); ++place)
        look_at(instances[place], state.actors[place].state, event);
    }
  }

  std::map<std::string, std::vector<Moment>> found;

 private:
  void look_at(InstanceId instance, const SavedFields& saved, uint64_t event) {
    if (saved.body.empty()) return;  // a place holder: a client trains the tenant
    // The state has not changed since the last look.
    if (!seen_.insert(mix(instance.value, stable_hash(text_of(saved.body)))).second) return;
    const PlanNode& node = node_of(plan_, instance);
    const Contract& contract = *node.contract;
    const std::string prefix = contract.name + ".";
    if (std::ranges::none_of(wanted_, [&](const KnownField* known) {
          return known->field.name.starts_with(prefix);
        }))
      return;
    const void* options = node.options.get();
    const FieldTree tree = tree_of(contract, options, saved);
    const FieldTree fresh =
        tree_of(contract, options, save_actor(contract, *contract.make(options)));
    for (const KnownField* known : wanted_) {
      if (!known->field.name.starts_with(prefix)) continue;
      if (!known->shape->has_value(tree, fresh, known->field)) continue;
      auto& moments = found[known->field.name];
      const uint64_t number = ++num_seen_[known->field.name];
      Moment moment{known->field.name, 0, event, plan_.instances[instance.index()].name};
      if (moments.size() < kOfField)
        moments.push_back(std::move(moment));
      else if (const uint64_t at = mix(event, number) % number; at < kOfField)
        moments[at] = std::move(moment);
    }
  }

  const Plan& plan_;
  const uint64_t stride_;
  std::set<uint64_t> seen_;
  std::vector<const KnownField*> wanted_;
  std::map<std::string, uint64_t> num_seen_;
};

/// Searches the world for a moment of each wanted field.
std::vector<Moment> search(uint64_t world, const std::set<std::string>& wanted) {
  std::vector<Moment> found;
  const auto plan = world_plan(world);
  if (plan == nullptr) return found;
  const WorldRun plain = run_world(world);
  if (!plain.fault.empty()) return found;
  const uint64_t num_groups = plain.num_events * plan->groups.size();
  Candidates candidates(*plan, wanted, 1 + num_groups / kLooksMax);
  (void)run_world(
      world,
      {.cuts = {}, .expected = nullptr, .look = [&](VirtualExecutor& executor, uint64_t event) {
         candidates.look(executor, event);
       }});
  for (auto& [name, moments] : candidates.found) {
    for (Moment& moment : moments) {
      const WorldCut cut = cut_without(*plan, moment.event, instance_of(*plan, moment.instance),
                                       all_fields().at(name));
      if (!continues_otherwise(world, cut, plain.marks)) continue;
      moment.world = world;
      found.push_back(moment);
      break;
    }
  }
  return found;
}

/// Checks the moments of one world: an actor that is made again continues as before, and without
/// the field it does not. Returns the moments for which this fails.
std::vector<std::string> broken_moments(uint64_t world, const std::vector<Moment>& moments) {
  std::vector<std::string> broken;
  const auto plan = world_plan(world);
  if (plan == nullptr) return {fmt::format("world {} has no plan", world)};
  for (const Moment& moment : moments)
    if (instance_of(*plan, moment.instance).is_none())
      return {fmt::format("{} has no instance '{}'", describe_world(world), moment.instance)};
  const WorldRun plain = run_world(world);
  WorldHooks anew{.cuts = {}, .expected = &plain.marks, .look = nullptr};
  for (const Moment& moment : moments)
    anew.cuts.push_back({moment.event, instance_of(*plan, moment.instance), nullptr});
  std::ranges::sort(anew.cuts, {}, &WorldCut::event);
  if (run_world(world, anew).differs)
    broken.push_back(
        fmt::format("{}: an actor made anew does not continue as it was", describe_world(world)));
  for (const Moment& moment : moments) {
    const WorldCut cut = cut_without(*plan, moment.event, instance_of(*plan, moment.instance),
                                     all_fields().at(moment.field));
    if (!continues_otherwise(world, cut, plain.marks)) broken.push_back(moment.field);
  }
  return broken;
}

/// The first worlds, the first of those that take time to write checkpoints, of those that ask
/// outside, of those that measure their policy, of those with clients or judges, of those with a
/// teacher, of those with several environments, and of those with a Tinker client.
std::vector<uint64_t> worlds(uint64_t num_inside, uint64_t num_saving, uint64_t num_outside,
                             uint64_t num_evaluations, uint64_t num_clients, uint64_t num_teachers,
                             uint64_t num_mixes, uint64_t num_tinkers) {
  std::vector<uint64_t> all;
  for (uint64_t i = 0; i < num_tinkers; ++i) all.push_back(kTinkerWorlds + i);
  for (uint64_t i = 0; i < num_mixes; ++i) all.push_back(kMixWorlds + i);
  for (uint64_t i = 0; i < num_teachers; ++i) all.push_back(kTeacherWorlds + i);
  for (uint64_t i = 0; i < num_clients; ++i) all.push_back(kClientWorlds + i);
  if (num_clients <= kDrainedWorld - kClientWorlds) all.push_back(kDrainedWorld);
  for (uint64_t i = 0; i < num_evaluations; ++i) all.push_back(kEvaluationWorlds + i);
  for (uint64_t i = 0; i < num_outside; ++i) all.push_back(kOutsideWorlds + i);
  for (uint64_t i = 0; i < num_saving; ++i) all.push_back(kSavingWorlds + i);
  for (uint64_t i = 0; i < num_inside; ++i) all.push_back(i);
  return all;
}

TEST(States, AWorldGivesTheSameMarksEachTime) {
  for (const uint64_t world : worlds(2 * kWorldKinds, kSavingMade, kOutsideMade, kEvaluationsMade,
                                     kClientsMade, kTeachersMade, kMixesMade, kTinkersMade)) {
    const WorldRun once = run_world(world);
    ASSERT_EQ(once.fault, "") << describe_world(world);
    EXPECT_FALSE(run_world(world, {.cuts = {}, .expected = &once.marks, .look = nullptr}).differs)
        << describe_world(world);
    // A run ends at once if its first tasks fail.
    if (once.end.find("tasks in a row failed") == std::string::npos) {
      EXPECT_GT(once.marks.size(), 20U) << describe_world(world) << ": " << once.end;
    }
  }
}

/// Requests to a router that is down were lost, and the drain waited for their ends.
TEST(States, ARunWhoseRouterIsDownWhenItsDrainBeginsEnds) {
  const WorldRun run = run_world(kDrainedWorld);
  EXPECT_EQ(run.fault, "");
  EXPECT_EQ(run.end, "ok");
}

/// Whatever fails, a run either continues or ends with its reason, as long as all its processes
/// live. Once these stalled: tasks that failed (2), a router that died before its first request
/// (300211, 400412; 400256 while it drained), groups that failed before their first turn while a
/// curriculum kept tasks back (500057), and those that other replicas played (500209).
TEST(States, ARunWhoseProcessesLiveDoesNotStall) {
  std::vector<uint64_t> all = worlds(60, 40, 40, 40, 40, 40, 60, 60);
  all.insert(all.end(), {300'211, 400'256, 400'412, 500'209});
  if (const char* one = std::getenv("PRIMERL_SIM_WORLD"); one != nullptr)
    all = {std::strtoull(one, nullptr, 10)};
  for (const uint64_t world : all) {
    const WorldRun run = run_world(world);
    EXPECT_EQ(run.fault, "") << describe_world(world);
    EXPECT_TRUE(!run.has_stalled || run.has_dead) << describe_world(world) << ": " << run.end;
  }
}

TEST(States, ARunWhoseTasksFailEndsWithTheReason) {
  EXPECT_THAT(run_world(2).end, ::testing::HasSubstr("'env.ada': 3 tasks in a row failed"));
}

TEST(States, AnActorRestoredAtAnyMomentContinuesUnchanged) {
  for (const uint64_t world : worlds(kWorldsMade, kSavingMade, kOutsideMade, kEvaluationsMade,
                                     kClientsMade, kTeachersMade, kMixesMade, kTinkersMade)) {
    const WorldRun plain = run_world(world);
    ASSERT_EQ(plain.fault, "") << describe_world(world);
    RandomStream random(mix(world, 12));
    WorldHooks hooks{.cuts = {}, .expected = &plain.marks, .look = nullptr};
    const auto num_instances = world_plan(world)->instances.size();
    for (uint64_t event = 1; event < plain.num_events; event += 1 + random.below(40))
      hooks.cuts.push_back(
          {event, InstanceId(static_cast<uint32_t>(random.below(num_instances))), nullptr});
    EXPECT_FALSE(run_world(world, hooks).differs) << describe_world(world);
  }
}

TEST(States, EveryFieldHasAMomentAtWhichItMatters) {
  std::vector<Moment> table = read_table();
  const bool updates = std::getenv("PRIMERL_UPDATE_GOLDEN") != nullptr;
  std::map<uint64_t, std::vector<Moment>> by_world;
  std::set<std::string> missing;
  for (const auto& [name, known] : all_fields()) missing.insert(name);
  for (const Moment& moment : table) {
    const bool is_known = all_fields().contains(moment.field);
    EXPECT_TRUE(is_known || updates)
        << moment.field << ": no `.state(...)` names it any more, but it mattered";
    if (!is_known) continue;
    if (moment.is_found) by_world[moment.world].push_back(moment);
    if (moment.is_found || !updates) missing.erase(moment.field);
  }
  std::erase_if(table, [&](const Moment& moment) {
    return !all_fields().contains(moment.field) || (updates && !moment.is_found);
  });
  for (const auto& [world, moments] : by_world)
    for (const std::string& broken : broken_moments(world, moments)) {
      EXPECT_TRUE(updates) << broken << ", in " << describe_world(world);
      // `broken` is one field, or stands for all fields whose moments are in this world.
      std::erase_if(table, [&, world = world](const Moment& moment) {
        const bool is_lost =
            all_fields().contains(broken) ? moment.field == broken : moment.world == world;
        if (is_lost) missing.insert(moment.field);
        return is_lost;
      });
    }
  const char* few = std::getenv("PRIMERL_SIM_SEEDS");
  const uint64_t num_worlds = few == nullptr ? kWorldsSearched : std::strtoull(few, nullptr, 10);
  const auto searched = worlds(num_worlds, num_worlds, num_worlds, num_worlds, num_worlds,
                               num_worlds, num_worlds, num_worlds);
  for (size_t i = 0; updates && i < searched.size() && !missing.empty(); ++i) {
    const uint64_t world = searched[i];
    for (Moment& moment : search(world, missing)) {
      missing.erase(moment.field);
      table.push_back(std::move(moment));
    }
    write_table(table, missing);
  }
  EXPECT_THAT(missing, ::testing::IsEmpty())
      << "nothing shows that these fields of saved states matter: find a world in which they do "
         "(state_world.cc; PRIMERL_UPDATE_GOLDEN=1 looks for them), or take them out of the state";
}

}  // namespace
}  // namespace primerl::sim
