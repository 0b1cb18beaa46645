#include "runtime/replay/remade_checkpoint.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "graph/tenancies.h"
#include "runtime/backends/backends.h"
#include "runtime/backends/tenant_resources.h"
#include "runtime/exec/wiring.h"
#include "runtime/replay/record_prefix.h"
#include "runtime/replay/replay_session.h"
#include "runtime/replay/traced_learner.h"
#include "runtime/replay/traced_resources.h"
#include "runtime/store/checkpoint.h"
#include "runtime/store/run_folder.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

std::optional<TenantSlot> find_slot(const Plan& plan, const std::string& tenant) {
  for (const Tenant& each : plan.tenants)
    if (each.name == tenant) return each.slot;
  return std::nullopt;
}

/// The actor group that trains the tenant; none: no node does.
GroupId learner_group(const Plan& plan, TenantSlot tenant) {
  for (uint32_t i = 0; i < plan.groups.size(); ++i)
    for (const TenantSlot trained : tenants_trained_by(plan, GroupId(i)))
      if (trained == tenant) return GroupId(i);
  return {};
}

/// The actor of the group that has the learner and serves the tenant.
InstanceId trainer_of(const Plan& plan, GroupId group, TenantSlot tenant) {
  for (const InstanceId id : plan.group(group).instances) {
    const TenantSlot named = plan.instance(id).tenant;
    if ((named.is_none() ? TenantSlot(0) : named) != tenant) continue;
    for (const ResourceUse& use : plan.contract_of(id).resources)
      if (use.kind == Learner::kResourceKind) return id;
  }
  return {};
}

/// The step of the checkpoint that the record of the tenant began from; 0: the first step.
int64_t begun_step(const Trace& trace, TenantSlot tenant) {
  const auto& points = trace.catalog().resumed_from;
  if (tenant.index() >= points.size()) return 0;
  const std::string name = fs::path(points[tenant.index()]).filename().string();
  constexpr std::string_view kPrefix = "step_";
  int64_t step = 0;
  if (name.starts_with(kPrefix))
    (void)std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), step);
  return step;
}

Result<std::vector<ResumePoint>> begun_from(const Trace& trace) {
  std::vector<ResumePoint> points;
  for (const auto& checkpoint : trace.catalog().resumed_from) {
    points.emplace_back();
    if (checkpoint == kNoCheckpoint) continue;
    auto point = read_checkpoint(checkpoint, CheckpointDepth::kContents);
    if (!point.ok())
      return std::move(point).error().while_doing(
          "reading the checkpoint that the record began "
          "from");
    points.back() = std::move(point).value();
  }
  return points;
}

/// The saved state that the group begins with; empty: its first step.
Result<RunCuts> choose_cuts(const Remake& remake, SavedStates& saved) {
  RunMoment moment;
  moment.training_step = remake.from_step + 1;
  moment.tenant = remake.tenant;
  RunCuts cuts = saved.before(moment);
  const uint64_t first = remake.trace->first_step(remake.group);
  const GroupState* state = cuts.state_of(remake.group);
  if (state != nullptr && first <= state->num_steps + 1) {
    // A learner without calls of the tenant before the cut would not be loaded.
    ASSIGN_OR_RETURN(const auto taken, learner_steps_of(*remake.plan, *state));
    if (taken.contains(remake.tenant)) return cuts;
  }
  if (first <= 1) return RunCuts();
  return error(Code::kNotFound,
               "the oldest part of its record was removed (trace.bytes_max), and no state of its "
               "actors is left from before step {}",
               remake.from_step + 1);
}

/// Which step of the group took the training step.
Result<uint64_t> find_training_step(const Remake& remake) {
  int64_t taken = begun_step(*remake.trace, remake.tenant);
  if (const GroupState* state = remake.cuts.state_of(remake.group)) {
    ASSIGN_OR_RETURN(const auto before, learner_steps_of(*remake.plan, *state));
    taken += before.at(remake.tenant);
  }
  uint64_t found = 0;
  visit_training_steps(*remake.trace, remake.group, remake.cuts.first_step(remake.group),
                       [&](TenantSlot tenant, uint64_t step) {
                         if (tenant != remake.tenant) return true;
                         if (++taken == remake.step) found = step;
                         return found == 0;
                       });
  if (found != 0) return found;
  return error(Code::kNotFound, "its record ends after step {}", taken);
}

