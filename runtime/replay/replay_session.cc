#include "runtime/replay/replay_session.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "graph/base/suggest.h"
#include "graph/tenancies.h"
#include "runtime/backends/backends.h"
#include "runtime/backends/resource_catalog.h"
#include "runtime/backends/tenant_resources.h"
#include "runtime/replay/recovery.h"
#include "runtime/replay/tenant_choice.h"
#include "runtime/replay/traced_learner.h"
#include "runtime/replay/traced_resources.h"
#include "runtime/store/checkpoint.h"
#include "runtime/store/run_folder.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

Result<std::shared_ptr<const Plan>> plan_of(const Trace& trace,
                                            const std::vector<std::string>& sets) {
  Overrides overrides;
  overrides.sets = sets;
  // Missing model weights are reported by the code that computes with them.
  overrides.may_lack_weights = true;
  CheckedGraph checked =
      load_graph_text(trace.catalog().graph_text, "recorded graph",
                      trace.folder().parent_path().string(), overrides, full_catalog());
  if (checked.plan != nullptr) {
    // Not checked for an excerpt, which has its own file paths.
    if (sets.empty() && !trace.excerpt() && checked.plan->graph_hash != trace.catalog().graph_hash)
      return error(Code::kInvalid,
                   "this program reads the recorded graph differently than the one that recorded it"
                   " ({})",
                   trace.catalog().program_version)
          .note("an option was added, removed or has another default; replay with that program");
    return checked.plan;
  }
  // The run printed the warnings.
  checked.diagnostics.change_each(
      [](const Diagnostic& found) { return found.severity == Severity::kError; });
  return error(Code::kInvalid, "the recorded graph is not valid here")
      .note(render(checked.diagnostics, checked.sources));
}

/// The actor groups named by the user.
Result<std::vector<bool>> choose_groups(const ReplaySession& session, const std::string& node) {
  const Plan& plan = *session.plan;
  const auto excerpt = session.trace->excerpt();
  std::vector<bool> is_real(plan.groups.size(), node.empty() && !excerpt);
  for (size_t i = 0; i < is_real.size(); ++i) is_real[i] = is_real[i] && !session.is_absent[i];
  if (excerpt) is_real[excerpt->group.index()] = true;
  if (node.empty()) return is_real;
  ASSIGN_OR_RETURN(const GroupId group, find_group(plan, node));
  if (excerpt && excerpt->group != group)
    return error(Code::kInvalid, "the trace is an excerpt for '{}': '{}' is not in it",
                 plan.group(excerpt->group).name, node);
  if (session.is_absent[group.index()])
    return error(Code::kInvalid, "the process of '{}' died in the recorded run and came back",
                 plan.group(group).name)
        .note("what one incarnation after the other did is read (trace ls, why), not replayed");
  is_real[group.index()] = true;
  return is_real;
}

std::vector<std::string> tenant_names(const Plan& plan) {
  std::vector<std::string> names;
  for (const Tenant& tenant : plan.all_slots()) names.push_back(tenant.name);
  return names;
}

/// The actor groups of the tenant's actors. Shared groups come from the record, except the
/// learner's group.
Result<TenantSlot> choose_tenant(ReplaySession& session, const ReplayRequest& request) {
  const Plan& plan = *session.plan;
  ASSIGN_OR_RETURN(const TenantUse* use, choose_use(*session.trace, request.tenant));
  const TenantSlot slot = use->slot;
  bool has_one = false;
  for (uint32_t i = 0; i < plan.groups.size(); ++i) {
    const auto& instances = plan.groups[i].instances;
    const bool is_hers = std::any_of(instances.begin(), instances.end(), [&](InstanceId instance) {
      return plan.instance(instance).tenant == slot;
    });
    session.is_real[i] = session.is_real[i] && is_hers;
    has_one = has_one || session.is_real[i];
  }
  if (!has_one)
    return error(Code::kInvalid, "no actor of the graph serves tenant '{}' alone", request.tenant)
        .note("write per_tenant = true in its env, rollout and trainer nodes, and record again");
  if (session.depth == ReplayDepth::kFull) session.depth = ReplayDepth::kLearner;
  session.reasons.push_back(
      fmt::format("tenant '{}' alone: {} and what is shared come from the record", request.tenant,
                  plan.num_slots() == 1 ? "engines" : "the other tenants"));
  session.last_steps = last_steps_of(*session.trace, *use);
  if (std::string earlier = earlier_uses_text(*session.trace, *use); !earlier.empty())
    session.reasons.push_back(std::move(earlier));
  return slot;
}

