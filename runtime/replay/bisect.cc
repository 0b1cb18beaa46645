#include "runtime/replay/bisect.h"

#include <algorithm>
#include <charconv>

#include "graph/base/suggest.h"
#include "runtime/replay/replay_session.h"
#include "runtime/trace/read/payload_reader.h"

namespace primerl {
namespace {

std::string trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(" \t") - first + 1));
}

Error not_a_predicate(const std::string& text, std::string_view why) {
  return error(Code::kInvalid, "'{}' is no predicate: {}", text, why)
      .note(
          "a predicate is NODE.METRIC OP NUMBER or NODE.OUTPUT.FIELD OP NUMBER, OP one of > >= < "
          "<= == !=, such as 'trainer.mismatch_kl > 0.1'");
}

/// Every number at a dotted path; for a list on the path, the numbers of each item.
void collect(const Json& at, std::string_view path, std::vector<double>& out) {
  if (at.is_array()) {
    for (const auto& item : at.as_array()) collect(item, path, out);
    return;
  }
  if (path.empty()) {
    if (at.is_number()) out.push_back(at.as_double());
    if (at.is_bool()) out.push_back(at.as_bool() ? 1 : 0);
    return;
  }
  const auto dot = path.find('.');
  const Json* member = at.find(path.substr(0, dot));
  if (member == nullptr) return;
  collect(*member, dot == std::string_view::npos ? "" : path.substr(dot + 1), out);
}

Result<BisectResult> look_at_messages(const Trace& trace, GroupId group, const Predicate& predicate,
                                      const std::string& output, const std::string& field) {
  BisectResult result;
  const TraceCatalog& catalog = trace.catalog();
  bool is_stored = false;
  for (const auto& link : catalog.links)
    is_stored = is_stored || (catalog.instances[link.sender].node == predicate.node &&
                              link.output == output && link.record == "payload");
  if (!is_stored)
    return error(Code::kInvalid, "the messages of '{}.{}' are not stored in this trace",
                 predicate.node, output)
        .note("set record = \"payload\" on its edge and run again");
  PayloadReader contents(catalog);
  for (uint64_t step = trace.first_step(group); step <= trace.last_step(group); ++step) {
    for (const MessageKey& key : trace.stored_emissions(group, step)) {
      const auto& link = catalog.links[key.link.index()];
      if (link.output != output || catalog.instances[link.sender].node != predicate.node) continue;
      ASSIGN_OR_RETURN(const StoredPayload stored, trace.payload(key));
      ASSIGN_OR_RETURN(const Json json, contents.json(stored));
      std::vector<double> values;
      collect(json, field, values);
      if (values.empty() && result.num_looked_at == 0)
        return error(Code::kNotFound, "'{}' has no number '{}'", catalog.types[stored.type].name,
                     field)
            .note(json.dump());
      result.num_looked_at += 1;
      for (double value : values) {
        if (!predicate.holds(value)) continue;
        result.found =
            Found{group, step, value,
                  fmt::format("{} of message {} of '{}'", field, key.sequence, link.edge)};
        return result;
      }
    }
  }
  return result;
}

/// "mismatch_kl" means "mismatch_kl", "mismatch_kl/all/mean" or "mismatch_kl/mean".
const double* find_metric(const MetricValues& values, const std::string& name) {
  for (const char* ending : {"", "/all/mean", "/mean"})
    for (const auto& [key, value] : values)
      if (key == name + ending) return &value;
  return nullptr;
}

Error no_metric(const MetricValues& values, const Predicate& predicate) {
  std::vector<std::string> names;
  for (const auto& [key, value] : values) names.push_back(key);
  Error unknown = error(Code::kNotFound, "'{}' publishes no '{}'", predicate.node, predicate.path);
  return std::move(unknown).note("it publishes: " + join_names(names));
}

