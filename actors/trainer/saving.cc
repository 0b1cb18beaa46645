// The checkpoints of a Trainer: the learner copies its state between two steps, and writes it
// beside later ones (docs/design/recovery.md).
#include <algorithm>
#include <cmath>
#include <utility>

#include "actors/common/curriculum.h"
#include "actors/common/task_mix.h"
#include "actors/common/tenant_key.h"
#include "actors/trainer/trainer.h"
#include "graph/base/suggest.h"

namespace primerl {
namespace {

// The learner wakes the trainer when a checkpoint has ended. On a virtual clock only this does.
constexpr Duration kLookAgain = Duration::seconds(1);

}  // namespace

Status Trainer::resume(const ResumePoint& point) {
  RETURN_IF_ERROR(check_mix(tenant(), point.manifest));
  RETURN_IF_ERROR(learner_->load(tenant_, point.folder));
  const Json* consumed = point.manifest.find("consumed");
  if (consumed == nullptr)
    return error(Code::kCorrupt, "manifest of '{}' has no 'consumed'", point.folder.string());
  ASSIGN_OR_RETURN(consumed_, OrdinalSet::from_json(*consumed));
  ASSIGN_OR_RETURN(const int64_t resumes, point.manifest.get_int("resumes"));
  ASSIGN_OR_RETURN(rows_, read_curricula(point.manifest, tenant(), resumes));
  num_resumes_ = resumes + 1;
  version_ = point.version;
  checkpointed_ = point.step;
  if (!tenant().is_client) return ok();
  const Json* client = point.manifest.find("client");
  if (client == nullptr)
    return error(Code::kCorrupt, "manifest of '{}' has no 'client'", point.folder.string());
  return client_.read(*client, services().incarnation());
}

Status Trainer::checkpoint() {
  saves_at_end_ = false;
  const int64_t step = version_.value;
  RunFiles& files = services().files();
  ASSIGN_OR_RETURN(const auto folder, files.begin_checkpoint(tenant_, step));
  LearnerSave save{tenant_, folder, services().now(), nullptr, options_.save_max};
  save.commit = [&files, tenant = tenant_, step, state = checkpoint_state(tenant())] {
    return files.commit_checkpoint(tenant, step, state);
  };
  RETURN_IF_ERROR(learner_->begin_save(std::move(save)));
  client_.begin_checkpoint();
  save_ = OpenSave{step, false};
  look_for_save();
  if (save_) set_save_timer(kLookAgain);
  return ok();
}

void Trainer::look_for_save() {
  if (!save_ && !client_.folder) return;
  const auto ended = learner_->end_of_save(tenant_, services().now());
  if (!ended) return;
  if (client_.folder) return end_folder(*ended);
  const int64_t step = std::exchange(save_, std::nullopt)->step;
  set_save_timer({});
  if (!ended->ok()) {
    Error fault = Error(ended->error()).while_doing(fmt::format("checkpoint of step {}", step));
    if (fault.code() == Code::kDeadline)
      (void)std::move(fault).note("save_max of the trainer node is the limit");
    return give_up(std::move(fault));
  }
  checkpointed_ = step;
  // What cannot be removed stays on the disk, and changes nothing.
  for (const std::string& path : client_.end_checkpoint())
    (void)services().files().remove_client_folder(tenant_, path);
}

/// A command of the process. It is ignored if it has become superfluous or a checkpoint is open;
/// the process then asks again.
Status Trainer::on_checkpoint_request(const CheckpointRequest& request) {
  publish_step_metrics();
  look_for_save();
  if (tenant().is_client) {
    if (version_.value >= request.step) client_.asked_step = request.step;
    return ok();  // the work call that follows begins it, once no gradients are open
  }
  if (fault_ || is_done_ || save_ || version_.value < request.step || checkpointed_ >= request.step)
    return ok();
  services().count("checkpoints_requested", 1);
  if (const Status begun = checkpoint(); !begun.ok()) give_up(begun.error());
  return ok();
}

/// The same timer shows that a client is awaited (wait_for_client()). So that is set again.
void Trainer::set_save_timer(std::optional<Duration> delay) {
  client_.is_awaited = false;
  if (delay)
    services().set_timer("save", *delay);
  else
    services().cancel_timer("save");
}

/// The work call that follows looks for the end.
Status Trainer::on_save_timer() {
  client_.is_awaited = false;
  if ((save_ || client_.folder) && !fault_) set_save_timer(kLookAgain);
  return ok();
}

/// The next checkpoint is due, or the run ends, and the last one is still being written.
bool Trainer::wait_for_save() {
  const bool is_next_due = save_->step != version_.value;
  if (is_next_due && !std::exchange(save_->is_awaited, true))
    services().count("checkpoints_waited", 1);
  leave_queue();
  return false;
}

/// A step without the metric has no score. The first one shows which metrics there are.
void Trainer::keep_score(const MetricValues& values) {
  score_.reset();
  if (tenant().keep_best == 0) return;
  std::string_view name = tenant().best_by;
  const bool is_smallest = name.starts_with('-');
  if (is_smallest) name.remove_prefix(1);
  for (const auto& [metric, value] : values)
    if (metric == name && std::isfinite(value)) score_ = is_smallest ? -value : value;
  if (version_ != held_out_.start().next()) return;
  std::vector<std::string> known = metrics_of_some_steps(tenant());
  for (const auto& [metric, value] : values) known.push_back(metric);
  if (std::ranges::find(known, name) != known.end()) return;
  std::ranges::sort(known);
  known.erase(std::unique(known.begin(), known.end()), known.end());
  Error unknown = error(Code::kInvalid, "best_by of tenant '{}' names no metric of its steps: '{}'",
                        tenant().name, name);
  const std::string nearest = nearest_name(name, known);
  give_up(std::move(unknown).note(nearest.empty() ? "they are: " + join_names(known)
                                                  : fmt::format("did you mean '{}'?", nearest)));
}

Json Trainer::checkpoint_state(const Tenant& tenant) const {
  Json state = Json::object()
                   .set("tenant", tenant.name)
                   .set("step", version_.value)
                   .set("version", version_.value)
                   .set("resumes", num_resumes_)
                   .set("consumed", consumed_.to_json());
  if (!tenant.mix.empty()) state.set(kMixOfCheckpoint, mix_json(tenant));
  if (score_) state.set("score", *score_);
  if (!rows_.empty()) state.set(kCurricula, curricula_json(rows_, tenant));
  if (tenant.is_client) state.set("client", client_.json());
  return state;
}

Status Trainer::on_tenant(TenantSlot slot, TenantChange::Kind kind) {
  if (kind != TenantChange::Kind::kLeave) return ok();
  const WeightsKey moving = weights_key(services(), slot);
  for (const SnapshotOfClient& each : client_.snapshots)
    weights_->drop(snapshot_key(moving, each.number));
  weights_->drop(moving);
  return ok();
}

Status Trainer::drain() {
  publish_step_metrics();
  look_for_save();
  is_done_ = true;
  leave_queue();
  end_client();
  end_all(take_groups_here(), RolloutEnd::kCancelled, "the run ends");
  update_flow();
  if (fault_ || !is_published_ || checkpointed_ == version_.value) return ok();
  if (client_.folder) {
    saves_at_end_ = true;
    return ok();
  }
  if (!save_) return checkpoint();
  saves_at_end_ = save_->step != version_.value;
  return ok();
}

}  // namespace primerl