/// `--from`: a training step, or a step of a node's actor group.
Result<RunMoment> moment_of(const ReplayRecord& record, const std::string& from) {
  RunMoment moment;
  const char* const end = from.data() + from.size();
  const auto [stop, fault] = std::from_chars(from.data(), end, moment.training_step);
  if (fault == std::errc() && stop == end) {
    if (moment.training_step < 1)
      return error(Code::kInvalid, "--from {}: training steps are counted from 1", from);
    return moment;
  }
  if (from.find(':') == std::string::npos)
    return error(Code::kInvalid, "--from '{}' names no step", from)
        .note("give a training step, as in --from 120, or a node's, as in --from trainer:412");
  ASSIGN_OR_RETURN(const StepName name, parse_step_name(record.trace->catalog(), from));
  moment.group = name.group;
  moment.step = *name.step;
  if (const uint64_t last = record.trace->last_step(name.group); moment.step > last)
    return error(Code::kInvalid, "--from {} is beyond the record: '{}' has {} steps", from,
                 record.plan->group(name.group).name, last);
  return moment;
}

/// The checkpoints from which the run began.
Result<std::vector<ResumePoint>> read_points(const Trace& trace) {
  std::vector<ResumePoint> points;
  const bool is_excerpt = trace.excerpt().has_value();
  for (const fs::path checkpoint : trace.catalog().resumed_from) {
    if (checkpoint == kNoCheckpoint) {
      points.emplace_back();
      continue;
    }
    // An excerpt contains the parts of checkpoints that it needs.
    auto point =
        read_checkpoint(is_excerpt ? trace.folder().parent_path() / checkpoint : checkpoint,
                        is_excerpt ? CheckpointDepth::kSizes : CheckpointDepth::kContents);
    if (!point.ok())
      return std::move(point).error().while_doing("reading the checkpoint that the run began from");
    points.push_back(std::move(point).value());
  }
  return points;
}

/// The actor group that trains the first tenant; none if no node does.
GroupId learner_group(const Plan& plan) {
  for (uint32_t i = 0; i < plan.groups.size(); ++i) {
    const auto trained = tenants_trained_by(plan, GroupId(i));
    if (std::find(trained.begin(), trained.end(), TenantSlot(0)) != trained.end())
      return GroupId(i);
  }
  return GroupId::none();
}

/// Number of steps that the first tenant's learner had made before the record; "step_80": 80.
int64_t begun_steps(const Trace& trace) {
  const auto& points = trace.catalog().resumed_from;
  if (points.empty()) return 0;
  const std::string name = fs::path(points.front()).filename().string();
  int64_t step = 0;
  if (name.starts_with("step_"))
    (void)std::from_chars(name.data() + 5, name.data() + name.size(), step);
  return step;
}

/// Checks that the record has this training step; the error names the steps that it has.
Status check_training_step(const ReplayRecord& record, const ReplayRequest& request, int64_t step) {
  const GroupId learner = learner_group(*record.plan);
  if (learner.is_none())
    return error(Code::kInvalid, "--from {}: no node of this graph trains", request.from)
        .note("name a node's step, as in --from env:412");
  const int64_t begun = begun_steps(*record.trace);
  ASSIGN_OR_RETURN(const auto folders, trace_folders(request.run));
  const SavedStates saved(*record.plan, *record.trace, folders);
  const auto [at, taken] = saved.newest_of_learner(learner).value_or(std::pair(uint64_t{0}, begun));
  const int64_t last = taken + num_recorded_steps(*record.trace, learner, at + 1)[TenantSlot(0)];
  if (step > last)
    return error(Code::kInvalid, "--from {} is beyond the record, which ends with training step {}",
                 request.from, last);
  if (step <= begun)
    return error(Code::kInvalid,
                 "--from {}: the record begins after training step {}, a checkpoint", request.from,
                 begun);
  return ok();
}

/// Whether all processes that are replayed have a cut.
bool are_whole(const ReplaySession& session, const RunCuts& cuts) {
  if (cuts.empty()) return false;
  const auto absent = absent_groups(*session.plan, *session.trace, cuts);
  for (uint32_t i = 0; i < absent.size(); ++i)
    if (!absent[i] && cuts.state_of(GroupId(i)) == nullptr) return false;
  return true;
}