Result<BisectResult> look_at_metrics(const std::string& run, const Predicate& predicate) {
  BisectResult result;
  ASSIGN_OR_RETURN(const ReplaySession session,
                   open_replay({.run = run, .depth = "control", .node = predicate.node}));
  ASSIGN_OR_RETURN(const GroupId group, find_group(*session.plan, predicate.node));
  ASSIGN_OR_RETURN(const auto replay, Replay::make(session.setup(1)));
  // A training step's metrics are published with the delivery after it.
  uint64_t trained_at = 0;
  while (true) {
    const auto upcoming = replay->upcoming();
    ASSIGN_OR_RETURN(const bool moved, replay->advance());
    if (!moved) break;
    for (const auto& line : session.process_services->take_metrics()) {
      const double* value = find_metric(line.values, predicate.path);
      if (value == nullptr) return no_metric(line.values, predicate);
      result.num_looked_at += 1;
      if (!predicate.holds(*value)) continue;
      const uint64_t step = trained_at != 0 ? trained_at : upcoming->step;
      result.found = Found{group, step, *value,
                           fmt::format("{} of training step {}", predicate.path, line.step)};
      return result;
    }
    if (!upcoming || upcoming->group != group) continue;
    const auto notes = session.trace->notes(group, upcoming->step);
    if (std::any_of(notes.begin(), notes.end(),
                    [](const auto& note) { return note.kind == NoteKind::kResource; }))
      trained_at = upcoming->step;
  }
  const ReplayReport report = replay->report();
  result.notes = report.notes;
  for (const auto& divergence : report.divergences)
    result.notes.push_back(fmt::format(
        "the replay diverged at {}, later steps were not looked at: {}",
        step_text(session.trace->catalog(), divergence.group, divergence.step), divergence.what));
  return result;
}

}  // namespace

bool Predicate::holds(double value) const {
  if (comparison == ">") return value > number;
  if (comparison == ">=") return value >= number;
  if (comparison == "<") return value < number;
  if (comparison == "<=") return value <= number;
  if (comparison == "==") return value == number;
  return value != number;
}

Result<Predicate> parse_predicate(const std::string& text) {
  const auto at = text.find_first_of("<>=!");
  if (at == std::string::npos) return not_a_predicate(text, "no comparison");
  Predicate predicate;
  const size_t length = at + 1 < text.size() && text[at + 1] == '=' ? 2 : 1;
  predicate.comparison = text.substr(at, length);
  if (predicate.comparison == "=" || predicate.comparison == "!")
    return not_a_predicate(text, fmt::format("'{}' is no comparison", predicate.comparison));
  const std::string subject = trimmed(text.substr(0, at));
  const std::string number = trimmed(text.substr(at + length));
  const auto [end, fault] =
      std::from_chars(number.data(), number.data() + number.size(), predicate.number);
  if (fault != std::errc() || end != number.data() + number.size())
    return not_a_predicate(text, fmt::format("'{}' is not a number", number));
  const auto dot = subject.find('.');
  if (dot == std::string::npos || dot == 0 || dot + 1 == subject.size())
    return not_a_predicate(text, fmt::format("'{}' names no node and metric", subject));
  predicate.node = subject.substr(0, dot);
  predicate.path = subject.substr(dot + 1);
  return predicate;
}

Result<BisectResult> bisect(const std::string& run, const Predicate& predicate) {
  ASSIGN_OR_RETURN(const auto trace, Trace::open(run));
  const TraceCatalog& catalog = trace->catalog();
  const auto dot = predicate.path.find('.');
  const std::string first = predicate.path.substr(0, dot);
  bool is_node = false;
  for (const auto& link : catalog.links) {
    const auto& sender = catalog.instances[link.sender];
    if (sender.node != predicate.node || link.output != first || dot == std::string::npos) continue;
    return look_at_messages(*trace, GroupId(sender.group), predicate, first,
                            predicate.path.substr(dot + 1));
  }
  for (const auto& instance : catalog.instances)
    is_node = is_node || instance.node == predicate.node;
  if (!is_node) {
    ASSIGN_OR_RETURN(const StepName known, parse_step_name(catalog, predicate.node));
    (void)known;
  }
  return look_at_metrics(run, predicate);
}

}  // namespace primerl
