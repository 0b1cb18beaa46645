#include "runtime/replay/replay_cursor.h"

#include <algorithm>
#include <cstring>

#include "runtime/replay/traced_calls.h"
#include "runtime/trace/command_note.h"
#include "runtime/trace/read/json_differences.h"
#include "runtime/trace/read/stored_message.h"
#include "runtime/trace/read/tenant_uses.h"
#include "runtime/trace/tenant_note.h"
#include "runtime/wire/msgpack_codec.h"
#include "runtime/wire/payload_check.h"

namespace primerl {
namespace {

constexpr size_t kDifferencesShown = 8;

Result<Json> json_of(const TraceCatalog::Type& type, const Payload& payload) {
  ASSIGN_OR_RETURN(EncodedMessage encoded, encode_message(payload));
  StoredPayload stored;
  stored.body = std::move(encoded.body);
  stored.blobs = std::move(encoded.blobs);
  return payload_json(type, stored);
}

}  // namespace

ReplayCursor::ReplayCursor(const Plan& plan, const Wiring& wiring, const Trace& trace,
                           GroupId group, uint64_t last_step, DeliveryObserver* watcher,
                           const RecordedInputs* inputs, const GroupState* from)
    : plan_(plan),
      wiring_(wiring),
      trace_(trace),
      group_(group),
      first_step_(from == nullptr ? 1 : from->num_steps + 1),
      last_step_(last_step),
      watcher_(watcher),
      inputs_(inputs),
      emitted_(wiring.links.size(), 0) {
  if (from != nullptr)
    for (uint32_t i = 0; i < from->out_links.size(); ++i)
      emitted_[wiring.groups[group.index()].out[i].index()] = from->out_links[i].num_emitted;
  load(first_step_);
}

void ReplayCursor::load(uint64_t step) {
  has_next_ = false;
  replayed_.injected.reset();
  replayed_.stored.reset();
  answers_.clear();
  num_answers_taken_ = 0;
  engine_resumes_.clear();
  if (step > last_step_ || divergence_) return;
  const auto found = trace_.step(group_, step);
  if (!found) return;
  recorded_ = *found;
  replayed_.kind = recorded_.kind;
  replayed_.actor = 0;
  replayed_.command = {};
  replayed_.tenant_change.reset();
  replayed_.room_answers.clear();
  replayed_.stopped_at_progress = 0;
  const auto& instances = plan_.group(group_).instances;
  if (!recorded_.instance.is_none())
    replayed_.actor = static_cast<uint32_t>(
        std::find(instances.begin(), instances.end(), recorded_.instance) - instances.begin());
  if (replayed_.actor >= instances.size()) {
    divergence_ =
        here(DivergenceKind::kUnreadable, "the record names an instance of another group");
    return;
  }
  replayed_.began = recorded_.began;
  replayed_.lasted = recorded_.duration;
  replayed_.is_abandoned = (recorded_.flags & kAbandoned) != 0;
  replayed_.link = recorded_.link;
  replayed_.incarnation = recorded_.incarnation;
  replayed_.sequence = recorded_.sequence;
  replayed_.timer = recorded_.subject;
  if (recorded_.kind == StepKind::kPeer)
    replayed_.peer = {static_cast<PeerEvent::Kind>(recorded_.sequence),
                      InstanceId(recorded_.subject), recorded_.incarnation};
  has_next_ = true;
  if (recorded_.kind == StepKind::kMessage && inputs_ != nullptr &&
      inputs_->has({recorded_.link, recorded_.incarnation, recorded_.sequence}))
    load_input();
  if ((recorded_.flags & kHasNotes) != 0) load_notes();
  if (recorded_.kind == StepKind::kTenant && !replayed_.tenant_change && !divergence_)
    stop(here(DivergenceKind::kUnreadable, "the tenant event that it was given has no note"));
  if (recorded_.kind == StepKind::kCommand && replayed_.command.type == nullptr)
    stop(here(DivergenceKind::kUnreadable, "the command that it was given cannot be read"));
}

void ReplayCursor::load_notes() {
  trace_.visit_notes(group_, recorded_.step,
                     [this](NoteKind kind, InstanceId, std::span<const std::byte> bytes) {
                       load_note(kind, bytes);
                     });
}

void ReplayCursor::load_input() {
  auto envelope = inputs_->of(recorded_);
  if (envelope.ok()) {
    replayed_.stored = std::move(envelope).value();
    return;
  }
  stop(here(DivergenceKind::kUnreadable, "its input cannot be read: " + envelope.error().text()));
}

EmissionFate ReplayCursor::emission_fate(LinkId link, uint64_t sequence,
                                         uint64_t num_shipped) const {
  return inputs_ == nullptr ? EmissionFate::kSend
                            : inputs_->emission_fate(link, sequence, num_shipped);
}

std::optional<uint64_t> ReplayCursor::num_received(LinkId link, uint64_t sequence) const {
  return inputs_ == nullptr ? std::nullopt : inputs_->num_received(link, sequence);
}

bool ReplayCursor::has_input(LinkId link, uint32_t incarnation, uint64_t sequence) const {
  return inputs_ != nullptr && inputs_->has({link, incarnation, sequence});
}

void ReplayCursor::load_note(NoteKind kind, std::span<const std::byte> bytes) {
  if (kind == NoteKind::kRoom) {
    replayed_.room_answers.resize(bytes.size() / sizeof(int64_t));
    if (!replayed_.room_answers.empty())
      std::memcpy(replayed_.room_answers.data(), bytes.data(),
                  replayed_.room_answers.size() * sizeof(int64_t));
  } else if (kind == NoteKind::kStop && bytes.size() == sizeof(uint64_t)) {
    std::memcpy(&replayed_.stopped_at_progress, bytes.data(), sizeof(uint64_t));
  } else if (kind == NoteKind::kError && !bytes.empty()) {
    if ((recorded_.flags & kInjected) == 0) return;
    const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    replayed_.injected = Error(static_cast<Code>(text[0]), text.substr(1));
  } else if (kind == NoteKind::kCommand && recorded_.kind == StepKind::kCommand) {
    load_command(bytes);
  } else if (kind == NoteKind::kTenant && recorded_.kind == StepKind::kTenant) {
    load_tenant_change(bytes);
  } else if (kind == NoteKind::kResource) {
    answers_.emplace_back(bytes.begin(), bytes.end());
  } else if (kind == NoteKind::kEngineResume) {
    load_engine_resume(bytes);
  }
}

void ReplayCursor::load_engine_resume(std::span<const std::byte> bytes) {
  auto resume = read_state<EngineResume>(bytes);
  if (resume.ok()) return engine_resumes_.push_back(*std::move(resume));
  stop(here(
      DivergenceKind::kUnreadable,
      "the note of an engine that was made anew here cannot be read: " + resume.error().text()));
}

std::optional<EngineResume> ReplayCursor::next_engine_resume(int32_t resource) {
  const auto found = std::ranges::find(engine_resumes_, resource, &EngineResume::resource);
  if (found == engine_resumes_.end()) return std::nullopt;
  EngineResume resume = std::move(*found);
  engine_resumes_.erase(found);
  return resume;
}

/// Loads nothing if the actor has no such input any more; then load() reports it.
void ReplayCursor::load_command(std::span<const std::byte> bytes) {
  const auto note = read_command_note(bytes);
  const auto& inputs = plan_.contract_of(recorded_.instance).inputs;
  if (!note.ok() || recorded_.subject >= inputs.size()) return;
  const MessageType& type = *inputs[recorded_.subject].type;
  if (note->type != type.name || note->schema != type.schema) return;
  auto command = decode_message(type, note->body);
  if (!command.ok()) return;
  replayed_.input = recorded_.subject;
  replayed_.command = std::move(command).value();
}

void ReplayCursor::load_tenant_change(std::span<const std::byte> bytes) {
  auto change = read_tenant_note(bytes);
  if (change.ok() && tenant_check(*change).value != recorded_.payload_check)
    change = error(Code::kCorrupt, "its note is of another event");
  if (!change.ok())
    return stop(
        here(DivergenceKind::kUnreadable,
             "the tenant event that it was given cannot be read: " + change.error().text()));
  replayed_.tenant_change = std::move(change).value();
}

const std::vector<std::byte>* ReplayCursor::take_answer() {
  if (num_answers_taken_ == answers_.size()) return nullptr;
  return &answers_[num_answers_taken_++];
}

Divergence ReplayCursor::here(DivergenceKind kind, std::string what) const {
  Divergence divergence;
  divergence.kind = kind;
  divergence.group = group_;
  divergence.step = recorded_.step;
  divergence.began = recorded_.began;
  divergence.what = std::move(what);
  divergence.details.push_back(input_text());
  return divergence;
}

std::string ReplayCursor::input_text() const {
  switch (recorded_.kind) {
    case StepKind::kMessage:
      return fmt::format("input: message {} of '{}' from '{}'", recorded_.sequence,
                         plan_.edge(wiring_.links[recorded_.link.index()].edge).name,
                         plan_.instance(wiring_.links[recorded_.link.index()].sender).name);
    case StepKind::kTimer:
      return fmt::format("input: a timer of '{}'", plan_.instance(recorded_.instance).name);
    case StepKind::kWork:
      return "input: a work call";
    case StepKind::kDrain:
      return "input: the drain";
    case StepKind::kPeer:
      return "input: the process of a connected actor died or was restarted";
    case StepKind::kCommand:
      return fmt::format("input: a command to '{}'", plan_.instance(recorded_.instance).name);
    case StepKind::kTenant:
      return fmt::format("input: tenant event '{}' of '{}' in slot {}",
                         to_string(static_cast<TenantChange::Kind>(recorded_.subject)),
                         trace_.tenants().label(group_, recorded_.step, recorded_.tenant),
                         recorded_.tenant);
  }
  return {};
}

void ReplayCursor::stop(Divergence divergence) {
  if (divergence_) return;
  divergence_ = std::move(divergence);
  has_next_ = false;
}

void ReplayCursor::diverged(std::string what) {
  if (divergence_) return;
  divergence_ = here(DivergenceKind::kCourse, std::move(what));
}

uint64_t ReplayCursor::num_emitted(LinkId link) const { return emitted_[link.index()]; }

void ReplayCursor::on_step(const StepRecord& record) {
  if (watcher_ != nullptr) watcher_->on_step(record);
  if (!divergence_ && compare(record)) {
    num_steps_ += 1;
    for (const BatchedMessage& emission : record.emissions)
      emitted_[emission.link.index()] = emission.envelope.sequence;
  }
  load(record.step + 1);
}

bool ReplayCursor::compare(const StepRecord& record) {
  const bool has_failed = record.error != nullptr;
  if (has_failed != recorded_.is_failed()) {
    divergence_ = here(DivergenceKind::kOutcome,
                       has_failed ? fmt::format("the handler failed: {}", record.error->text())
                                  : "the handler succeeded, in the recorded run it failed");
    return false;
  }
  for (const BatchedMessage& emission : record.emissions)
    if (!compare_emission(emission)) return false;
  const uint32_t now = std::min<uint32_t>(record.num_emissions, UINT16_MAX);
  if (now != recorded_.num_emissions) {
    divergence_ =
        here(DivergenceKind::kCount, fmt::format("{} messages were emitted, in the recorded run {}",
                                                 now, recorded_.num_emissions));
    for (const BatchedMessage& emission : record.emissions)
      divergence_->details.push_back(fmt::format("now emitted: message {} of '{}'",
                                                 emission.envelope.sequence,
                                                 plan_.edge(emission.envelope.edge).name));
    return false;
  }
  return true;
}

bool ReplayCursor::compare_emission(const BatchedMessage& emission) {
  const Envelope& envelope = emission.envelope;
  // Every incarnation of an absent process has a message with this number.
  if (inputs_ != nullptr && inputs_->is_absent(wiring_.links[emission.link.index()].target_group))
    return true;
  const MessageKey key{emission.link, envelope.incarnation, envelope.sequence};
  const auto then = trace_.delivered_step(key);
  // It was not handled before the run ended, or it was overwritten, or its edge has record =
  // "none".
  if (!then || (then->flags & kNotChecked) != 0) return true;
  num_compared_ += 1;
  const auto differs = [&](const std::string& how) {
    divergence_ =
        here(DivergenceKind::kEmission, fmt::format("message {} of '{}' {}", envelope.sequence,
                                                    plan_.edge(envelope.edge).name, how));
    return false;
  };
  if (then->tenant != envelope.tenant) return differs("is for another tenant");
  if (then->origin != envelope.origin) return differs("has another origin");
  if (then->cause != envelope.cause)
    return differs(fmt::format("answers step {} of another delivery than recorded ({})",
                               envelope.cause.step, then->cause.step));
  if (then->payload_check == payload_check(envelope.payload)) return true;
  differs("has another content");
  const auto& type = trace_.catalog().types[then->type];
  const auto now = json_of(type, envelope.payload);
  if (const auto stored = trace_.payload(key); stored.ok() && now.ok()) {
    if (const auto json = payload_json(type, *stored); json.ok())
      for (const auto& [path, recorded, again] : json_differences(*json, *now, kDifferencesShown))
        divergence_->details.push_back(
            fmt::format("{}: recorded {}, now {}", path, recorded, again));
  } else if (now.ok()) {
    divergence_->details.push_back(
        fmt::format("now: {} (the recorded content is not stored; record = \"payload\" keeps it)",
                    now->dump()));
  }
  return false;
}

}  // namespace primerl
