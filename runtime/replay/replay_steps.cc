// The work of a replay's workers: accepting messages, choosing a group, making a step; finding
// messages that were never sent.
#include "runtime/replay/replay_player.h"
#include "runtime/replay/replayed_channel.h"

namespace primerl {

constexpr size_t kSpareBatchs = 16;

void Player::accept(Part& part) {
  if (!part.has_arrivals.load(std::memory_order_acquire)) return;
  {
    const std::lock_guard lock(part.mutex);
    std::swap(part.taken, part.arrivals);
    part.has_arrivals.store(false, std::memory_order_relaxed);
  }
  num_pending_.fetch_sub(part.taken.size());
  for (MessageBatch& batch : part.taken) {
    const Status taken = part.group->accept(std::move(batch), part.cursor->recorded().began);
    CHECK(taken.ok(), "a replayed group refused a batch");
  }
  const std::lock_guard lock(part.mutex);
  for (MessageBatch& batch : part.taken) {
    if (part.spare.size() == kSpareBatchs) break;
    batch.messages.clear();
    batch.grants.clear();
    part.spare.push_back(std::move(batch));
  }
  part.taken.clear();
}

/// Reads a message of a group that is taken from the record, and gives it to the part.
bool Player::bring_input(Part& part) {
  const RecordedStep& next = *part.cursor->next();
  if (next.kind != StepKind::kMessage) return true;
  const WiredLink& link = wiring_->links[next.link.index()];
  if (parts_[link.sender_group.index()] != nullptr) return true;
  const auto unreadable = [&](const Error& why) {
    Divergence divergence;
    divergence.kind = DivergenceKind::kUnreadable;
    divergence.group = part.group->id();
    divergence.step = part.cursor->recorded().step;
    divergence.began = part.cursor->recorded().began;
    divergence.what = fmt::format("its input, message {} of '{}', cannot be read: {}",
                                  next.sequence, setup_.plan->edge(link.edge).name, why.text());
    part.cursor->stop(std::move(divergence));
    return false;
  };
  auto envelope = stored_envelope(*setup_.trace, *setup_.plan, link, part.cursor->recorded());
  if (!envelope.ok()) return unreadable(envelope.error());
  MessageBatch batch;
  batch.from = link.sender_group;
  batch.to = part.group->id();
  batch.incarnation = next.incarnation;
  batch.messages.push_back({next.link, std::move(envelope).value()});
  const Status taken = part.group->accept(std::move(batch), part.cursor->recorded().began);
  if (!taken.ok()) return unreadable(taken.error());
  return true;
}

/// The worker's part with the earliest recorded next step, among those that can make it. A part
/// whose weights are not published yet comes last.
Part* Player::pick(uint32_t worker) {
  Part* best = nullptr;
  Part* early = nullptr;  // its weights are missing
  for (const auto& part : parts_) {
    if (!part || part->worker != worker) continue;
    accept(*part);
    if (part->cursor->next() == nullptr) continue;
    if (best != nullptr && part->cursor->recorded().began >= best->cursor->recorded().began)
      continue;
    if (!part->group->ready() && (!bring_input(*part) || !part->group->ready())) continue;
    const bool is_early = setup_.published != nullptr &&
                          !setup_.published->has(part->group->id(), part->cursor->answers(),
                                                 part->cursor->engine_resumes());
    (is_early ? early : best) = part.get();
  }
  return best != nullptr ? best : early;
}

void Player::step(Part& part) {
  const bool has_stepped = part.group->step(part.cursor->recorded().began);
  CHECK(has_stepped, "a ready group did not step");
  num_steps_.fetch_add(1, std::memory_order_relaxed);
}

bool Player::has_stopped_early() const {
  if (!setup_.options.stop_group) return false;
  const ReplayCursor& cursor = *parts_[setup_.options.stop_group->index()]->cursor;
  return cursor.last_step() >= setup_.options.stop_step;
}

/// Why a group cannot make its next step, or has none although its record continues. None when it
/// has reached its end or waits for a group that diverged.
std::optional<Divergence> Player::why_stuck(const Part& part) const {
  const Plan& plan = *setup_.plan;
  const ReplayCursor& cursor = *part.cursor;
  const GroupId group = cursor.group();
  if (cursor.divergence()) return std::nullopt;
  if (setup_.options.stop_group == group && has_stopped_early()) return std::nullopt;
  Divergence divergence;
  divergence.group = group;
  if (cursor.next() == nullptr) {
    if (cursor.last_step() >= std::min(setup_.trace->last_step(group), last_step_of(group)))
      return std::nullopt;
    divergence.kind = DivergenceKind::kUnreadable;
    divergence.step = cursor.last_step() + 1;
    divergence.began = cursor.recorded().began;
    divergence.what =
        fmt::format("step {} of '{}' is not in the record, which ends at step {}", divergence.step,
                    plan.group(group).name, setup_.trace->last_step(group));
    return divergence;
  }
  const TraceStep& next = cursor.recorded();
  if (next.kind != StepKind::kMessage) return std::nullopt;
  const WiredLink& link = wiring_->links[next.link.index()];
  const Part* sender = parts_[link.sender_group.index()].get();
  if (sender == nullptr || sender->cursor->divergence()) return std::nullopt;
  divergence.step = next.step;
  divergence.began = next.began;
  const std::string message =
      fmt::format("message {} of '{}' from '{}'", next.sequence, plan.edge(link.edge).name,
                  plan.instance(link.sender).name);
  if (sender->cursor->num_emitted(next.link) >= next.sequence) {
    divergence.kind = DivergenceKind::kCourse;
    divergence.what = fmt::format(
        "the record delivers {} here, but not the ones before it: deliveries were swapped or one "
        "is "
        "missing",
        message);
    return divergence;
  }
  divergence.kind = DivergenceKind::kMissing;
  divergence.what = fmt::format("it waits for {}, which was never sent: ", message);
  if (sender->cursor->next() != nullptr)
    divergence.what +=
        fmt::format("'{}' waits itself at step {}", plan.group(link.sender_group).name,
                    sender->cursor->recorded().step);
  else
    divergence.what += fmt::format("the record of '{}' ends with step {}",
                                   plan.group(link.sender_group).name, sender->cursor->last_step());
  return divergence;
}

/// Called when no group can make progress. A group that waits for a stuck group is not reported
/// itself.
void Player::find_missing() {
  std::vector<std::optional<Divergence>> stuck(parts_.size());
  for (size_t i = 0; i < parts_.size(); ++i)
    if (parts_[i]) stuck[i] = why_stuck(*parts_[i]);
  const auto is_victim = [&](size_t i) {
    if (stuck[i]->kind != DivergenceKind::kMissing) return false;
    const TraceStep& next = parts_[i]->cursor->recorded();
    const GroupId sender = wiring_->links[next.link.index()].sender_group;
    return parts_[sender.index()]->cursor->next() != nullptr || stuck[sender.index()].has_value() ||
           has_stopped_early();
  };
  bool has_cause = false;
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (!parts_[i]) continue;
    has_cause = has_cause || parts_[i]->cursor->divergence();
    if (!stuck[i] || is_victim(i)) continue;
    parts_[i]->cursor->stop(std::move(*stuck[i]));
    has_cause = true;
  }
  if (has_cause || has_stopped_early()) return;
  // All wait for each other, which cannot happen with a complete record: report the first.
  std::optional<Divergence>* first = nullptr;
  for (auto& each : stuck)
    if (each && (first == nullptr || each->began < (*first)->began)) first = &each;
  if (first != nullptr) parts_[(*first)->group.index()]->cursor->stop(std::move(**first));
}

}  // namespace primerl
