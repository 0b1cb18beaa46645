#include "tests/sim/state_world.h"

#include <algorithm>
#include <fstream>

#include "actors/common/engine_user.h"
#include "actors/common/task_mix.h"
#include "actors/messages/load.h"
#include "actors/messages/rollout.h"
#include "graph/base/files.h"
#include "runtime/wire/msgpack_codec.h"
#include "tests/sim/field_tree.h"
#include "tests/sim/idle_work.h"
#include "tests/sim/no_host.h"
#include "tests/sim/world_resources.h"
#include "tests/sim/world_spec.h"

namespace primerl::sim {
namespace {

/// Adds a mark for everything that is visible from outside.
class Marks final : public DeliveryObserver {
 public:
  explicit Marks(const std::vector<uint64_t>* expected) : expected_(expected) {}

  void on_step(const StepRecord& record) override {
    idle_.add(record);
    add(mix(record.group.value, record.step));
    add(mix(static_cast<uint64_t>(record.kind), record.instance.value));
    add(static_cast<uint64_t>(record.began.to_nanoseconds()));
    if (record.error != nullptr)
      add(mix(static_cast<uint64_t>(record.error->code()), stable_hash(record.error->text())));
    for (const BatchedMessage& sent : record.emissions) {
      const Envelope& envelope = sent.envelope;
      add(mix(sent.link.value, envelope.sequence));
      add(mix(envelope.tenant.value, envelope.origin.value));
      add(mix(envelope.cause.instance.value, envelope.cause.step));
      add(envelope.payload);
    }
    mark();
  }
  void add(uint64_t seen) { now_ = mix(now_, seen); }
  void add(std::string_view seen) { add(stable_hash(seen)); }
  void add(const Payload& payload) {
    payload.type->write(writer_, payload.message.get());
    const auto body = writer_.body();
    add(std::string_view(reinterpret_cast<const char*>(body.data()), body.size()));
    for (const Blob& blob : writer_.blobs())
      add(std::string_view(reinterpret_cast<const char*>(blob.bytes().data()), blob.size()));
    writer_.clear();
  }
  void mark() {
    if (expected_ != nullptr &&
        (marks_.size() >= expected_->size() || (*expected_)[marks_.size()] != now_))
      differs_ = true;
    marks_.push_back(now_);
  }
  bool differs() const { return differs_; }
  const std::string& idle_fault() const { return idle_.fault(); }
  std::vector<uint64_t> take() { return std::move(marks_); }

 private:
  const std::vector<uint64_t>* expected_;
  MsgpackWriter writer_;
  IdleWork idle_;
  uint64_t now_ = 0;
  bool differs_ = false;
  std::vector<uint64_t> marks_;
};

class WorldHost final : public NoHost {
 public:
  WorldHost(const WorldSpec& spec, const Plan& plan, Marks& marks) : spec_(spec), marks_(marks) {
    if (!spec.is_resumed) return;
    Json consumed = parse_json("[[0, 5], [8, 8], [11, 12], [15, 15], [20, 22]]", "a file").value();
    point_.folder = resume_folder();
    point_.step = 2;
    point_.version = PolicyVersion(2);
    point_.manifest = Json::object();
    point_.manifest.set("resumes", 1).set("consumed", std::move(consumed));
    // All tenants of a world have one mix, or none.
    if (const Tenant& tenant = plan.tenants.front(); !tenant.mix.empty())
      point_.manifest.set(std::string(kMixOfCheckpoint), mix_json(tenant));
  }
  bool has_started = false;  // a group that is made again has no resume point

  void publish_metrics(TenantSlot tenant, int64_t step, const MetricValues& values) override {
    marks_.add(mix(tenant.value, static_cast<uint64_t>(step)));
    for (const auto& [name, value] : values) marks_.add(fmt::format("{}={}", name, value));
  }
  void log(LogLevel, std::string_view instance, std::string_view text) override {
    marks_.add(instance);
    marks_.add(text);
  }
  const ResumePoint* resume_point(TenantSlot) const override {
    return point_.folder.empty() || has_started ? nullptr : &point_;
  }
  Status append_line(std::string_view, std::string_view line) override {
    marks_.add(line);
    if (spec_.loses_file && ++num_lines_ > 20) return error(Code::kIo, "the disk is full");
    return ok();
  }
  Status commit_checkpoint(TenantSlot, int64_t step, const Json& manifest) override {
    marks_.add(fmt::format("{} {}", step, manifest.dump()));
    return ok();
  }
  Result<std::filesystem::path> begin_client_folder(TenantSlot tenant,
                                                    std::string_view path) override {
    marks_.add(path);
    ASSIGN_OR_RETURN(const auto folder, client_folder(tenant, path));
    RETURN_IF_ERROR(system_files().remove_all(folder));
    RETURN_IF_ERROR(system_files().make_folder(folder));
    return folder;
  }
  Status commit_client_folder(TenantSlot, std::string_view path, bool) override {
    marks_.add(path);
    return ok();
  }
  Result<std::filesystem::path> client_folder(TenantSlot, std::string_view path) override {
    return scratch_folder() / "clients" / path;
  }
  Status remove_client_folder(TenantSlot tenant, std::string_view path) override {
    marks_.add(path);
    ASSIGN_OR_RETURN(const auto folder, client_folder(tenant, path));
    return system_files().remove_all(folder);
  }

