#include "runtime/replay/recovery.h"

#include <algorithm>

#include "runtime/replay/replay_cursor.h"
#include "runtime/replay/traced_calls.h"
#include "runtime/trace/read/stored_message.h"

namespace primerl {

Recovery::Recovery(std::shared_ptr<const Plan> plan, RecordPrefix prefix,
                   DeliveryObserver* recorder, ProcessId process, RunCuts cuts)
    : plan_(std::move(plan)),
      prefix_(std::move(prefix)),
      wiring_(make_wiring(*plan_)),
      recorder_(recorder),
      process_(process),
      cuts_(std::move(cuts)),
      engine_resumes_(plan_->groups.size()) {
  const Trace& trace = *prefix_.trace;
  incarnation_ = prefix_.incarnation;
  for (const auto& absent : prefix_.absent) absent_.push_back(absent.process);
  // Groups of this process send their messages to each other again.
  if (!process_.is_none() && plan_->processes.size() > 1)
    inputs_ = std::make_unique<const RecordedInputs>(
        *plan_, *wiring_, trace, incarnation_, prefix_.is_absent, true,
        [this](GroupId group) { return cuts_.state_of(group); });
  for (uint32_t i = 0; i < plan_->groups.size(); ++i)
    cursors_.push_back(is_here(GroupId(i)) ? std::make_unique<ReplayCursor>(
                                                 *plan_, *wiring_, trace, GroupId(i), UINT64_MAX,
                                                 nullptr, inputs_.get(), cuts_.state_of(GroupId(i)))
                                           : nullptr);
}

Recovery::~Recovery() = default;

bool Recovery::is_here(GroupId group) const {
  return process_.is_none() || plan_->group(group).process == process_;
}

StepSource& Recovery::step_source(GroupId group) { return *cursors_[group.index()]; }

Time Recovery::started(GroupId group) const {
  const GroupState* state = cuts_.state_of(group);
  return state != nullptr ? state->at : trace().started(group).value_or(Time());
}

void Recovery::resume() { is_live_.store(true, std::memory_order_release); }

Error Recovery::text_of(const Divergence& divergence) const {
  Error fault = error(Code::kCorrupt, "the recorded run cannot be followed: {}:{}: {}: {}",
                      plan_->group(divergence.group).name, divergence.step,
                      to_string(divergence.kind), divergence.what);
  for (const auto& detail : divergence.details) fault = Error(std::move(fault)).note(detail);
  return fault;
}

std::optional<Error> Recovery::fault(GroupId group) const {
  const auto& divergence = cursors_[group.index()]->divergence();
  if (!divergence) return std::nullopt;
  return text_of(*divergence);
}

Error Recovery::stuck() const {
  for (const auto& cursor : cursors_)
    if (cursor != nullptr && cursor->divergence()) return text_of(*cursor->divergence());
  const ReplayCursor* first = nullptr;
  for (uint32_t i = 0; i < cursors_.size(); ++i) {
    const ReplayCursor* cursor = cursors_[i].get();
    if (cursor == nullptr || cursor->next() == nullptr) continue;
    if (first == nullptr || cursor->recorded().began < first->recorded().began) first = cursor;
  }
  if (first == nullptr) return error(Code::kCorrupt, "all here have followed the recorded run");
  const TraceStep& step = first->recorded();
  const auto& link = wiring_->links[step.link.index()];
  return error(Code::kCorrupt,
               "the recorded run cannot be followed: '{}' waits at step {} for message {} of '{}', "
               "which '{}' has not sent",
               plan_->group(step.group).name, step.step, step.sequence, plan_->edge(link.edge).name,
               plan_->instance(link.sender).name);
}

void Recovery::on_start(GroupId group, Time now) {
  if (recorder_ != nullptr) recorder_->on_start(group, now);
}

void Recovery::engine_resumed(GroupId group, const EngineResume& resume) {
  const Blob note = written_state(resume);
  engine_resumes_[group.index()].emplace_back(note.bytes().begin(), note.bytes().end());
}

void Recovery::on_step(const StepRecord& record) {
  ReplayCursor& cursor = *cursors_[record.group.index()];
  // A start before this one was resumed in this step.
  for (const EngineResume& resume : cursor.engine_resumes()) engine_resumed(record.group, resume);
  if (cursor.next() != nullptr || cursor.divergence()) cursor.on_step(record);
  auto& engine_resumes = engine_resumes_[record.group.index()];
  StepRecord recorded = record;
  recorded.engine_resumes = engine_resumes;
  if (recorder_ != nullptr) recorder_->on_step(recorded);
  engine_resumes.clear();
}

bool Recovery::wants_emissions(LinkId link) const {
  return !is_live() || (recorder_ != nullptr && recorder_->wants_emissions(link));
}

const std::vector<std::byte>* Recovery::take(GroupId group) {
  return is_live() ? nullptr : cursors_[group.index()]->take_answer();
}

void Recovery::diverged(GroupId group, std::string what) {
  cursors_[group.index()]->diverged(std::move(what));
}

uint64_t Recovery::num_steps() const {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < plan_->groups.size(); ++i)
    if (is_here(GroupId(i)))
      sum += trace().last_step(GroupId(i)) + 1 -
             std::min(cuts_.first_step(GroupId(i)), trace().last_step(GroupId(i)) + 1);
  return sum;
}

uint64_t Recovery::num_messages_compared() const {
  uint64_t sum = 0;
  for (const auto& cursor : cursors_)
    if (cursor != nullptr) sum += cursor->num_compared();
  return sum;
}

}  // namespace primerl
