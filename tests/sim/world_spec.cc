#include "tests/sim/world_spec.h"

#include <fstream>
#include <limits>
#include <map>

#include "actors/env/env.h"
#include "actors/router/router.h"
#include "graph/base/files.h"
#include "graph/base/random.h"
#include "kernels/train/learner.h"
#include "runtime/backends/backends.h"
#include "runtime/backends/resource_catalog.h"
#include "tests/sim/demo_run.h"
#include "tests/sim/world_clients.h"
#include "tests/sim/world_outside.h"
#include "tests/sim/world_tinker.h"

namespace primerl::sim {
namespace {

bool one_of(RandomStream& random, uint64_t count) { return random.below(count) == 0; }

void add_engine_sets(const WorldSpec& spec, RandomStream& random, std::vector<std::string>& sets) {
  const auto set = [&](std::string text) { sets.push_back(std::move(text)); };
  if (spec.kind == WorldKind::kCrowd) {
    set("resource.engine.max_running=200");
    set("resource.engine.max_waiting=200");
    set("resource.engine.kv_blocks=4096");
    set("resource.engine.new_tokens_min=6");
    set("resource.engine.new_tokens_max=6");
    return;
  }
  set(fmt::format("resource.engine.max_running={}", 1 + random.below(8)));
  set(fmt::format("resource.engine.max_waiting={}", 1 + random.below(6)));
  set(fmt::format("resource.engine.refuse_every={}", one_of(random, 4) ? 17 : 0));
  set("resource.engine.tail_fraction=0.1");
  set("resource.engine.tail_factor=6");
  set(fmt::format("resource.learner.step_cost=\"{}ms\"", 1 + random.below(12)));
  if (one_of(random, 3)) set("resource.learner.vocab_size=93");
  if (one_of(random, 3)) set("node.prefill.lease=\"600us\"");
  if (one_of(random, 3)) set("node.prefill.session_tokens_max=60");
}

bool has_deaths(WorldKind kind) {
  return kind == WorldKind::kRouterDies || kind == WorldKind::kEnginesDie ||
         kind == WorldKind::kEnvironmentDies;
}

bool has_mix(uint64_t number) { return number >= kMixWorlds && number < kTinkerWorlds; }

bool has_evaluations(uint64_t number) {
  if (has_mix(number)) return number % 2 == 1;
  return number >= kEvaluationWorlds && number < kClientWorlds;
}
bool is_outside(uint64_t number) {
  if (number >= kTeacherWorlds) return false;
  return number >= kEvaluationWorlds ? number % 2 == 1 : number >= kOutsideWorlds;
}

/// Worlds with a teacher, or with held-out examples.
bool is_distilled(uint64_t number) { return number >= kTeacherWorlds && number < kMixWorlds; }

WorldKind kind_of(uint64_t number) {
  if (number < kOutsideWorlds) return static_cast<WorldKind>(number % kWorldKinds);
  // The nodes of a teacher are implied only in a graph without edges: that of one tenant.
  constexpr WorldKind kOfOneTenant[] = {WorldKind::kOneTenant,  WorldKind::kEnvironmentDies,
                                        WorldKind::kRouterDies, WorldKind::kEnginesDie,
                                        WorldKind::kResumed,    WorldKind::kSupervised};
  if (is_distilled(number)) return kOfOneTenant[number % std::size(kOfOneTenant)];
  constexpr WorldKind kOfTinker[] = {WorldKind::kOneTenant, WorldKind::kTwoTenants,
                                     WorldKind::kRouterDies, WorldKind::kEnginesDie};
  if (number >= kTinkerWorlds) return kOfTinker[number % std::size(kOfTinker)];
  constexpr WorldKind kKinds[] = {WorldKind::kOneTenant,       WorldKind::kTwoTenants,
                                  WorldKind::kEnvironmentDies, WorldKind::kRouterDies,
                                  WorldKind::kEnginesDie,      WorldKind::kResumed};
  return kKinds[number / (number >= kEvaluationWorlds ? 2 : 1) % std::size(kKinds)];
}

/// With random numbers of its own, so that the other worlds do not change.
void add_outside_faults(WorldSpec& spec) {
  if (!is_outside(spec.number)) return;
  RandomStream random(mix(spec.number, stable_hash("outside")));
  spec.asks_environment = !one_of(random, 4);
  spec.num_outside_rewards = random.below(4);
  if (!spec.asks_environment && spec.num_outside_rewards == 0) spec.num_outside_rewards = 1;
  spec.has_chat = one_of(random, 2);
  spec.outside_look_us = 1 + random.below(600);
  spec.outside_delay_max = random.below(30);
  if (one_of(random, 2)) spec.outside_fault_every = 10 + random.below(40);
  if (!one_of(random, 3)) spec.outside_lose_every = 1 + random.below(4);
}

}  // namespace

WorldSpec spec_of(uint64_t number) {
  WorldSpec spec;
  spec.number = number;
  spec.kind = kind_of(number);
  spec.has_teacher = is_distilled(number) && spec.kind != WorldKind::kSupervised;
  add_outside_faults(spec);
  add_clients(spec);
  add_tinker(spec);
  RandomStream random(mix(number, stable_hash("world")));
  const auto policies = route_policies();
  spec.policy = policies[random.below(policies.size())].name;
  if (one_of(random, 2)) spec.environment_takes = Duration::milliseconds(30);
  // Other worlds show what slow environments do; here the teacher is slow.
  if (is_distilled(number)) spec.environment_takes = Duration();
  spec.is_resumed = spec.kind == WorldKind::kResumed ||
                    (spec.kind == WorldKind::kSupervised && one_of(random, 2));
  spec.dead_for = 1 + random.below(400);
  add_engine_sets(spec, random, spec.sets);
  if (one_of(random, 2)) spec.holds_every = 40 + random.below(200);
  if (has_deaths(spec.kind)) spec.death_every = 200 + random.below(900);
  // A long run and a crowd show more when nothing fails.
  if (spec.kind == WorldKind::kLong || spec.kind == WorldKind::kCrowd) return spec;
  spec.has_faulty_tasks = one_of(random, 3);
  spec.has_faulty_answers = one_of(random, 2);
  spec.has_equal_rewards = one_of(random, 3);
  spec.has_wrong_policy = one_of(random, 8);
  spec.loses_file = one_of(random, 10);
  if (one_of(random, 3)) spec.fails_from = 1 + random.below(60);
  spec.fails_until = spec.fails_from + 8 + random.below(30);
  spec.refuses_weights = one_of(random, 4);
  spec.late_weights = one_of(random, 2) ? random.below(6) : 0;
  spec.never_prepares = spec.late_weights == 0 && one_of(random, 6);
  if (one_of(random, 3)) spec.device_fault_every = 200 + random.below(800);
  return spec;
}

namespace {

/// With random numbers of its own, so that the other worlds do not change.
std::string evaluation_line(const WorldSpec& spec, const std::string& tenant) {
  if (!has_evaluations(spec.number)) return "";
  RandomStream random(mix(spec.number, stable_hash(tenant)));
  std::string line =
      fmt::format("eval = {{ interval = {}, samples = {}, rows = {}, at_start = {}, at_end = {}",
                  1 + random.below(3), 1 + random.below(3), 1 + random.below(4), !one_of(random, 4),
                  !one_of(random, 4));
  if (one_of(random, 2)) line += ", temperature = 0";
  if (one_of(random, 2)) line += fmt::format(", max_tokens = {}", 1 + random.below(9));
  return line + fmt::format(", pass_reward = 0.{} }}\n", 1 + random.below(9));
}

/// With random numbers of its own, so that the other worlds do not change.
std::string environment_lines(const WorldSpec& spec, const std::string& tenant) {
  if (!has_mix(spec.number)) return "environment = { name = \"copy\" }\n";
  RandomStream random(mix(spec.number, stable_hash(tenant, 3)));
  const std::string stages =
      one_of(random, 2)
          ? fmt::format(", stages = [{{ most = 2.0, reward = 0.{}, groups = 2 }}, {{}}]",
                        1 + random.below(5))
          : "";
  return fmt::format(
      "environments = [{{ name = \"a\", weight = {}, environment = {{ name = \"copy\" }}, "
      "curriculum = {{ rows = {}, easy_threshold = 0.{}, hard_threshold = 0.3, unseen_weight = "
      "0.5, "
      "pools = [{{ threshold = 0.4, weight = 1.0 }}]{} }} }}, "
      "{{ name = \"b\", weight = {}, environment = {{ name = \"copy\" }}, turns_max = {}, "
      "filters = {{ truncated = {} }} }}]\n",
      1 + random.below(3), 3 + random.below(5), 5 + random.below(3), stages, 1 + random.below(3),
      1 + random.below(3), one_of(random, 2));
}

/// The lines of a tenant's table and of everything that belongs to it.
std::string tenant_table(const std::string& name, const WorldSpec& spec, RandomStream& random) {
  const bool is_long = spec.kind == WorldKind::kLong, is_crowd = spec.kind == WorldKind::kCrowd;
  const uint64_t group_size = is_crowd ? 8 : 2 + random.below(3);
  const uint64_t num_groups = is_crowd ? 10 : 1 + random.below(3);
  std::string sampling = fmt::format("max_tokens = {}, temperature = 0.7", 6 + random.below(20));
  if (one_of(random, 2)) sampling += ", top_k = 5, top_p = 0.9, min_p = 0.01";
  if (one_of(random, 2)) sampling += ", stop = [\"e\", \"xy\"], stop_ids = [7]";
  if (one_of(random, 4)) sampling += ", ignore_eos = true";
  if (spec.has_teacher) sampling = "max_tokens = 12, temperature = 1.0";
  const std::string environment = is_outside(spec.number) || spec.num_judges > 0
                                      ? outside_lines(spec, random)
                                      : environment_lines(spec, name);
  std::string table = fmt::format(
      "[tenant.{}]\n{}group_size = {}\nbatch_size = {}\n"
      "max_steps = {}\nmax_off_policy_steps = {}\nturns_max = {}\nseq_len = {}\n"
      "checkpoint_every = {}\nstraggler_wait_ms = {}\nenvironment_timeout = \"{}\"\n"
      "rollout_timeout = \"{}\"\nfilters = {{ zero_advantage = {} }}\nsampling = {{ {} }}\n",
      name, environment, group_size, is_long ? group_size : group_size * num_groups,
      is_long    ? 60
      : is_crowd ? 2
                 : 3 + random.below(4),
      is_long || is_crowd ? 1 + random.below(4) : random.below(4), 2 + random.below(4),
      (spec.has_chat                  ? 156
       : spec.policy == "cache_aware" ? 120
                                      : 60) +
          random.below(100),
      random.below(3), one_of(random, 2) ? 20 : 0, one_of(random, 2) ? "20ms" : "5s",
      one_of(random, 3) ? "60ms" : "120s", spec.has_equal_rewards, sampling);
  table += evaluation_line(spec, name);
  if (spec.has_teacher)
    table += fmt::format(
        "loss = {{ kind = \"ref_kl\" }}\nteacher = {{ model = \"policy\", timeout = \"{}\" }}\n",
        spec.number % 3 == 0 ? "6ms" : "60s");
  if (spec.kind == WorldKind::kTwoTenants)
    table += fmt::format("[tenant.{}.adapter]\nrank = 4\n", name);
  return table + "\n";
}

/// A router has a choice only if there are several engines.
std::string places_of(const WorldSpec& spec) {
  const WorldKind kind = spec.kind;
  if (kind == WorldKind::kSupervised || kind == WorldKind::kResumed) return "";
  const std::string asker = spec.num_judges > 0 ? "judge" : spec.has_teacher ? "teacher" : "";
  const std::string router = asker.empty() ? "" : fmt::format(", \"{}_router\"", asker);
  const std::string judging =
      asker.empty()
          ? ""
          : fmt::format("{1} = {{ nodes = [\"{0}_prefill\", \"{0}_decode\"], replicas = 2 }}\n",
                        asker, spec.has_teacher ? "teaching" : "judging");
  if (kind != WorldKind::kEnvironmentDies && kind != WorldKind::kOneTenant)
    return fmt::format(
        "\n[place]\ndriver = {{ nodes = [\"env\", \"rollout\", \"trainer\", \"broadcaster\"{}] }}\n"
        "routing = {{ nodes = [\"router\"{}] }}\n"
        "inference = {{ nodes = [\"prefill\", \"decode\"], replicas = 3 }}\n{}",
        driver_nodes(spec), router, judging);
  if (kind == WorldKind::kEnvironmentDies)
    return fmt::format(
        "\n[place]\ndriver = {{ nodes = [\"rollout\", \"router\", \"prefill\", \"decode\", "
        "\"trainer\", \"broadcaster\"{}{}] }}\n"
        "judges = {{ nodes = [\"env\"], replicas = 3 }}\n{}",
        driver_nodes(spec), router, judging);
  return "";
}

std::string graph_text(const WorldSpec& spec, RandomStream& random) {
  const std::string examples = std::string(PRIMERL_SOURCE_DIR) + "/examples/";
  const auto read = [&](const std::string& file) {
    return read_text_file(examples + file, 1 << 20).value();
  };
  if (spec.kind == WorldKind::kSupervised) {
    std::string text = read("arithmetic_tool/sft.toml");
    const size_t seed = text.find("init_seed");  // a seed of weights, which a scripted learner does
                                                 // not have
    return text.erase(seed, text.find('\n', seed) - seed);
  }
  const bool are_two = spec.kind == WorldKind::kTwoTenants;
  const bool has_tinker = spec.num_tinker_requests > 0;
  const std::string text =
      read(are_two && !has_tinker         ? "two_tenants/graph.toml"
           : spec.num_client_requests > 0 ? "reverse_text/full.toml"  // its edges are written out
                                          : "reverse_text/graph.toml");
  const size_t begin = text.find("[tenant."), end = text.find("[model.");
  std::string tables = has_tinker && !are_two ? "" : tenant_table("ada", spec, random);
  if (has_tinker)
    tables += tinker_table(spec);
  else if (are_two)
    tables += tenant_table("bo", spec, random);
  return with_gateway(spec, text.substr(0, begin) + tables + text.substr(end)) + places_of(spec);
}

/// Held-out examples, some with weights.
std::string held_out_file() {
  const auto file = scratch_folder() / "held_out.jsonl";
  std::ofstream text(file);
  for (int i = 0; i < 20; ++i)
    text << fmt::format("{{\"prompt\": \"a:{}+2>\", \"completion\": \"{}\"{}}}\n", i, i + 2,
                        i % 3 == 0 ? ", \"weight\": 0.5" : "");
  return file.string();
}

/// With random numbers of its own, so that the other worlds do not change.
std::vector<std::string> teacher_sets(const WorldSpec& spec) {
  if (!spec.has_teacher) return {};
  RandomStream random(mix(spec.number, stable_hash("teacher")));
  return {"resource.teacher.backend=\"scripted\"",
          fmt::format("resource.teacher.max_running={}", 1 + random.below(4)),
          fmt::format("resource.teacher.max_waiting={}", 1 + random.below(6)),
          fmt::format("resource.teacher.refuse_every={}", one_of(random, 3) ? 7 : 0),
          fmt::format("node.teacher.requests_max={}", 1 + random.below(5)),
          fmt::format("node.teacher.groups_max={}", 1 + random.below(4)),
          fmt::format("node.teacher.attempts_max={}", random.below(3))};
}

/// Several turns, each of which adds letters; the reward follows from the last action.
class TalkingEnvironment final : public Environment {
 public:
  explicit TalkingEnvironment(const WorldSpec& spec) : spec_(spec) {}