 private:
  const WorldSpec& spec_;
  Marks& marks_;
  ResumePoint point_;
  uint64_t num_lines_ = 0;
};

/// Calls of the environment take time; some take longer than the limit.
class SlowEnvironment final : public StepHooks {
 public:
  explicit SlowEnvironment(const WorldSpec& spec) : spec_(spec) {}
  Injection before(const StepAbout& about) override {
    Injection injection;
    if (about.type != &message_type<Action>() || spec_.environment_takes == Duration())
      return injection;
    const uint64_t draw = mix(spec_.number, about.delivery);
    injection.takes = Duration::microseconds(static_cast<int64_t>(
        draw % static_cast<uint64_t>(spec_.environment_takes.to_nanoseconds() / 1000)));
    if (draw % 5 != 0) injection.takes = Duration::microseconds(static_cast<int64_t>(draw % 2000));
    return injection;
  }

 private:
  const WorldSpec spec_;
};

/// Deaths and returns of processes, faults of the learner, and a person who pauses the engines.
class Fate {
 public:
  explicit Fate(const World& world) : world_(world), random_(mix(world.spec.number, 77)) {
    for (const std::string of : {"learner", "engine"}) std::filesystem::remove(fault_file(of));
    const uint64_t number = world.spec.number;
    const bool is_saving = number >= kSavingWorlds && number < kOutsideWorlds;
    // A person ends some of the runs while they write checkpoints.
    if (is_saving && number % 4 == 3) drains_at_ = 500 + mix(number, 5) % 6000;
    if (number >= kTinkerWorlds) drains_at_ = 1000 + mix(number, 5) % 6000;
    for (uint32_t i = 0; i < world.plan->processes.size(); ++i) {
      const std::string& name = world.plan->processes[i].name;
      const WorldKind kind = world.spec.kind;
      // The first environment gives the tasks: a run that loses it starts again from the beginning.
      if ((kind == WorldKind::kRouterDies && name == "routing") ||
          (kind == WorldKind::kEnginesDie &&
           (name.starts_with("inference") || name.starts_with("judging") ||
            name.starts_with("teaching"))) ||
          (kind == WorldKind::kEnvironmentDies && world.plan->processes[i].replica > 0))
        mortal_.push_back(ProcessId(i));
    }
  }
  Status after_event(VirtualExecutor& executor, uint64_t event) {
    const WorldSpec& spec = world_.spec;
    if (!dead_.empty() && event >= back_at_) {
      for (const ProcessId process : std::exchange(dead_, {}))
        RETURN_IF_ERROR(executor.restart_process(process));
    }
    if (executor.status().is_draining) return ok();
    if (event == drains_at_) executor.request_drain();
    if (spec.device_fault_every > 0 && event % spec.device_fault_every == 0)
      std::ofstream(fault_file(random_.below(2) == 0 ? "learner" : "engine")) << "full";
    if (spec.never_prepares && event % 50 == 0) RETURN_IF_ERROR(let_preparations_pass(executor));
    if (spec.holds_every > 0 && event % spec.holds_every == 0) {
      EngineHold hold;
      hold.owner = random_.below(2) == 0 ? "operator" : "sync";
      if (random_.below(3) != 0)
        hold.lease = Duration::milliseconds(1 + static_cast<int64_t>(random_.below(3000)));
      executor.command({event, {}, Payload::of(std::move(hold))});
    }
    if (spec.death_every == 0 || event % spec.death_every != 0 || !dead_.empty()) return ok();
    const bool all = random_.below(2) == 0;
    for (const ProcessId process : mortal_)
      if (all || process == mortal_[event % mortal_.size()]) dead_.push_back(process);
    for (const ProcessId process : dead_) executor.kill(process);
    back_at_ = event + spec.dead_for;
    return ok();
  }

  bool has_dead() const { return !dead_.empty(); }

