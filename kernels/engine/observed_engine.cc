#include "kernels/engine/observed_engine.h"

namespace primerl {

Status ObservedEngine::submit(SequenceRequest request) {
  if (observers_.empty()) return EngineWrapper::submit(std::move(request));
  Status submitted = EngineWrapper::submit(request);
  for (const auto& observer : observers_) observer->submitted(request, submitted);
  return submitted;
}

Status ObservedEngine::take_over(SequenceId id) {
  Status taken = EngineWrapper::take_over(id);
  for (const auto& observer : observers_) observer->taken_over(id, taken);
  return taken;
}

void ObservedEngine::abort(SequenceId id) {
  EngineWrapper::abort(id);
  for (const auto& observer : observers_) observer->aborted(id);
}

void ObservedEngine::expire(SequenceId id) {
  EngineWrapper::expire(id);
  for (const auto& observer : observers_) observer->expired(id);
}

std::vector<PrefillEvent> ObservedEngine::take_prefilled() {
  auto events = EngineWrapper::take_prefilled();
  for (const auto& observer : observers_) observer->prefilled(events);
  return events;
}

std::vector<FinishEvent> ObservedEngine::take_finished() {
  auto events = EngineWrapper::take_finished();
  for (const auto& observer : observers_) observer->finished(events);
  return events;
}

Result<uint64_t> ObservedEngine::apply(const WeightSnapshot& snapshot) {
  for (const auto& observer : observers_) observer->applying();
  auto applied = EngineWrapper::apply(snapshot);
  const auto reported = applied.ok() ? Result<std::optional<uint64_t>>(*applied)
                                     : Result<std::optional<uint64_t>>(applied.error());
  for (const auto& observer : observers_) observer->applied(snapshot, reported);
  return applied;
}

Result<std::optional<uint64_t>> ObservedEngine::apply_prepared(
    const std::shared_ptr<const WeightSnapshot>& snapshot) {
  for (const auto& observer : observers_) observer->applying();
  auto applied = EngineWrapper::apply_prepared(snapshot);
  for (const auto& observer : observers_) observer->applied(*snapshot, applied);
  return applied;
}

void ObservedEngine::drop(WeightsKey key) {
  EngineWrapper::drop(key);
  for (const auto& observer : observers_) observer->dropped(key);
}

void ObservedEngine::set_paused(bool is_paused) {
  if (pauses_ == Pauses::kHere)
    is_paused_ = is_paused;
  else
    EngineWrapper::set_paused(is_paused);
  for (const auto& observer : observers_) observer->paused(is_paused);
}

void ObservedEngine::show_holders(const std::vector<EngineHolder>& holders) {
  EngineWrapper::show_holders(holders);
  for (const auto& observer : observers_) observer->holders_shown(holders);
}

EngineState ObservedEngine::state() const {
  EngineState state = EngineWrapper::state();
  for (const auto& observer : observers_) observer->state_read(state);
  return state;
}

int32_t ObservedEngine::max_sequence_tokens() const {
  const int32_t longest = EngineWrapper::max_sequence_tokens();
  for (const auto& observer : observers_) observer->length_read(longest);
  return longest;
}

Status ObservedEngine::step() {
  Status stepped = is_paused_ ? ok() : EngineWrapper::step();
  for (const auto& observer : observers_) observer->stepped(engine(), stepped);
  return stepped;
}

Blob ObservedEngine::save_state() const {
  for (const auto& observer : observers_)
    if (Blob state = observer->save_state(); !state.empty()) return state;
  return EngineWrapper::save_state();
}

/// The engine continues with the sequences that the observer saved.
Status ObservedEngine::restore_state(const Blob& state) {
  for (const auto& observer : observers_) RETURN_IF_ERROR(observer->restore_state(state));
  return EngineWrapper::restore_state(state);
}

ObservedEngine* observed_engine(std::shared_ptr<Resource>& made) {
  if (auto* observed = dynamic_cast<ObservedEngine*>(made.get())) return observed;
  auto engine = std::dynamic_pointer_cast<Engine>(made);
  if (engine == nullptr) return nullptr;
  auto observed =
      std::make_shared<ObservedEngine>(std::move(engine), ObservedEngine::Pauses::kInside);
  made = observed;
  return observed.get();
}

}  // namespace primerl