/// The last step of the group before the run asked for the checkpoint. If it did not, the last one
/// before the next work call, which would have asked, with the groups that had been judged until
/// then.
uint64_t last_before_saving(const Trace& trace, GroupId group, TenantSlot tenant,
                            uint64_t training_step) {
  if (const auto saving = step_that_saved(trace, group, tenant, training_step)) return *saving - 1;
  uint64_t last = training_step;
  while (last < trace.last_step(group)) {
    const auto next = trace.step(group, last + 1);
    if (!next || next->kind == StepKind::kWork || next->kind == StepKind::kDrain) break;
    ++last;
  }
  return last;
}

/// Checks that the record has every step that is played, and the messages of the other groups.
Status check_inputs(const Remake& remake) {
  const Plan& plan = *remake.plan;
  const Trace& trace = *remake.trace;
  const auto wiring = make_wiring(plan);
  std::set<std::pair<LinkId, uint64_t>> saved;  // link and sequence number of messages in the cuts
  if (const GroupState* state = remake.cuts.state_of(remake.group))
    for (const SavedInput& input : state->inputs)
      if (input.message) saved.emplace(input.message->link, input.message->sequence);
  for (const SavedMessage& message : remake.cuts.in_transit_to(*wiring, remake.group))
    saved.emplace(message.link, message.sequence);
  for (uint64_t number = remake.cuts.first_step(remake.group); number <= remake.stop_step;
       ++number) {
    const auto step = trace.step(remake.group, number);
    if (!step)
      return error(Code::kNotFound, "its record lacks step {} of '{}'", number,
                   plan.group(remake.group).name);
    if (step->kind != StepKind::kMessage) continue;
    const WiredLink& link = wiring->links[step->link.index()];
    if (remake.is_real[link.sender_group.index()]) continue;
    if (trace.has_payload({step->link, step->incarnation, step->sequence})) continue;
    if (saved.contains({step->link, step->sequence})) continue;
    return error(
        Code::kNotFound,
        "its record lacks the content of message {} of '{}', which step {} of '{}' handled",
        step->sequence, plan.edge(link.edge).name, number, plan.group(remake.group).name);
  }
  return ok();
}

/// The groups that are played: the trainer's, and those whose messages to it are not stored. An
/// actor that reaches outside of the run (an environment) is not played: it would act again.
Status choose_groups(Remake& remake) {
  const Plan& plan = *remake.plan;
  remake.is_absent = absent_groups(plan, *remake.trace, remake.cuts);
  remake.is_absent[remake.group.index()] = false;  // check_inputs() looks at its steps
  remake.is_real.assign(plan.groups.size(), false);
  remake.is_real[remake.group.index()] = true;
  const auto reasons = close_over(plan, *remake.trace, false, remake.is_absent, remake.is_real);
  const auto refused = [&](std::string_view why) {
    return error(Code::kInvalid, "its record does not keep what was trained on: {}{}",
                 fmt::join(reasons, "; "), why)
        .note(
            "record = \"payload\" of an edge, which is the default of those to a trainer, keeps "
            "its messages");
  };
  for (uint32_t i = 0; i < plan.groups.size(); ++i) {
    if (!remake.is_real[i] || GroupId(i) == remake.group) continue;
    for (const InstanceId id : plan.groups[i].instances)
      if (plan.contract_of(id).make_scripted) return refused(", and it acts outside of the run");
    const bool has_state = remake.cuts.empty() || remake.cuts.state_of(GroupId(i)) != nullptr;
    if (!has_state || remake.trace->first_step(GroupId(i)) > remake.cuts.first_step(GroupId(i)))
      return refused(", and its own first steps were removed");
  }
  return ok();
}