 private:
  /// As if the engines had been asked very often already whether a version is prepared.
  Status let_preparations_pass(VirtualExecutor& executor) {
    const Plan& plan = *world_.plan;
    for (uint32_t i = 0; i < plan.groups.size(); ++i) {
      const auto& instances = plan.groups[i].instances;
      const auto is_user = [&](InstanceId instance) {
        return !plan.instances[instance.index()].resources.empty() &&
               plan.nodes[plan.instances[instance.index()].node.index()].contract->works &&
               plan.instances[instance.index()].name.find("trainer") == std::string::npos;
      };
      if (!std::ranges::any_of(instances, is_user) || !executor.may_remake(GroupId(i))) continue;
      RETURN_IF_ERROR(executor.remake(GroupId(i), [&](GroupState& saved, const GroupState&) {
        for (size_t place = 0; place < instances.size(); ++place) {
          const PlanNode& node = plan.nodes[plan.instances[instances[place].index()].node.index()];
          FieldTree tree = tree_of(*node.contract, node.options.get(), saved.actors[place].state);
          raise_preparations(tree);
          saved.actors[place].state = saved_of(*node.contract, node.options.get(), tree);
        }
      }));
    }
    return ok();
  }
  static void raise_preparations(FieldTree& tree) {
    for (size_t i = 0; i < tree.items.size(); ++i) {
      if (i < tree.names.size() && tree.names[i] == "num_preparations")
        tree.items[i].bits = std::max<uint64_t>(tree.items[i].bits, kPreparationsMax - 8);
      else
        raise_preparations(tree.items[i]);
    }
  }

  const World& world_;
  uint64_t drains_at_ = 0;  // an event; 0: never
  RandomStream random_;
  std::vector<ProcessId> mortal_;
  std::vector<ProcessId> dead_;
  uint64_t back_at_ = 0;
};

}  // namespace

std::shared_ptr<const Plan> world_plan(uint64_t world) { return world_of(world).plan; }

std::string describe_world(uint64_t world) {
  const WorldSpec spec = spec_of(world);
  return fmt::format("world {}: kind {}, policy {}", world, static_cast<int>(spec.kind),
                     spec.has_wrong_policy ? "wrong" : spec.policy);
}

WorldRun run_world(uint64_t number, const WorldHooks& hooks) {
  WorldRun run;
  const World& world = world_of(number);
  if (world.plan == nullptr) {
    run.fault = world.fault;
    return run;
  }
  Marks marks(hooks.expected);
  WorldHost host(world.spec, *world.plan, marks);
  SlowEnvironment steps(world.spec);
  VirtualExecutor executor(
      world.plan, factory_of(world.spec, [&marks](std::string_view seen) { marks.add(seen); }),
      host,
      {.seed = number,
       .step_hooks = &steps,
       .observer = &marks,
       .events_max = 400'000,
       .repeat_with = describe_world(number)});
  if (const Status started = executor.start(); !started.ok()) {
    run.fault = started.error().text();
    return run;
  }
  host.has_started = true;
  Fate fate(world);
  auto cut = hooks.cuts.begin();
  while (!marks.differs() && executor.advance()) {
    const uint64_t event = ++run.num_events;
    if (const Status lived = fate.after_event(executor, event); !lived.ok()) {
      run.fault = lived.error().text();
      return run;
    }
    if (!marks.idle_fault().empty()) {
      run.fault = marks.idle_fault();
      return run;
    }
    if (hooks.look != nullptr) hooks.look(executor, event);
    for (; cut != hooks.cuts.end() && cut->event == event; ++cut) {
      const GroupId group = world.plan->instances[cut->instance.index()].group;
      if (!executor.may_remake(group)) continue;
      const Status remade = executor.remake(group, cut->change);
      if (!remade.ok()) marks.add(remade.error().text());
    }
  }
  run.differs = marks.differs();
  if (!run.differs) {
    const RunOutcome outcome = executor.wait();
    run.end = outcome.status.ok() ? "ok" : outcome.status.error().text();
    run.has_stalled = outcome.end == RunEnd::kStalled;
    run.has_dead = fate.has_dead();
    if (run.has_stalled) run.end += "\n" + outcome.stall.text();
    const int code = outcome.status.ok() ? 0 : static_cast<int>(outcome.status.error().code());
    marks.add(fmt::format("{} {} {}", static_cast<int>(outcome.end), code, run.end));
    for (const auto& [name, value] : executor.counters())
      marks.add(fmt::format("{} {}", name, value));
    marks.mark();
    run.differs = marks.differs();
  }
  run.marks = marks.take();
  return run;
}

}  // namespace primerl::sim