/// No state was saved before `--from`, and the record does not begin with the first step.
Error nothing_before(const ReplaySession& session, SavedStates& saved,
                     const ReplayRequest& request) {
  Error none = error(Code::kInvalid,
                     "--from {}: the record does not begin with the first step, and nothing was "
                     "saved before that",
                     request.from);
  RunMoment moment;
  for (const int64_t step : saved.training_steps()) {
    moment.training_step = step + 1;
    if (are_whole(session, saved.before(moment)))
      return std::move(none).note(
          fmt::format("the first training step that can be played is {}", step + 1));
  }
  return none;
}

/// Chooses the saved state from which the replay begins.
Status begin_from(const ReplayRequest& request, ReplaySession& session) {
  ASSIGN_OR_RETURN(const RunMoment moment, moment_of({session.trace, session.plan}, request.from));
  ASSIGN_OR_RETURN(const auto folders, trace_folders(request.run));
  SavedStates saved(*session.plan, *session.trace, folders);
  RunCuts cuts = saved.before(moment);
  const bool is_chosen = are_whole(session, cuts);
  const Time at = saved.made_at();
  bool is_from_first = session.cuts.empty();
  for (uint32_t i = 0; i < session.plan->groups.size(); ++i)
    is_from_first = is_from_first && session.trace->first_step(GroupId(i)) <= 1;
  if (!is_chosen && !is_from_first) return nothing_before(session, saved, request);
  session.reasons = saved.notes();
  session.reasons.push_back(
      is_chosen
          ? fmt::format(
                "the replay begins {:.1f} s after the start of the run, with what was "
                "saved there",
                static_cast<double>(at.to_nanoseconds() - session.trace->catalog().zero_ns) * 1e-9)
          : "nothing was saved before that: the replay begins with the first step");
  if (is_chosen) session.cuts = std::move(cuts);
  return ok();
}

}  // namespace

ReplayHostServices::~ReplayHostServices() {
  std::error_code ignored;
  if (!scratch_.empty()) fs::remove_all(scratch_, ignored);
}