  Result<EnvironmentTask> task(uint64_t ordinal, RandomStream random) override {
    if (spec_.has_faulty_tasks && mix(spec_.number, ordinal) % 4 == 0)
      return error(Code::kUnavailable, "task {} is made to fail", ordinal);
    EnvironmentTask task;
    const int num_letters = spec_.policy == "cache_aware" ? 40 : 4;  // 40 letters fill one block of
                                                                     // a prompt, 4 fill none
    for (int i = 0; i < num_letters; ++i) task.prompt += static_cast<char>('a' + random.below(26));
    task.answer = spec_.has_equal_rewards && ordinal % 3 == 0 ? "same" : "";
    return task;
  }
  Result<EnvironmentStep> step(const EnvironmentTask& task,
                               const std::vector<std::string>& actions) override {
    const uint64_t draw = stable_hash(actions.back(), stable_hash(task.prompt));
    EnvironmentStep step;
    step.done = mix(draw, actions.size()) % 3 == 0;
    if (!step.done) step.text = std::string(1 + draw % 5, static_cast<char>('f' + draw % 7));
    step.reward = task.answer.empty() ? static_cast<double>(draw % 1000) / 1000 : 0.5;
    if (!spec_.has_faulty_answers) return step;
    if (draw % 29 == 0) return error(Code::kUnavailable, "this answer is made to fail");
    if (draw % 31 == 0) step.reward = std::numeric_limits<double>::quiet_NaN();
    if (draw % 37 == 0) step.text = std::string(50, 'z');
    return step;
  }

