#include "runtime/replay/traced_resources.h"

#include <algorithm>

#include "graph/weight_backend.h"
#include "kernels/weights/memory_channel.h"
#include "kernels/weights/options.h"
#include "runtime/backends/backends.h"
#include "runtime/replay/checked_engine.h"
#include "runtime/replay/replayed_channel.h"
#include "runtime/replay/replayed_engine.h"
#include "runtime/replay/resuming_engine.h"
#include "runtime/replay/resuming_learner.h"
#include "runtime/replay/traced_engine.h"
#include "runtime/replay/traced_learner.h"
#include "runtime/replay/traced_outside.h"
#include "runtime/store/checkpoint.h"
#include "runtime/store/run_folder.h"
#include "runtime/trace/read/tenant_uses.h"

namespace primerl {
namespace {

std::string_view kind_of(const Plan& plan, int32_t index) {
  return plan.resources[static_cast<size_t>(index)].kind;
}

/// A learner cannot be more versions ahead of an engine than this, because a batch needs groups
/// that were opened under a version which every engine had applied.
size_t versions_kept(const Plan& plan, int32_t channel) {
  int64_t most = 0;
  for (const Tenant& tenant : plan.all_slots()) most = std::max(most, tenant.max_off_policy_steps);
  const auto& options = plan.resources[static_cast<size_t>(channel)].options;
  most += static_cast<const WeightChannelOptions*>(options.get())->versions_max;
  return static_cast<size_t>(most) + 2;
}

/// A group is made from a saved state before its first step.
bool is_restoring() { return ActorGroup::running_here().is_none(); }

std::shared_ptr<TracedLearner> restored(std::shared_ptr<TracedLearner> learner) {
  learner->set_is_restoring(is_restoring);
  return learner;
}

/// The resource. If it is a learner, an engine or an Outside, `keep` gets its answers.
std::shared_ptr<Resource> traced(std::shared_ptr<Resource> made, const KeepAnswer& keep) {
  if (auto learner = std::dynamic_pointer_cast<Learner>(made))
    return restored(std::make_shared<TracedLearner>(std::move(learner), keep));
  if (auto* engine = observed_engine(made)) engine->add(engine_recorder(keep));
  if (auto outside = std::dynamic_pointer_cast<Outside>(made))
    return make_recording_outside(std::move(outside), keep);
  return made;
}

}  // namespace

ResourceFactory recording_factory(ResourceFactory make, Recorder& recorder) {
  return [make = std::move(make), &recorder](const Plan& plan,
                                             int32_t index) -> Result<std::shared_ptr<Resource>> {
    auto made = make(plan, index);
    if (!made.ok()) return made;
    const GroupId owner = owner_of(plan, index);
    const KeepAnswer keep = [&recorder, owner](std::vector<std::byte> answer) {
      recorder.add_answer(owner, std::move(answer));
    };
    if (auto channel = std::dynamic_pointer_cast<WeightChannel>(*made))
      return std::shared_ptr<Resource>(make_recording_channel(
          std::move(channel), [&recorder](GroupId group, std::vector<std::byte> answer) {
            recorder.add_answer(group, std::move(answer));
          }));
    return traced(std::move(*made), keep);
  };
}

namespace {

// A snapshot that is older than the checkpoint never comes.
constexpr Duration kSnapshotMax = Duration::seconds(2);
constexpr Duration kWeightsMax = Duration::seconds(60);  // the limit of Broadcaster for an engine

/// Weights of `wanted`, or of the next later version of its key that was really computed.
Result<std::shared_ptr<const WeightSnapshot>> weights_from(WeightChannel& channel,
                                                           const KeyedVersion& wanted) {
  const auto [key, version] = wanted;
  // The publisher resumes, too, so its bytes may be in transit.
  (void)channel.wait_for(key, version, key.is_snapshot() ? kSnapshotMax : kWeightsMax);
  for (PolicyVersion next = version; next <= channel.newest(key); next = next.next()) {
    auto fetched = channel.fetch(key, next);
    if (fetched.ok() && !(*fetched)->tensors.empty()) return fetched;
  }
  return error(Code::kNotFound, "no weights of {} or later could be made again", wanted);
}

/// In one process more versions are kept, so that an engine that is late in the record finds its
/// version. An engine in another process gets the oldest version that exists.
Result<std::shared_ptr<WeightChannel>> channel_to_follow(const Plan& plan, int32_t index,
                                                         const ResourceFactory& make) {
  ASSIGN_OR_RETURN(const std::string backend, weight_backend(plan, index));
  if (backend == "memory") return make_memory_channel(versions_kept(plan, index));
  ASSIGN_OR_RETURN(auto made, make(plan, index));
  auto channel = std::dynamic_pointer_cast<WeightChannel>(made);
  CHECK(channel != nullptr, "a resource is not of its kind");
  return channel;
}

std::shared_ptr<Resource> recovered_channel(std::shared_ptr<WeightChannel> channel,
                                            Recovery& recovery) {
  ReplayedChannelSetup setup;
  setup.channel = std::move(channel);
  setup.next = [&recovery](GroupId group) { return recovery.take(group); };
  setup.without_tensors = true;  // versions before the checkpoint are not made again
  return make_replayed_channel(std::move(setup));
}

}  // namespace

std::vector<TenantSlot> tenants_trained_by(const Plan& plan, GroupId group) {
  const auto& owned = plan.group(group).resources;
  if (std::none_of(owned.begin(), owned.end(), [&](int32_t resource) {
        return kind_of(plan, resource) == Learner::kResourceKind;
      }))
    return {};
  std::vector<TenantSlot> tenants;
  for (const InstanceId instance : plan.group(group).instances) {
    const TenantSlot named = plan.instance(instance).tenant;
    if (plan.is_free(named)) continue;
    const TenantSlot tenant = named.is_none() ? TenantSlot(0) : named;
    if (std::find(tenants.begin(), tenants.end(), tenant) == tenants.end())
      tenants.push_back(tenant);
  }
  return tenants;
}

namespace {

/// The progress of each tenant of the group's learner.
Result<std::map<TenantSlot, TenantProgress>> progress_of(const Plan& plan,
                                                         const GroupState& state) {
  const PlanGroup& group = plan.group(state.group);
  std::map<TenantSlot, TenantProgress> all;
  for (size_t i = 0; i < group.resources.size() && i < state.resources.size(); ++i) {
    if (kind_of(plan, group.resources[i]) != Learner::kResourceKind) continue;
    ASSIGN_OR_RETURN(const auto progress, read_state<LearnerProgress>(state.resources[i]));
    for (const auto& [tenant, reached] : progress.tenants) {
      if (tenant.is_none() || tenant.index() >= plan.num_slots())
        return error(Code::kCorrupt, "the state of a learner names tenant {} of {}", tenant,
                     plan.num_slots());
      all[tenant] = reached;
    }
  }
  return all;
}

}  // namespace

Result<std::map<TenantSlot, int64_t>> learner_steps_of(const Plan& plan, const GroupState& state) {
  ASSIGN_OR_RETURN(const auto progress, progress_of(plan, state));
  std::map<TenantSlot, int64_t> steps;
  for (const auto& [tenant, reached] : progress) steps[tenant] = reached.num_steps;
  return steps;
}

Result<std::vector<TenantSlot>> open_tenants_of(const Plan& plan, const GroupState& state) {
  ASSIGN_OR_RETURN(const auto progress, progress_of(plan, state));
  std::vector<TenantSlot> open;
  for (const auto& [tenant, reached] : progress)
    if (reached.is_open) open.push_back(tenant);
  return open;
}

Result<std::vector<int64_t>> learner_steps_in(const Plan& plan, const Trace& trace,
                                              const RunCuts& cuts) {
  std::vector<int64_t> steps(plan.num_slots(), 0);
  for (size_t i = 0; i < plan.resources.size(); ++i) {
    if (plan.resources[i].kind != Learner::kResourceKind) continue;
    const GroupId owner = owner_of(plan, static_cast<int32_t>(i));
    if (const GroupState* state = cuts.state_of(owner)) {
      ASSIGN_OR_RETURN(const auto before, learner_steps_of(plan, *state));
      for (const auto& [tenant, taken] : before)
        if (!tenant.is_none() && tenant.index() < steps.size()) steps[tenant.index()] += taken;
    }
    for (const auto& [tenant, after] : recorded_progress(trace, owner, cuts.first_step(owner))) {
      if (tenant.is_none() || tenant.index() >= steps.size()) continue;
      int64_t& taken = steps[tenant.index()];
      taken = after.num_steps + (after.num_begins == 0 ? taken : 0);
    }
  }
  return steps;
}

namespace {

/// " of tenant 'a'" if there are several tenants.
std::string of_tenant(const Plan& plan, TenantSlot tenant) {
  if (plan.num_slots() == 1) return {};
  return fmt::format(" of tenant '{}'", plan.in_slot(tenant).name);
}

/// Nothing outside is started before the run resumes.
std::shared_ptr<Resource> outside_to_follow(const ResourceFactory& make, const Plan& plan,
                                            int32_t index, Recovery& recovery) {
  ResumingOutsideSetup setup;
  setup.make = [make, &plan, index]() -> Result<std::shared_ptr<Outside>> {
    ASSIGN_OR_RETURN(auto made, make(plan, index));
    auto outside = std::dynamic_pointer_cast<Outside>(made);
    CHECK(outside != nullptr, "a resource is not of its kind");
    return outside;
  };
  setup.next = [&recovery, owner = owner_of(plan, index)] { return recovery.take(owner); };
  setup.is_live = [&recovery] { return recovery.is_live(); };
  return make_resuming_outside(std::move(setup));
}

}  // namespace

namespace {

/// The step at which the tenant began in the record, or in the start that the saved state is of.
int64_t begin_of(const TenantUse& use, const GroupState* saved) {
  if (saved != nullptr)
    for (const SavedSlot& each : saved->slots)
      if (each.slot == use.slot && each.tenancy == use.tenancy) return each.begins_at;
  return use.begins_at;
}

/// Where tenants continue that joined the run: at their newest checkpoint that the record reaches.
/// Steps of the record count from their join.
void add_joined_points(const Plan& plan, const Recovery& recovery, GroupId owner,
                       const std::vector<int64_t>& taken, std::vector<RecoveryPoint>& points) {
  const Trace& trace = recovery.trace();
  const uint64_t first = recovery.cuts().first_step(owner);
  for (const auto& [tenant, after] : recorded_progress(trace, owner, first))
    if (!tenant.is_none() && tenant.index() < points.size())
      points[tenant.index()].num_begins = after.num_begins;
  const uint64_t last = std::max(trace.last_step(owner), first - 1);
  for (uint32_t slot = 0; slot < points.size(); ++slot) {
    const TenantUse* use = trace.tenants().at(owner, last, TenantSlot(slot));
    if (use == nullptr || use->is_in_file) continue;
    const auto folder =
        checkpoints_folder(trace.folder().parent_path(), use->label(), plan.layout_tenants());
    const int64_t begin = begin_of(*use, recovery.cuts().state_of(owner));
    const auto found = find_checkpoints(folder, CheckpointDepth::kSizes, begin + taken[slot]);
    points[slot].checkpoint.clear();
    points[slot].num_steps = 0;
    if (!found.newest) continue;
    points[slot].checkpoint = found.newest->folder;
    points[slot].num_steps = found.newest->step - begin;
  }
}

}  // namespace

ResourceFactory recovery_factory(ResourceFactory make, Recovery& recovery,
                                 std::vector<RecoveryPoint> points) {
  auto channel_of = std::make_shared<WeightChannel*>(nullptr);
  return [make = std::move(make), &recovery, points = std::move(points), channel_of](
             const Plan& plan, int32_t index) -> Result<std::shared_ptr<Resource>> {
    const GroupId owner = owner_of(plan, index);
    const NextAnswer next = [&recovery, owner] { return recovery.take(owner); };
    const auto is_live = [&recovery] { return recovery.is_live(); };
    if (kind_of(plan, index) == WeightChannel::kResourceKind) {
      ASSIGN_OR_RETURN(auto channel, channel_to_follow(plan, index, make));
      *channel_of = channel.get();
      return recovered_channel(std::move(channel), recovery);
    }
    if (kind_of(plan, index) == Outside::kResourceKind)
      return outside_to_follow(make, plan, index, recovery);
    auto made = make(plan, index);
    if (!made.ok()) return made;
    if (auto engine = std::dynamic_pointer_cast<Engine>(*made)) {
      ResumingEngineSetup setup;
      setup.engine = std::move(engine);
      setup.next = next;
      setup.is_live = is_live;
      setup.weights_from = [channel_of](const KeyedVersion& version) {
        return weights_from(**channel_of, version);
      };
      setup.on_resume = [&recovery, owner, index](EngineResume resume) {
        resume.resource = index;
        recovery.engine_resumed(owner, resume);
      };
      return std::shared_ptr<Resource>(make_resuming_engine(std::move(setup)));
    }
    if (auto learner = std::dynamic_pointer_cast<Learner>(*made)) {
      ASSIGN_OR_RETURN(const auto taken, learner_steps_in(plan, recovery.trace(), recovery.cuts()));
      for (const TenantSlot tenant : tenants_trained_by(plan, owner))
        if (const auto& point = points[tenant.index()]; taken[tenant.index()] < point.num_steps)
          return error(Code::kInvalid,
                       "its record ends after {} training steps{}, checkpoint '{}' "
                       "was made after {}",
                       taken[tenant.index()], of_tenant(plan, tenant), point.checkpoint.string(),
                       point.num_steps);
      ResumingLearnerSetup setup;
      setup.learner = std::move(learner);
      setup.next = next;
      setup.is_live = is_live;
      setup.is_restoring = is_restoring;
      setup.points = points;
      setup.points.resize(plan.num_slots());
      add_joined_points(plan, recovery, owner, taken, setup.points);
      setup.tolerance = tolerance_of(plan);
      setup.publish = [channel_of, &recovery, owner](TenantSlot tenant,
                                                     const WeightSnapshot& weights) {
        const uint64_t cut_step = recovery.cuts().first_step(owner) - 1;
        const uint64_t last = std::max(recovery.trace().last_step(owner), cut_step);
        const TenantUse* use = recovery.trace().tenants().at(owner, last, tenant);
        if (use == nullptr) use = recovery.trace().tenants().at(owner, cut_step, tenant);
        const AdapterId adapter(use == nullptr ? 0 : use->tenancy);
        return (*channel_of)->publish(with_key(weights, {tenant, adapter}));
      };
      setup.on_divergence = [&recovery, owner](std::string what) {
        recovery.diverged(owner, std::move(what));
      };
      return std::shared_ptr<Resource>(make_resuming_learner(std::move(setup)));
    }
    return made;
  };
}

namespace {

/// Its steps after the points are computed and compared.
std::shared_ptr<Resource> comparing_learner(std::shared_ptr<Learner> made, const Plan& plan,
                                            GroupId owner, ReplayedAnswers& answers,
                                            std::vector<RecoveryPoint> points,
                                            std::shared_ptr<ToleranceCounts> near,
                                            bool writes_files) {
  ResumingLearnerSetup setup;
  setup.learner = std::move(made);
  setup.next = [&answers, owner] { return answers.take(owner); };
  setup.is_live = [] { return false; };
  setup.is_restoring = is_restoring;
  setup.tolerance = tolerance_of(plan);
  setup.near = std::move(near);
  setup.points = std::move(points);
  setup.points.resize(plan.num_slots());
  setup.writes_files = writes_files;
  setup.publish = [](TenantSlot, const WeightSnapshot&) { return ok(); };
  setup.on_divergence = [&answers, owner](std::string what) {
    answers.diverged(owner, std::move(what));
  };
  return make_resuming_learner(std::move(setup));
}

/// All steps of `only` are computed and those of other tenants are not; of all tenants without it.
std::vector<RecoveryPoint> points_of(const Plan& plan, std::optional<TenantSlot> only) {
  std::vector<RecoveryPoint> points(plan.num_slots());
  if (only) points.assign(plan.num_slots(), never_computed());
  if (only) points[only->index()] = {};
  return points;
}

std::shared_ptr<Resource> checked_engine(std::shared_ptr<Engine> made, const Plan& plan,
                                         GroupId owner, ReplayedAnswers& answers,
                                         std::shared_ptr<ToleranceCounts> near) {
  CheckedEngineSetup setup;
  setup.engine = std::move(made);
  setup.next = [&answers, owner] { return answers.take(owner); };
  setup.tolerance = tolerance_of(plan);
  setup.near = std::move(near);
  setup.on_divergence = [&answers, owner](std::string what) {
    answers.diverged(owner, std::move(what));
  };
  return make_checked_engine(std::move(setup));
}

/// A channel of a replay at full depth.
struct ReplayedChannel {
  std::shared_ptr<WeightChannel> weights;  // fetch() takes no answer from the record
  std::shared_ptr<WeightChannel> replayed;
};
/// By index of their resource.
using ReplayedChannels = std::map<int32_t, ReplayedChannel>;

/// Weights that an engine had when the recorded run was resumed. Its group's channels have them:
/// a step waits until its versions are published.
Result<std::shared_ptr<const WeightSnapshot>> weights_in(const ReplayedChannels& channels,
                                                         const Plan& plan, GroupId owner,
                                                         const KeyedVersion& version) {
  std::vector<const ReplayedChannel*> used;
  for (const InstanceId instance : plan.group(owner).instances)
    for (const int32_t resource : plan.instance(instance).resources)
      if (const auto channel = channels.find(resource); channel != channels.end())
        used.push_back(&channel->second);
  Result<std::shared_ptr<const WeightSnapshot>> fetched =
      error(Code::kNotFound, "an engine without a weight channel had weights of {}", version);
  for (const ReplayedChannel* channel : used) {
    (void)channel->replayed->wait_for(version.key, version.version, kPublishMax);
    fetched = channel->weights->fetch(version.key, version.version);
    if (fetched.ok()) break;
  }
  return fetched;
}

/// The real engine; it is made anew where the record says so.
Result<std::shared_ptr<Engine>> replayed_engine(const ResourceFactory& make, const Plan& plan,
                                                int32_t index,
                                                std::shared_ptr<const ReplayedChannels> channels,
                                                ReplayedAnswers& answers) {
  const GroupId owner = owner_of(plan, index);
  ReplayedEngineSetup setup;
  setup.make = [make, &plan, index]() -> Result<std::shared_ptr<Engine>> {
    ASSIGN_OR_RETURN(auto made, make(plan, index));
    auto engine = std::dynamic_pointer_cast<Engine>(made);
    CHECK(engine != nullptr, "a resource is not of its kind");
    return engine;
  };
  setup.next_resume = [&answers, owner, index] { return answers.next_engine_resume(owner, index); };
  setup.weights = [channels = std::move(channels), &plan, owner](const KeyedVersion& version) {
    return weights_in(*channels, plan, owner, version);
  };
  setup.on_divergence = [&answers, owner](std::string what) {
    answers.diverged(owner, std::move(what));
  };
  return make_replayed_engine(std::move(setup));
}

struct LearnerChoice {
  std::vector<RecoveryPoint> points;  // by tenant slot
  bool writes_files = true;
};

void use_resources(ReplaySetup& setup, ResourceFactory make, ReplayDepth depth,
                   LearnerChoice learners) {
  std::shared_ptr<PublishedVersions> published;
  if (depth == ReplayDepth::kFull) published = std::make_shared<PublishedVersions>(*setup.plan);
  setup.published = published;
  const bool is_exact = tolerance_of(*setup.plan).is_exact();
  if (!is_exact && depth != ReplayDepth::kControl) setup.near = std::make_shared<ToleranceCounts>();
  setup.factory = [make = std::move(make), depth, published, learners = std::move(learners),
                   is_exact, near = setup.near, channels = std::make_shared<ReplayedChannels>()](
                      const Plan& plan, int32_t index,
                      ReplayedAnswers& answers) -> Result<std::shared_ptr<Resource>> {
    const GroupId owner = owner_of(plan, index);
    const NextAnswer next = [&answers, owner] { return answers.take(owner); };
    const std::string_view kind = kind_of(plan, index);
    if (kind == WeightChannel::kResourceKind) {
      ReplayedChannelSetup channel;
      channel.channel = make_memory_channel(versions_kept(plan, index));
      channel.next = [&answers](GroupId group) { return answers.take(group); };
      channel.without_tensors = depth != ReplayDepth::kFull;
      channel.may_come = [&answers] { return answers.is_parallel(); };
      if (published != nullptr)
        channel.published = [published, index](const KeyedVersion& version) {
          published->add(index, version);
        };
      if (published != nullptr)
        channel.dropped = [published, index](WeightsKey key) { published->forget(index, key); };
      const auto weights = channel.channel;
      auto replayed = make_replayed_channel(std::move(channel));
      (*channels)[index] = {weights, replayed};
      return std::shared_ptr<Resource>(std::move(replayed));
    }
    if (kind == Learner::kResourceKind && depth == ReplayDepth::kControl)
      return std::shared_ptr<Resource>(restored(std::make_shared<TracedLearner>(nullptr, next)));
    if (kind == Engine::kResourceKind && depth != ReplayDepth::kFull)
      return std::shared_ptr<Resource>(std::make_unique<TracedEngine>(next));
    // Nothing outside is asked again, at any depth.
    if (kind == Outside::kResourceKind)
      return std::shared_ptr<Resource>(make_replayed_outside(next));
    // Skips the recorded answers of a real resource. Otherwise a channel would read them as its
    // own.
    const KeepAnswer skip = [&answers, owner](std::vector<std::byte>) { answers.take(owner); };
    if (kind == Engine::kResourceKind) {
      ASSIGN_OR_RETURN(auto engine, replayed_engine(make, plan, index, channels, answers));
      if (!is_exact) return checked_engine(std::move(engine), plan, owner, answers, near);
      return traced(std::move(engine), skip);
    }
    auto made = make(plan, index);
    if (!made.ok()) return made;
    // Only the record says whether a save has ended, and which tenant is next: a start that was
    // resumed forgot the order of its queue.
    if (auto learner = std::dynamic_pointer_cast<Learner>(*made))
      return comparing_learner(std::move(learner), plan, owner, answers, learners.points, near,
                               learners.writes_files);
    return traced(std::move(*made), skip);
  };
}

}  // namespace

RecoveryPoint never_computed() { return {"never", INT64_MAX}; }

void use_resources(ReplaySetup& setup, ResourceFactory make, ReplayDepth depth,
                   std::optional<TenantSlot> only) {
  LearnerChoice learners;
  learners.points = points_of(*setup.plan, only);
  use_resources(setup, std::move(make), depth, std::move(learners));
}

void use_learner_from(ReplaySetup& setup, ResourceFactory make, std::vector<RecoveryPoint> points) {
  use_resources(setup, std::move(make), ReplayDepth::kLearner,
                {.points = std::move(points), .writes_files = false});
}

}  // namespace primerl