Status ReplayHostServices::open() {
  std::string pattern = (fs::temp_directory_path() / "primerl-replay-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr)
    return error(Code::kUnavailable, "a folder for checkpoints cannot be made in '{}'",
                 fs::temp_directory_path().string());
  scratch_ = pattern;
  if (out_.empty()) return ok();
  std::error_code failed;
  if (fs::exists(out_, failed) && !fs::is_empty(out_, failed))
    return error(Code::kInvalid, "--out: '{}' is not empty", out_.string())
        .note("what a replay writes must not mix with other files: give a new folder");
  if (!failed) fs::create_directories(out_, failed);
  // Private, because prompts and completions will be written there.
  if (!failed) fs::permissions(out_, fs::perms::owner_all, failed);
  if (failed)
    return error(Code::kUnavailable, "'{}' cannot be made: {}", out_.string(), failed.message());
  return ok();
}

void ReplayHostServices::on_step(const StepRecord& record) {
  if (record.kind != StepKind::kTenant || record.tenant_change->kind != TenantChange::Kind::kJoin)
    return;
  Tenant tenant;
  tenant.name = record.tenant_change->name;
  tenant.tenancy = record.tenant_change->tenancy;
  const std::lock_guard lock(mutex_);
  joined_[{record.group, record.tenant_change->slot}] = tenancy_name(tenant);
}

void ReplayHostServices::publish_metrics(TenantSlot tenant, int64_t step,
                                         const MetricValues& values) {
  std::string label;
  {
    const std::lock_guard lock(mutex_);
    metrics_.push_back({tenant, step, values});
    const auto joined = joined_.find({ActorGroup::running_here(), tenant});
    label = joined == joined_.end() ? tenants_.at(tenant.index()) : joined->second;
  }
  if (out_.empty()) return;
  Json line = Json::object();
  line.set("step", step).set("tenant", label);
  for (const auto& [name, value] : values) line.set(name, value);
  (void)append_line("metrics.jsonl", line.dump());
}

void ReplayHostServices::log(LogLevel, std::string_view instance, std::string_view text) {
  if (!out_.empty()) (void)append_line("log.txt", fmt::format("{}: {}", instance, text));
}

const ResumePoint* ReplayHostServices::resume_point(TenantSlot tenant) const {
  if (tenant.index() >= points_.size() || points_[tenant.index()].folder.empty()) return nullptr;
  const std::lock_guard lock(mutex_);
  // The checkpoint is of the slot's first tenant.
  if (joined_.contains({ActorGroup::running_here(), tenant})) return nullptr;
  return &points_[tenant.index()];
}

const ResumePoint* ReplayHostServices::joined_point(const Tenant& tenant) const {
  if (tenant.begins_at == 0 || run_folder_.empty()) return nullptr;
  const std::lock_guard lock(mutex_);
  const auto [point, is_new] = joined_points_.try_emplace({tenant.slot, tenant.tenancy});
  const auto folder = checkpoints_folder(run_folder_, tenancy_name(tenant), layout_tenants_);
  if (is_new)
    if (auto found = find_checkpoint(folder, tenant.begins_at)) point->second = std::move(*found);
  return point->second.folder.empty() ? nullptr : &point->second;
}

Status ReplayHostServices::append_line(std::string_view file, std::string_view line) {
  if (out_.empty()) return ok();
  const std::lock_guard lock(mutex_);
  auto found = files_.find(file);
  if (found == files_.end()) {
    auto opened = LineFile::open(out_ / file);
    if (!opened.ok()) {
      if (fault_.ok()) fault_ = opened.error();
      return ok();
    }
    found = files_.emplace(file, std::move(opened).value()).first;
  }
  const Status written = found->second->append(line);
  if (fault_.ok()) fault_ = written;
  return ok();
}

Status ReplayHostServices::fault() {
  const std::lock_guard lock(mutex_);
  return fault_;
}

Result<fs::path> ReplayHostServices::begin_checkpoint(TenantSlot tenant, int64_t step) {
  const fs::path folder = scratch_ / fmt::format("{}_{}", tenant.value, step);
  std::error_code failed;
  fs::remove_all(folder, failed);
  fs::create_directories(folder, failed);
  if (failed) return error(Code::kUnavailable, "'{}' cannot be made", folder.string());
  return folder;
}

Status ReplayHostServices::commit_checkpoint(TenantSlot tenant, int64_t step, const Json&) {
  std::error_code ignored;
  fs::remove_all(scratch_ / fmt::format("{}_{}", tenant.value, step), ignored);
  return ok();
}

std::vector<ReplayedMetrics> ReplayHostServices::take_metrics() {
  const std::lock_guard lock(mutex_);
  return std::exchange(metrics_, {});
}

std::string divergence_text(const Plan& plan, const Divergence& divergence) {
  std::string text = fmt::format("{}:{}: {}: {}\n", plan.group(divergence.group).name,
                                 divergence.step, to_string(divergence.kind), divergence.what);
  for (const auto& detail : divergence.details) text += fmt::format("  {}\n", detail);
  return text;
}

Result<GroupId> find_group(const Plan& plan, const std::string& name) {
  std::vector<std::string> known;
  for (const auto& instance : plan.instances) {
    const std::string& node = plan.node(instance.node).name;
    if (instance.name == name || node == name) return instance.group;
    known.push_back(instance.name);
  }
  for (uint32_t i = 0; i < plan.groups.size(); ++i)
    if (plan.groups[i].name == name) return GroupId(i);
  Error unknown = error(Code::kNotFound, "no node '{}' in the recorded graph", name);
  if (const std::string nearest = nearest_name(name, known); !nearest.empty())
    return std::move(unknown).note(fmt::format("did you mean '{}'?", nearest));
  return std::move(unknown).note("it has: " + join_names(known));
}

Result<ReplayRecord> open_record(const ReplayRequest& request) {
  ReplayRecord record;
  ASSIGN_OR_RETURN(record.trace, Trace::open(request.run));
  ASSIGN_OR_RETURN(record.plan, plan_of(*record.trace, request.sets));
  RETURN_IF_ERROR(check_fits(*record.plan, record.trace->catalog()));
  return record;
}

Status check_names(const ReplayRecord& record, const ReplayRequest& request) {
  if (!request.node.empty()) RETURN_IF_ERROR(find_group(*record.plan, request.node));
  if (!request.tenant.empty()) RETURN_IF_ERROR(choose_use(*record.trace, request.tenant));
  if (request.from.empty()) return ok();
  if (record.trace->excerpt())
    return error(Code::kInvalid, "a fixture is played from its first step: leave --from out");
  ASSIGN_OR_RETURN(const RunMoment moment, moment_of(record, request.from));
  if (moment.step != 0) return ok();
  return check_training_step(record, request, moment.training_step);
}

Result<ReplaySession> open_replay(const ReplayRequest& request) {
  ASSIGN_OR_RETURN(ReplayRecord record, open_record(request));
  RETURN_IF_ERROR(check_names(record, request));
  return open_replay(std::move(record), request);
}

Result<ReplaySession> open_replay(ReplayRecord record, const ReplayRequest& request) {
  const std::string& depth = request.depth;
  ReplaySession session;
  session.trace = std::move(record.trace);
  session.plan = std::move(record.plan);
  const Plan& plan = *session.plan;
  const auto excerpt = session.trace->excerpt();
  if (!excerpt) {
    ASSIGN_OR_RETURN(session.cuts, base_cuts(plan, session.trace->oldest_folder()));
  }
  if (!request.from.empty()) RETURN_IF_ERROR(begin_from(request, session));
  if (!session.cuts.empty() && depth != "control")
    return error(Code::kInvalid,
                 "this record begins with the saved state of a run that continued after a crash: "
                 "what an engine or a learner had computed before is not in it")
        .note("replay it with --depth control, where both answer from the record")
        .note("or replay the run folder, while it still has the older records");
  for (uint32_t i = 0; i < plan.groups.size(); ++i)
    if (session.trace->first_step(GroupId(i)) > session.cuts.first_step(GroupId(i)) &&
        (!excerpt || excerpt->group == GroupId(i)))
      return error(Code::kInvalid,
                   "the trace of '{}' begins with step {}: the steps before it were retired",
                   plan.groups[i].name, session.trace->first_step(GroupId(i)))
          .note("replay begins with the first step; trace commands read what is left")
          .note("with --depth control, --from STEP begins with saved state");
  session.is_absent = excerpt ? std::vector<bool>(plan.groups.size(), false)
                              : absent_groups(plan, *session.trace, session.cuts);
  ASSIGN_OR_RETURN(session.is_real, choose_groups(session, request.node));
  session.depth = depth == "control"   ? ReplayDepth::kControl
                  : depth == "learner" ? ReplayDepth::kLearner
                                       : ReplayDepth::kFull;
  if (!request.tenant.empty()) {
    ASSIGN_OR_RETURN(session.only, choose_tenant(session, request));
  }
  if (!excerpt)
    for (std::string& reason : close_over(plan, *session.trace, session.depth == ReplayDepth::kFull,
                                          session.is_absent, session.is_real))
      session.reasons.push_back(std::move(reason));
  if (const std::string here = program_text(*plan.catalog);
      here != session.trace->catalog().program_version && !excerpt)
    session.reasons.push_back(
        fmt::format("recorded by primerl-graph {}, replayed by {}: where their code differs, steps "
                    "may diverge",
                    session.trace->catalog().program_version, here));
  for (size_t i = 0; i < session.is_absent.size(); ++i)
    if (session.is_absent[i])
      session.reasons.push_back(fmt::format(
          "'{}' is taken from the record: its process died and came back", plan.groups[i].name));
  session.process_services = std::make_unique<ReplayHostServices>(request.out, tenant_names(plan));
  session.process_services->find_joined_in(session.trace->folder().parent_path(),
                                           plan.layout_tenants());
  // Actors that continue from a saved state need no checkpoint: the state includes it.
  if (session.cuts.empty()) {
    ASSIGN_OR_RETURN(auto points, read_points(*session.trace));
    session.process_services->resume_from(std::move(points));
  }
  RETURN_IF_ERROR(session.process_services->open());
  return session;
}

ReplaySetup ReplaySession::setup(uint32_t num_threads) const {
  ReplaySetup setup;
  setup.plan = plan;
  setup.trace = trace;
  use_resources(setup, resource_factory(), depth, only);
  setup.process_services = process_services.get();
  setup.cuts = cuts;
  setup.options.is_real = is_real;
  setup.options.is_absent = is_absent;
  setup.options.num_threads = num_threads;
  setup.options.last_steps = last_steps;
  setup.watcher = process_services.get();
  setup.tenant_resources = notify_resource;
  if (const auto excerpt = trace->excerpt()) {
    setup.options.stop_group = excerpt->group;
    setup.options.stop_step = excerpt->last_step;
  }
  return setup;
}

}  // namespace primerl