/// Saves nothing: only the learner's files are needed, and `save` writes them.
class NoServices final : public ProcessServices, public RunFiles {
 public:
  explicit NoServices(const std::vector<ResumePoint>& points) : points_(points) {}
  RunFiles& files() override { return *this; }
  void publish_metrics(TenantSlot, int64_t, const MetricValues&) override {}
  void log(LogLevel, std::string_view, std::string_view) override {}
  const ResumePoint* resume_point(TenantSlot tenant) const override {
    const bool has_one = tenant.index() < points_.size() && !points_[tenant.index()].folder.empty();
    return has_one ? &points_[tenant.index()] : nullptr;
  }
  Status append_line(std::string_view, std::string_view) override { return ok(); }
  Result<fs::path> begin_checkpoint(TenantSlot, int64_t step) override {
    return fs::path(fmt::format("step_{}", step));  // the learner writes nothing there
  }
  Status commit_checkpoint(TenantSlot, int64_t, const Json&) override { return ok(); }

 private:
  const std::vector<ResumePoint>& points_;
};

}  // namespace

std::string Remake::text() const {
  const int64_t count = step - from_step;
  return fmt::format("re-making the checkpoint of step {}{} from {}: {} step{}", step,
                     plan->tenants.size() == 1
                         ? ""
                         : fmt::format(" of tenant '{}'", plan->tenants[tenant.index()].name),
                     from_step == 0 ? "the first step" : fmt::format("step {}", from_step), count,
                     count == 1 ? "" : "s");
}

Result<TrainingRecord::Part> TrainingRecord::open_part(const fs::path& folder) {
  ReplayRequest request;
  request.run = folder.string();
  ASSIGN_OR_RETURN(ReplayRecord record, open_record(request));
  if (record.trace->excerpt())
    return error(Code::kInvalid, "its record is an excerpt, of one actor group");
  return Part{folder, std::move(record.trace), std::move(record.plan)};
}

Result<TrainingRecord> TrainingRecord::open(const fs::path& run) {
  TrainingRecord record;
  record.run_ = run;
  ASSIGN_OR_RETURN(record.newest_, open_part(run));
  return record;
}

bool TrainingRecord::has(const std::string& tenant) const {
  return find_slot(*newest_.plan, tenant).has_value();
}

Result<int64_t> TrainingRecord::last_step(const std::string& tenant) const {
  const Plan& plan = *newest_.plan;
  const auto slot = find_slot(plan, tenant);
  CHECK(slot.has_value(), "a tenant that the record does not have");
  const GroupId group = learner_group(plan, *slot);
  if (group.is_none()) return int64_t{0};
  ASSIGN_OR_RETURN(const auto folders, trace_folders(newest_.folder));
  const SavedStates saved(plan, *newest_.trace, folders);
  const auto [at, taken] = saved.newest_of_learner(group, *slot)
                               .value_or(std::pair(uint64_t{0}, begun_step(*newest_.trace, *slot)));
  return taken + num_recorded_steps(*newest_.trace, group, at + 1)[*slot];
}

/// The record of the newest start; if that began at or after the step, of an earlier one.
Result<TrainingRecord::Part> TrainingRecord::part_with(const std::string& tenant,
                                                       int64_t step) const {
  Part part = newest_;
  int64_t begun = begun_step(*part.trace, *find_slot(*part.plan, tenant));
  if (begun < step) return part;
  std::vector<std::pair<int64_t, fs::path>> older;  // by incarnation
  std::error_code fault;
  for (fs::directory_iterator at(run_, fault), end; !fault && at != end; at.increment(fault)) {
    const std::string name = at->path().filename().string();
    int64_t incarnation = 0;
    constexpr std::string_view kPrefix = "trace.";
    if (!name.starts_with(kPrefix)) continue;
    const char* const last = name.data() + name.size();
    const auto read = std::from_chars(name.data() + kPrefix.size(), last, incarnation);
    if (read.ec == std::errc() && read.ptr == last) older.emplace_back(incarnation, at->path());
  }
  std::ranges::sort(older, std::greater<>());
  for (const auto& [incarnation, folder] : older) {
    auto opened = open_part(folder);
    if (!opened.ok()) continue;
    const auto slot = find_slot(*opened->plan, tenant);
    if (!slot) continue;
    begun = begun_step(*opened->trace, *slot);
    if (begun < step) return opened;
  }
  return error(Code::kNotFound, "its record begins after step {}, with a checkpoint", begun);
}

Result<Remake> TrainingRecord::remake(const std::string& tenant, int64_t step) const {
  ASSIGN_OR_RETURN(const Part part, part_with(tenant, step));
  return remake_from(part, *find_slot(*part.plan, tenant), step);
}