 private:
  const WorldSpec spec_;
};

/// Round robin that sometimes returns the index of an engine that does not exist.
class WrongPolicy final : public RoutePolicy {
 public:
  size_t choose(const RouteQuestion&, std::span<const EngineView> engines) override {
    return next_++ % 3 == 2 ? engines.size() + 5 : next_ % engines.size();
  }
  std::string state() const override { return std::to_string(next_); }
  Status restore(std::string_view state) override {
    next_ = std::stoull(std::string(state));
    return ok();
  }

 private:
  size_t next_ = 0;
};

Catalog catalog_of(const WorldSpec& spec) {
  Catalog catalog = full_catalog();
  add_outside(catalog);
  auto policies = route_policies();
  policies.push_back({"wrong", "for tests", [] { return std::make_unique<WrongPolicy>(); }});
  for (Contract& contract : catalog.actors) {
    if (contract.name == "router") contract = Router::contract(policies);
    if (contract.name != "env" || spec.asks_environment) continue;
    contract.make = [spec](const void* options) -> std::unique_ptr<Actor> {
      std::vector<std::unique_ptr<Environment>> environments;
      environments.push_back(std::make_unique<TalkingEnvironment>(spec));
      if (has_mix(spec.number)) environments.push_back(std::make_unique<TalkingEnvironment>(spec));
      return std::make_unique<Env>(*static_cast<const EnvOptions*>(options),
                                   std::move(environments));
    };
  }
  return catalog;
}

/// Writes the checkpoint of a learner of the plan.
void save_learner(const Plan& plan) {
  std::filesystem::create_directories(resume_folder());
  for (size_t i = 0; i < plan.resources.size(); ++i) {
    if (plan.resources[i].kind != Learner::kResourceKind) continue;
    auto made = resource_factory()(plan, static_cast<int32_t>(i)).value();
    const auto learner = std::dynamic_pointer_cast<Learner>(made);
    CHECK(learner->save(TenantSlot(0), resume_folder()).ok(), "no room for a checkpoint");
  }
}

std::unique_ptr<World> make_world(uint64_t number) {
  auto world = std::make_unique<World>();
  world->spec = spec_of(number);
  const WorldSpec& spec = world->spec;
  world->catalog = catalog_of(spec);
  RandomStream random(mix(number, stable_hash("tables")));
  const auto file = scratch_folder() / "world.toml";
  std::ofstream(file) << graph_text(spec, random);
  Overrides overrides;
  const auto set = [&](std::string text) { overrides.sets.push_back(std::move(text)); };
  set("resource.learner.backend=\"scripted\"");
  set(fmt::format("resource.learner.device_fault_file=\"{}\"", fault_file("learner").string()));
  set(fmt::format("node.trainer.lost_batches_max={}", one_of(random, 4) ? 2 : 50));
  set(fmt::format("node.trainer.skipped_max={}", one_of(random, 3) ? 2 : 10));
  if (number >= kTinkerWorlds && number / 4 % 3 == 0)
    set(fmt::format("resource.learner.save_time=\"{}ms\"", 1 + number % 300));
  if (number >= kSavingWorlds && number < kOutsideWorlds) {
    RandomStream saves(mix(number, stable_hash("saves")));
    set(fmt::format("resource.learner.save_time=\"{}ms\"", 5 + saves.below(1500)));
    set(fmt::format("node.trainer.save_max=\"{}\"", one_of(saves, 4) ? "1s" : "1h"));
  }
  if (spec.kind == WorldKind::kSupervised) {
    set(fmt::format("model.policy.path=\"{}/examples/arithmetic_tool/base\"", PRIMERL_SOURCE_DIR));
    set(fmt::format("tenant.main.max_steps={}", 3 + random.below(4)));
    set("tenant.main.batch_size=16");
    set(fmt::format("tenant.main.checkpoint_every={}", random.below(3)));
    if (is_distilled(number)) {
      set(fmt::format("node.data.eval_file=\"{}\"", held_out_file()));
      set(fmt::format("tenant.main.eval={{ interval = {}, at_start = {} }}", 1 + number / 6 % 3,
                      number / 6 % 2 == 0));
    }
  } else {
    set(spec.has_chat ? fmt::format("model.policy.path=\"{}\"", chat_folder().string())
                      : fmt::format("model.policy.path=\"{}/examples/reverse_text/base\"",
                                    PRIMERL_SOURCE_DIR));
    set("resource.engine.backend=\"scripted\"");
    set(fmt::format("resource.engine.device_fault_file=\"{}\"", fault_file("engine").string()));
    set(fmt::format("node.router.policy=\"{}\"", spec.has_wrong_policy ? "wrong" : spec.policy));
    set(fmt::format("node.router.sessions_max={}", one_of(random, 3) ? 6 : 1000));
    set(fmt::format("node.rollout.max_inflight={}", spec.kind == WorldKind::kCrowd ? 200
                                                    : one_of(random, 3)            ? 64
                                                                        : 6 + random.below(20)));
    if (spec.has_faulty_tasks) set(fmt::format("node.env.task_faults_max={}", 3 + random.below(3)));
    set(fmt::format("node.rollout.log_tokens={}", one_of(random, 3)));
    set(fmt::format("node.rollout.attempts_max={}", 1 + random.below(4)));
    // The prompts of a cache-aware world are longer, and none of them may be too long.
    set(fmt::format("node.env.text_bytes_max={}", spec.policy == "cache_aware" ? 40 : 30));
    set(fmt::format("node.env.worlds_max={}", one_of(random, 2) ? 3 : 100));
    set("node.broadcaster.applied_max=\"30ms\"");
    if (!places_of(spec).empty()) set("resource.weights.backend=\"auto\"");
    if (places_of(spec).empty() && one_of(random, 2)) set("node.env.replicas=3");
    for (const std::string& text : teacher_sets(spec)) set(text);
    for (const std::string& text : spec.sets) set(text);
    for (const std::string& text : client_sets(spec)) set(text);
    for (const std::string& text : tinker_sets(spec)) set(text);
    if (spec.num_tinker_requests > 0 && spec.kind == WorldKind::kTwoTenants)
      set("node.trainer.per_tenant=true");
  }
  overrides.cores = 2;
  const CheckedGraph checked = load_graph(file.string(), overrides, world->catalog);
  for (const auto& found : checked.diagnostics.all())
    if (checked.plan == nullptr) world->fault += fmt::format("{}: {}\n", found.code, found.message);
  if (checked.plan == nullptr) return world;
  auto plan = std::make_shared<Plan>(*checked.plan);
  plan->settings.seed = static_cast<int64_t>(number);
  RandomStream last_tasks(mix(number, stable_hash("last tasks")));
  if (has_evaluations(number))
    for (Tenant& tenant : plan->tenants)
      if (one_of(last_tasks, 2)) tenant.tasks_max = static_cast<int64_t>(4 + last_tasks.below(12));
  if (number >= kSavingWorlds && number < kOutsideWorlds)
    for (Tenant& tenant : plan->tenants) tenant.keep_best = 1;
  if (spec.is_resumed) save_learner(*plan);
  world->plan = std::move(plan);
  return world;
}

}  // namespace

std::filesystem::path fault_file(const std::string& of) {
  return scratch_folder() / (of + "_fault");
}
std::filesystem::path resume_folder() { return scratch_folder() / "resume"; }

const World& world_of(uint64_t number) {
  static std::map<uint64_t, std::unique_ptr<World>> all;
  auto& world = all[number];
  if (world == nullptr) world = make_world(number);
  return *world;
}

}  // namespace primerl::sim
