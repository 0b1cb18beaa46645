#include "runtime/query/diff.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "graph/base/counted.h"
#include "runtime/query/diff_parts.h"

namespace primerl {
namespace {

/// The step of the sender's group that emitted a message, according to the record. Exact when the
/// message was stored; otherwise the delivery that it answers, or the step that emitted it. 0:
/// unknown.
uint64_t emitting_step(const Trace& trace, const TraceStep& step) {
  const TraceCatalog& catalog = trace.catalog();
  if (const auto payload = trace.payload(key_of(step)); payload.ok()) return payload->step;
  const uint32_t sender_group = catalog.instances[catalog.links[step.link.index()].sender].group;
  if (step.cause.is_none() || step.cause.instance.is_none()) return 0;
  return catalog.instances[step.cause.instance.index()].group == sender_group ? step.cause.step : 0;
}

struct Event {
  GroupDifference difference;
  bool is_derived = false;  // visible only in the inputs of receivers
};

class Causes {
 public:
  Causes(const Pair& pair, std::vector<GroupDifference> found) : pair_(pair) {
    for (auto& difference : found) {
      const uint32_t group = difference.group.value;
      events_[group] = {std::move(difference), false};
    }
  }

  std::vector<GroupDifference> judge() {
    // A group that has no difference of its own but sent something different gets a derived
    // difference at that step.
    for (size_t turn = 0; turn <= pair_.a.catalog().groups.size(); ++turn)
      if (!add_derived()) break;
    std::vector<GroupDifference> judged;
    for (auto& [group, event] : events_) {
      GroupDifference difference = event.difference;
      difference.victim_of = cause_of_difference(difference);
      difference.is_cause = difference.victim_of.empty();
      judged.push_back(std::move(difference));
    }
    std::ranges::stable_sort(judged, [](const GroupDifference& a, const GroupDifference& b) {
      return std::tuple(!a.is_cause, a.began, a.group) < std::tuple(!b.is_cause, b.began, b.group);
    });
    return judged;
  }

 private:
  /// The messages of a difference in inputs.
  std::vector<TraceStep> messages_of(const GroupDifference& difference) const {
    std::vector<TraceStep> messages;
    const auto a = pair_.a.step(difference.group, difference.step);
    const auto b =
        pair_.b.step(GroupId(pair_.numbers.groups[difference.group.index()]), difference.step);
    if (a && a->kind == StepKind::kMessage) messages.push_back(*a);
    if (b && b->kind == StepKind::kMessage)
      if (const TraceStep in_a = pair_.in_a(*b); !in_a.link.is_none()) messages.push_back(in_a);
    return messages;
  }
  static bool is_of_inputs(const GroupDifference& difference) {
    return difference.kind == DifferenceKind::kContent ||
           difference.kind == DifferenceKind::kOrder ||
           difference.kind == DifferenceKind::kSchema || difference.kind == DifferenceKind::kCount;
  }
  GroupId sender_of(const TraceStep& message) const {
    const TraceCatalog& catalog = pair_.a.catalog();
    return GroupId(catalog.instances[catalog.links[message.link.index()].sender].group);
  }

  bool add_derived() {
    std::vector<GroupDifference> derived;
    for (const auto& [group, event] : events_) {
      const GroupDifference& difference = event.difference;
      if (difference.kind != DifferenceKind::kContent || event.is_derived) continue;
      for (const TraceStep& message : messages_of(difference)) {
        const GroupId sender = sender_of(message);
        const uint64_t step = emitting_step(pair_.a, message);
        const auto known = events_.find(sender.value);
        if (step == 0 || (known != events_.end() && known->second.difference.step <= step)) break;
        const auto emitted = pair_.a.step(sender, step);
        GroupDifference own;
        own.kind = DifferenceKind::kOutput;
        own.group = sender;
        own.step = step;
        if (emitted) own.began = emitted->began;
        own.what = fmt::format("it emitted {} with another content",
                               message_text(pair_.a.catalog(), key_of(message)));
        own.details = difference.details;
        derived.push_back(std::move(own));
        break;
      }
    }
    for (auto& difference : derived) {
      const uint32_t group = difference.group.value;
      events_[group] = {std::move(difference), true};
    }
    return !derived.empty();
  }

  /// The earlier difference that caused this one; "" without one.
  std::string cause_of_difference(const GroupDifference& difference) const {
    if (!is_of_inputs(difference)) return "";
    for (const TraceStep& message : messages_of(difference)) {
      const GroupId sender = sender_of(message);
      const auto known = events_.find(sender.value);
      if (known == events_.end() || sender == difference.group) continue;
      const GroupDifference& other = known->second.difference;
      const uint64_t step = emitting_step(pair_.a, message);
      const bool is_earlier = step != 0 ? other.step <= step : other.began <= difference.began;
      if (is_earlier) return step_text(pair_.a.catalog(), other.group, other.step);
    }
    if (difference.kind != DifferenceKind::kCount && difference.kind != DifferenceKind::kOrder)
      return "";
    // Only a group that differs can have sent, or not sent, the message in question.
    const GroupDifference* first = nullptr;
    for (const auto& [group, event] : events_)
      if (event.difference.began < difference.began && event.difference.group != difference.group &&
          sends_to(event.difference.group, difference) &&
          (first == nullptr || event.difference.began < first->began))
        first = &event.difference;
    return first == nullptr ? "" : step_text(pair_.a.catalog(), first->group, first->step);
  }
  bool sends_to(GroupId from, const GroupDifference& difference) const {
    const TraceCatalog& catalog = pair_.a.catalog();
    return std::ranges::any_of(catalog.links, [&](const auto& link) {
      return catalog.instances[link.sender].group == from.value &&
             catalog.instances[link.target].group == difference.group.value;
    });
  }