Result<Remake> TrainingRecord::remake_from(const Part& part, TenantSlot tenant,
                                           int64_t step) const {
  Remake remake;
  remake.trace = part.trace;
  remake.plan = part.plan;
  remake.tenant = tenant;
  remake.step = step;
  const Plan& plan = *part.plan;
  remake.group = learner_group(plan, tenant);
  if (remake.group.is_none())
    return error(Code::kInvalid, "no node of its graph trains tenant '{}'",
                 plan.tenants[tenant.index()].name);
  remake.trainer = trainer_of(plan, remake.group, tenant);
  const int64_t begun = begun_step(*part.trace, tenant);
  const auto found = find_checkpoints(
      checkpoints_folder(run_, tenancy_name(plan.tenants[tenant.index()]), plan.layout_tenants()),
      CheckpointDepth::kContents, step - 1);
  const bool has_newer = found.newest && found.newest->step > begun;
  remake.from_step = has_newer ? found.newest->step : begun;
  ASSIGN_OR_RETURN(const auto folders, trace_folders(part.folder));
  SavedStates saved(plan, *part.trace, folders);
  ASSIGN_OR_RETURN(remake.cuts, choose_cuts(remake, saved));
  RETURN_IF_ERROR(choose_groups(remake));
  // The saved state of an actor includes the point that it resumed from.
  if (remake.cuts.empty() || !has_newer) {
    ASSIGN_OR_RETURN(remake.begun_from, begun_from(*part.trace));
  }
  remake.points.assign(plan.tenants.size(), never_computed());
  RecoveryPoint& point = remake.points[tenant.index()];
  point = {};
  if (has_newer)
    point = {found.newest->folder, found.newest->step - begun};
  else if (begun > 0)
    point.checkpoint = remake.begun_from[tenant.index()].folder;
  ASSIGN_OR_RETURN(const uint64_t training_step, find_training_step(remake));
  remake.stop_step = last_before_saving(*part.trace, remake.group, tenant, training_step);
  RETURN_IF_ERROR(check_inputs(remake));
  return remake;
}

Status play_to_checkpoint(
    const Remake& remake, ResourceFactory make,
    const std::function<Status(Learner& learner, const SavedFields& trainer)>& save) {
  const std::vector<ResumePoint> none;
  NoServices services(remake.cuts.empty() ? remake.begun_from : none);
  Learner* real = nullptr;
  ReplaySetup setup;
  setup.plan = remake.plan;
  setup.trace = remake.trace;
  setup.tenant_resources = notify_resource;
  use_learner_from(
      setup,
      [make = std::move(make), &real](const Plan& plan,
                                      int32_t index) -> Result<std::shared_ptr<Resource>> {
        ASSIGN_OR_RETURN(auto made, make(plan, index));
        auto learner = std::dynamic_pointer_cast<Learner>(made);
        if (learner == nullptr) return made;
        real = learner.get();
        return std::shared_ptr<Resource>(std::move(learner));
      },
      remake.points);
  setup.process_services = &services;
  setup.cuts = remake.cuts;
  setup.options.is_real = remake.is_real;
  setup.options.is_absent = remake.is_absent;
  setup.options.stop_group = remake.group;
  setup.options.stop_step = remake.stop_step;
  bool is_saved = false;
  const auto& instances = remake.plan->group(remake.group).instances;
  const auto actor =
      static_cast<size_t>(std::ranges::find(instances, remake.trainer) - instances.begin());
  setup.at_stop = [&](const GroupState& state) -> Status {
    CHECK(real != nullptr && actor < state.actors.size(), "a trainer without a learner");
    RETURN_IF_ERROR(save(*real, state.actors[actor].state));
    is_saved = true;
    return ok();
  };
  ASSIGN_OR_RETURN(auto replay, Replay::make(std::move(setup)));
  ASSIGN_OR_RETURN(const ReplayReport report, replay->run());
  if (!report.is_identical())
    return error(Code::kInvalid, "its recorded steps do not repeat here: {}",
                 divergence_text(*remake.plan, report.divergences.front()));
  if (is_saved) return ok();
  return error(Code::kInternal, "the replay ended before step {} of '{}'", remake.stop_step,
               remake.plan->group(remake.group).name);
}

}  // namespace primerl
