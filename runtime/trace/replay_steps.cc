// What the workers of a replay do: taking in messages, choosing, stepping; what was never sent.
#include "runtime/trace/replay_player.h"
#include "runtime/wire/msgpack_codec.h"

namespace primerl {

void Player::accept(Part& part) {
  if (!part.has_arrivals.load(std::memory_order_acquire)) return;
  {
    const std::lock_guard lock(part.mutex);
    std::swap(part.taken, part.arrivals);
    part.has_arrivals.store(false, std::memory_order_relaxed);
  }
  num_pending_.fetch_sub(part.taken.size());
  for (Parcel& parcel : part.taken) {
    const Status taken = part.host->accept(std::move(parcel), part.cursor->recorded().began);
    CHECK(taken.ok(), "a replayed host refused a parcel");
  }
  part.taken.clear();
}

/// A message from a host that is taken from the record: reads it and hands it in.
bool Player::bring_input(Part& part) {
  const GuidedStep& next = *part.cursor->next();
  if (next.kind != StepKind::kMessage) return true;
  const Link& link = wiring_->links[next.link.index()];
  if (parts_[link.sender_host.index()] != nullptr) return true;
  const MessageKey key{next.link, next.epoch, next.sequence};
  const auto unreadable = [&](const Error& why) {
    Divergence divergence;
    divergence.kind = DivergenceKind::kUnreadable;
    divergence.host = part.host->id();
    divergence.step = part.cursor->recorded().step;
    divergence.began = part.cursor->recorded().began;
    divergence.what = fmt::format("its input, message {} of '{}', cannot be read: {}",
                                  next.sequence, setup_.plan->edge(link.edge).name, why.text());
    part.cursor->stop(std::move(divergence));
    return false;
  };
  auto stored = setup_.trace->payload(key);
  if (!stored.ok()) return unreadable(stored.error());
  const MessageType* type = stored->type < types_.size() ? types_[stored->type] : nullptr;
  if (type == nullptr) return unreadable(error(Code::kCorrupt, "its type is not known"));
  auto payload = decode_message(*type, stored->body, stored->blobs);
  if (!payload.ok()) return unreadable(payload.error());
  Parcel parcel;
  parcel.from = link.sender_host;
  parcel.to = part.host->id();
  parcel.epoch = next.epoch;
  Envelope envelope;
  envelope.edge = link.edge;
  envelope.sender = link.sender;
  envelope.target = link.target;
  envelope.tenant = stored->tenant;
  envelope.epoch = next.epoch;
  envelope.sequence = next.sequence;
  envelope.cause = stored->cause;
  envelope.origin = stored->origin;
  envelope.sent_at = stored->sent_at;
  envelope.payload = std::move(payload).value();
  envelope.blob_bytes = envelope.payload.type->blob_bytes(envelope.payload.message.get());
  parcel.messages.push_back({next.link, std::move(envelope)});
  const Status taken = part.host->accept(std::move(parcel), part.cursor->recorded().began);
  if (!taken.ok()) return unreadable(taken.error());
  return true;
}

/// The part of a worker whose next step came first in the recorded run, among those that can move.
Part* Player::pick(uint32_t worker) {
  Part* best = nullptr;
  for (const auto& part : parts_) {
    if (!part || part->worker != worker) continue;
    accept(*part);
    if (part->cursor->next() == nullptr) continue;
    if (best != nullptr && part->cursor->recorded().began >= best->cursor->recorded().began)
      continue;
    if (!part->host->ready() && (!bring_input(*part) || !part->host->ready())) continue;
    best = part.get();
  }
  return best;
}

void Player::step(Part& part) {
  ReplayCursor& cursor = *part.cursor;
  Host& host = *part.host;
  const Time began = cursor.recorded().began;
  const bool is_abandoned = (cursor.recorded().flags & kAbandoned) != 0;
  const bool began_step = host.begin_step(began);
  CHECK(began_step, "a ready host did not step");
  if (is_abandoned) {
    if (const Status done = host.abandon_step(began); !done.ok())
      cursor.diverged(done.error().text());
  } else {
    if (cursor.injected())
      host.fail_step(*cursor.injected());
    else
      host.run_step();
    host.complete_step(began);
  }
  num_steps_.fetch_add(1, std::memory_order_relaxed);
}

std::string Player::why_missing(const Part& part, const TraceStep& next) const {
  const Plan& plan = *setup_.plan;
  const Link& link = wiring_->links[next.link.index()];
  const auto& sender = parts_[link.sender_host.index()];
  std::string text =
      fmt::format("'{}' waits at step {} for message {} of '{}', which '{}' never sent",
                  plan.host(part.cursor->host()).name, next.step, next.sequence,
                  plan.edge(link.edge).name, plan.instance(link.sender).name);
  if (sender->cursor->next() != nullptr)
    return text + fmt::format(": it waits itself at step {}", sender->cursor->recorded().step);
  return text + fmt::format(": its record ends with step {}", sender->cursor->num_steps());
}

/// Nothing moves. Hosts that wait for one that diverged, or for one that waits, are victims; what
/// is left waits for messages that a complete record would have had.
void Player::find_missing() {
  for (const auto& part : parts_) {
    if (!part || part->cursor->divergence() || part->cursor->next() == nullptr) continue;
    const TraceStep next = part->cursor->recorded();
    if (next.kind != StepKind::kMessage) continue;
    const Part* sender = parts_[wiring_->links[next.link.index()].sender_host.index()].get();
    if (sender == nullptr || sender->cursor->divergence() || sender->cursor->next() != nullptr)
      continue;
    const bool was_cut = setup_.options.stop_host == sender->cursor->host();
    if (was_cut) continue;
    Divergence divergence;
    divergence.kind = DivergenceKind::kMissing;
    divergence.host = part->cursor->host();
    divergence.step = next.step;
    divergence.began = next.began;
    divergence.what = why_missing(*part, next);
    part->cursor->stop(std::move(divergence));
  }
  // They wait for each other: a record that is whole never does.
  Part* first = nullptr;
  for (const auto& part : parts_) {
    if (!part) continue;
    if (part->cursor->divergence() || setup_.options.stop_host) return;
    if (part->cursor->next() == nullptr) continue;
    if (first == nullptr || part->cursor->recorded().began < first->cursor->recorded().began)
      first = part.get();
  }
  if (first == nullptr) return;
  Divergence divergence;
  divergence.kind = DivergenceKind::kMissing;
  divergence.host = first->cursor->host();
  divergence.step = first->cursor->recorded().step;
  divergence.began = first->cursor->recorded().began;
  divergence.what = why_missing(*first, first->cursor->recorded());
  first->cursor->stop(std::move(divergence));
}

}  // namespace primerl