  const Pair& pair_;
  std::map<uint32_t, Event> events_;  // by group
};

/// One line for records that a trace lacks.
std::string missing_line(const Trace& a, const MissingRecords& missing) {
  const std::string& group = a.catalog().groups[missing.group.index()].name;
  const char* trace = missing.in_a ? "a" : "b";
  if (missing.kind == TraceFault::Kind::kCutTail)
    return fmt::format("{} is cut after step {} of '{}': steps {} to {} are in {} alone", trace,
                       missing.first - 1, group, missing.first, missing.last,
                       missing.in_a ? "b" : "a");
  const std::string why =
      missing.text.empty() ? std::string(to_string(missing.kind)) : missing.text;
  return missing.first == missing.last
             ? fmt::format("step {} of '{}' is not in {} ({})", missing.first, group, trace, why)
             : fmt::format("steps {} to {} of '{}' are not in {} ({})", missing.first, missing.last,
                           group, trace, why);
}

}  // namespace

std::string_view to_string(DifferenceKind kind) {
  switch (kind) {
    case DifferenceKind::kContent:
      return "content";
    case DifferenceKind::kOrder:
      return "order";
    case DifferenceKind::kOutput:
      return "output";
    case DifferenceKind::kOutcome:
      return "outcome";
    case DifferenceKind::kSchema:
      return "schema";
    case DifferenceKind::kCount:
      return "count";
  }
  return "unknown";
}

void find_causes(const Pair& pair, TraceDiff& diff) {
  diff.differences = Causes(pair, std::move(diff.differences)).judge();
}

TraceDiff diff_traces(const Trace& a, const Trace& b) {
  TraceDiff diff;
  compare_tables(a.catalog(), b.catalog(), diff);
  const Pair pair{a, b, Numbers(a.catalog(), b.catalog())};
  if (!pair.numbers.has_same_policies)
    diff.notes.emplace_back(
        "edges are recorded otherwise (record = ...): stored content was not compared where only "
        "one has it");
  for (uint32_t h = 0; h < a.catalog().groups.size(); ++h) {
    if (pair.numbers.groups[h] == UINT32_MAX) continue;
    if (auto found = first_difference(pair, GroupId(h), diff))
      diff.differences.push_back(std::move(*found));
  }
  find_causes(pair, diff);
  return diff;
}

std::string to_text(const Trace& a, const TraceDiff& diff) {
  const TraceCatalog& catalog = a.catalog();
  std::string text;
  const auto list = [&](std::string_view title, const std::vector<std::string>& lines) {
    if (lines.empty()) return;
    text += fmt::format("{}\n", title);
    for (const auto& line : lines) text += fmt::format("  {}\n", line);
  };
  list("options differ:", diff.options);
  list("message types differ:", diff.schemas);
  list("graphs differ:", diff.tables);
  if (!diff.missing.empty()) text += "records are missing, which is no divergence:\n";
  for (const auto& missing : diff.missing) text += fmt::format("  {}\n", missing_line(a, missing));
  bool is_first = true;
  for (const auto& difference : diff.differences) {
    text += fmt::format(
        "{}{} [{}] {}: {}\n", is_first ? "first difference: " : "",
        step_text(catalog, difference.group, difference.step), to_string(difference.kind),
        difference.is_cause ? "cause" : fmt::format("victim of {}", difference.victim_of),
        difference.what);
    for (const auto& detail : difference.details) text += fmt::format("    {}\n", detail);
    is_first = false;
  }
  for (const auto& note : diff.notes) text += fmt::format("note: {}\n", note);
  if (diff.is_equal())
    return text + fmt::format("equal: {} of {}\n", counted(diff.num_steps, "step"),
                              counted(catalog.groups.size(), "group"));
  if (diff.differences.empty())
    text += fmt::format("no step differs ({} compared)\n", diff.num_steps);
  return text;
}

Json to_json(const Trace& a, const TraceDiff& diff) {
  const TraceCatalog& catalog = a.catalog();
  Json differences = Json::array(), missing = Json::array();
  for (const auto& difference : diff.differences) {
    Json entry = Json::object()
                     .set("at", step_text(catalog, difference.group, difference.step))
                     .set("group", catalog.groups[difference.group.index()].name)
                     .set("step", difference.step)
                     .set("kind", to_string(difference.kind))
                     .set("is_cause", difference.is_cause)
                     .set("what", difference.what)
                     .set("details", Json::list(difference.details));
    if (!difference.is_cause) entry.set("victim_of", difference.victim_of);
    differences.push_back(std::move(entry));
  }
  for (const auto& records : diff.missing)
    missing.push_back(Json::object()
                          .set("kind", to_string(records.kind))
                          .set("missing_in", records.in_a ? "a" : "b")
                          .set("group", catalog.groups[records.group.index()].name)
                          .set("first", records.first)
                          .set("last", records.last)
                          .set("text", missing_line(a, records)));
  return Json::object()
      .set("schema", "primerl.trace.diff/1")
      .set("equal", diff.is_equal())
      .set("num_steps", diff.num_steps)
      .set("options", Json::list(diff.options))
      .set("schemas", Json::list(diff.schemas))
      .set("tables", Json::list(diff.tables))
      .set("missing", std::move(missing))
      .set("differences", std::move(differences))
      .set("notes", Json::list(diff.notes));
}

}  // namespace primerl
