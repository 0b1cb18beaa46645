// The first difference of one group.
#include <algorithm>
#include <tuple>

#include "graph/base/counted.h"
#include "runtime/query/diff_parts.h"
#include "runtime/trace/read/index.h"
#include "runtime/trace/tenant_note.h"

namespace primerl {
namespace {

constexpr size_t kDetailsMax = 8;
constexpr size_t kValueBytesMax = 100;  // of one value that differs
constexpr uint8_t kOutcomeFlags = kFailed | kAbandoned | kInjected;

uint32_t mapped(const std::vector<uint32_t>& map, uint32_t number) {
  return number < map.size() ? map[number] : UINT32_MAX;
}

GroupDifference difference(DifferenceKind kind, const TraceStep& step, std::string what) {
  GroupDifference found;
  found.kind = kind;
  found.group = step.group;
  found.step = step.step;
  found.began = step.began;
  found.what = std::move(what);
  return found;
}

/// Compares field by field if both stored the content, otherwise by the payload checks.
std::vector<std::string> content_details(const Pair& pair, const MessageKey& key, uint64_t check_a,
                                         uint64_t check_b) {
  const auto a = pair.a.payload(key);
  const auto b = pair.b.payload(pair.in_b(key));
  if (a.ok() && b.ok()) {
    const auto json_a = payload_json(pair.a.catalog().types[a->type], *a);
    const auto json_b = payload_json(pair.b.catalog().types[b->type], *b);
    if (json_a.ok() && json_b.ok()) {
      std::vector<std::string> details;
      for (const auto& [path, in_a, in_b] :
           json_differences(*json_a, *json_b, kDetailsMax, kValueBytesMax))
        details.push_back(fmt::format("{}: {} in a, {} in b", path, in_a, in_b));
      if (details.empty() && a->blobs != b->blobs)
        details.emplace_back("the bytes of its blobs differ");
      if (details.empty())
        for (const auto& [name, trace, payload] :
             {std::tuple("a", &pair.a, &*a), std::tuple("b", &pair.b, &*b)})
          if (const Status fits = check_payload(trace->catalog().types[payload->type], *payload);
              !fits.ok())
            details.push_back(fmt::format("in {}: {}", name, fits.error().message()));
      if (!details.empty()) return details;
    }
    for (const auto* json : {&json_a, &json_b})
      if (!json->ok()) return {json->error().message()};
  }
  return {fmt::format("payload check {:016x} in a, {:016x} in b; its content was not stored",
                      check_a, check_b)};
}

/// The first difference in the payloads that the step stored.
std::optional<GroupDifference> emission_difference(const Pair& pair, const TraceStep& a,
                                                   const TraceStep& b) {
  if (!pair.numbers.has_same_policies) return std::nullopt;
  const TraceCatalog& catalog = pair.a.catalog();
  const GroupId host_b(pair.numbers.groups[a.group.index()]);
  const auto keys_a = pair.a.stored_emissions(a.group, a.step);
  const auto keys_b = pair.b.stored_emissions(host_b, b.step);
  // A step's payloads are written before it, perhaps into a segment that is missing.
  const bool may_be_missing = (a.step > 1 && !pair.a.step(a.group, a.step - 1)) ||
                              (b.step > 1 && !pair.b.step(host_b, b.step - 1));
  if (may_be_missing && keys_a.size() != keys_b.size()) return std::nullopt;
  for (size_t i = 0; i < std::min(keys_a.size(), keys_b.size()); ++i) {
    if (pair.in_b(keys_a[i]) != keys_b[i])
      return difference(DifferenceKind::kOutput, a,
                        fmt::format("it emitted {} in a where b has another message",
                                    message_text(catalog, keys_a[i])));
    const auto payload_a = pair.a.payload(keys_a[i]);
    const auto payload_b = pair.b.payload(keys_b[i]);
    if (!payload_a.ok() || !payload_b.ok()) continue;
    if (payload_a->payload_check == payload_b->payload_check &&
        payload_a->body == payload_b->body && payload_a->blobs == payload_b->blobs)
      continue;
    auto found = difference(
        pair.numbers.changed_types.contains(payload_a->type) ? DifferenceKind::kSchema
                                                             : DifferenceKind::kOutput,
        a, fmt::format("it emitted {} with another content", message_text(catalog, keys_a[i])));
    found.details =
        content_details(pair, keys_a[i], payload_a->payload_check, payload_b->payload_check);
    return found;
  }
  if (keys_a.size() == keys_b.size()) return std::nullopt;
  return difference(
      DifferenceKind::kOutput, a,
      fmt::format("it stored {} in a, {} in b", counted(keys_a.size(), "message"), keys_b.size()));
}

/// `b` has the numbers of a, except its group. Only b names the tenant of an event of b.
std::string b_text(const Pair& pair, const TraceStep& b) {
  if (b.kind != StepKind::kTenant) return input_text(pair.a, b);
  const auto step = pair.b.step(b.group, b.step);
  return step ? input_text(pair.b, *step) : "an event of a tenant";
}

std::optional<TenantChange> change_of(const Trace& trace, GroupId group, uint64_t step) {
  std::optional<TenantChange> change;
  trace.visit_notes(group, step, [&](NoteKind kind, InstanceId, std::span<const std::byte> bytes) {
    if (kind != NoteKind::kTenant) return;
    if (auto read = read_tenant_note(bytes); read.ok()) change = *std::move(read);
  });
  return change;
}

/// The same change of a slot: by another tenant, or with another table.
GroupDifference tenant_difference(const Pair& pair, const TraceStep& a, const TraceStep& b) {
  const auto in_a = change_of(pair.a, a.group, a.step);
  const auto in_b = change_of(pair.b, b.group, b.step);
  if (!in_a || !in_b || in_a->name != in_b->name || a.tenant != b.tenant)
    return difference(DifferenceKind::kContent, a,
                      fmt::format("{} in a, {} in b", input_text(pair.a, a), b_text(pair, b)));
  auto found = difference(DifferenceKind::kContent, a,
                          fmt::format("{} with another table in b", input_text(pair.a, a)));
  found.details = option_differences(in_a->table, in_b->table);
  if (found.details.size() > kDetailsMax) found.details.resize(kDetailsMax);
  return found;
}

std::optional<GroupDifference> input_difference(const Pair& pair, const TraceStep& a,
                                                const TraceStep& b) {
  const TraceCatalog& catalog = pair.a.catalog();
  const bool same_input = a.kind == b.kind && a.instance == b.instance && a.link == b.link &&
                          a.incarnation == b.incarnation && a.sequence == b.sequence &&
                          a.subject == b.subject;
  if (!same_input) {
    if (b.kind == StepKind::kMessage && b.link.is_none())
      return difference(
          DifferenceKind::kOrder, a,
          fmt::format("it handled {} in a, something a has not in b", input_text(pair.a, a)));
    return difference(
        DifferenceKind::kOrder, a,
        fmt::format("it handled {} in a, {} in b", input_text(pair.a, a), b_text(pair, b)));
  }
  if (a.kind == StepKind::kTenant && (a.tenant != b.tenant || a.payload_check != b.payload_check))
    return tenant_difference(pair, a, b);
  if (a.kind == StepKind::kCommand && a.payload_check != b.payload_check)
    return difference(DifferenceKind::kContent, a, "it was given a command with another content");
  if (a.kind != StepKind::kMessage) return std::nullopt;
  const auto message = message_text(catalog, key_of(a));
  if (((a.flags | b.flags) & kNotChecked) == 0 &&
      (a.payload_check != b.payload_check || a.payload_bytes != b.payload_bytes)) {
    const bool is_schema = pair.numbers.changed_types.contains(a.type);
    auto found =
        difference(is_schema ? DifferenceKind::kSchema : DifferenceKind::kContent, a,
                   is_schema ? fmt::format("{} is a '{}', which is declared otherwise in b",
                                           message, catalog.types[a.type].name)
                             : fmt::format("it was handed {} with another content", message));
    found.details = content_details(pair, key_of(a), a.payload_check, b.payload_check);
    return found;
  }
  const auto header = [&](std::string_view what, const std::string& in_a, const std::string& in_b) {
    auto found = difference(DifferenceKind::kContent, a,
                            fmt::format("it was handed {} with another {}", message, what));
    found.details.push_back(fmt::format("{}: {} in a, {} in b", what, in_a, in_b));
    return found;
  };
  if (a.cause != b.cause)
    return header("cause", step_name(catalog, a.cause), step_name(catalog, b.cause));
  if (a.tenant != b.tenant)
    return header("tenant", fmt::format("{}", a.tenant), fmt::format("{}", b.tenant));
  if (a.origin != b.origin)
    return header("origin", fmt::format("{}", a.origin), fmt::format("{}", b.origin));
  if (a.type != b.type)
    return header("type", catalog.types[a.type].name,
                  b.type < catalog.types.size() ? catalog.types[b.type].name : "?");
  return std::nullopt;
}

/// Reports once per range that a trace lacks the record of a step.
void note_missing(const Pair& pair, GroupId group, uint64_t step, bool in_a, TraceDiff& diff) {
  for (auto& known : diff.missing)
    if (known.group == group && known.in_a == in_a && known.last + 1 >= step &&
        step >= known.first) {
      known.last = std::max(known.last, step);
      return;
    }
  MissingRecords missing;
  missing.group = group;
  missing.in_a = in_a;
  missing.first = missing.last = step;
  const Trace& trace = in_a ? pair.a : pair.b;
  const GroupId own = in_a ? group : GroupId(pair.numbers.groups[group.index()]);
  for (const TraceFault& fault : trace.faults())
    if (fault.group == own && fault.first <= step && step <= fault.last &&
        fault.kind != TraceFault::Kind::kCutTail) {
      missing.kind = fault.kind;
      missing.text = fault.text;
    }
  diff.missing.push_back(std::move(missing));
}

/// Compares the steps after the last step that both have.
std::optional<GroupDifference> end_difference(const Pair& pair, GroupId group, uint64_t last_a,
                                              uint64_t last_b, TraceDiff& diff) {
  if (last_a == last_b) return std::nullopt;
  const bool a_is_shorter = last_a < last_b;
  const Trace& shorter = a_is_shorter ? pair.a : pair.b;
  const GroupId own = a_is_shorter ? group : GroupId(pair.numbers.groups[group.index()]);
  const uint64_t common = std::min(last_a, last_b);
  for (const TraceFault& fault : shorter.faults())
    if (fault.kind == TraceFault::Kind::kCutTail && fault.group == own) {
      MissingRecords cut{fault.kind, a_is_shorter, group, common + 1, std::max(last_a, last_b),
                         fault.text};
      diff.missing.push_back(std::move(cut));
      return std::nullopt;
    }
  GroupDifference found;
  found.kind = DifferenceKind::kCount;
  found.group = group;
  found.step = common + 1;
  const auto next = a_is_shorter
                        ? pair.b.step(GroupId(pair.numbers.groups[group.index()]), common + 1)
                        : pair.a.step(group, common + 1);
  if (next) found.began = next->began;
  found.what = fmt::format("it took {} in a, {} in b", counted(last_a, "step"), last_b);
  if (next)
    found.details.push_back(
        fmt::format("the next one in {} is {}", a_is_shorter ? "b" : "a",
                    a_is_shorter ? b_text(pair, pair.in_a(*next)) : input_text(pair.a, *next)));
  return found;
}

}  // namespace

TraceStep Pair::in_a(TraceStep step) const {
  if (numbers.is_identity) return step;
  const auto map = [](const std::vector<uint32_t>& numbers_of, auto id) {
    return decltype(id)(mapped(numbers_of, id.value));
  };
  step.instance = map(numbers.instances, step.instance);
  step.origin = map(numbers.instances, step.origin);
  step.cause.instance = map(numbers.instances, step.cause.instance);
  step.link = map(numbers.links, step.link);
  step.tenant = map(numbers.tenants, step.tenant);
  step.type = mapped(numbers.types, step.type);
  if (step.kind == StepKind::kPeer) step.subject = mapped(numbers.instances, step.subject);
  return step;
}

MessageKey Pair::in_b(MessageKey key) const {
  if (numbers.is_identity) return key;
  const auto found = std::ranges::find(numbers.links, key.link.value);
  key.link = found == numbers.links.end()
                 ? LinkId()
                 : LinkId(static_cast<uint32_t>(found - numbers.links.begin()));
  return key;
}

std::optional<GroupDifference> step_difference(const Pair& pair, const TraceStep& a,
                                               const TraceStep& b) {
  if (auto found = input_difference(pair, a, b)) return found;
  if ((a.flags & kOutcomeFlags) != (b.flags & kOutcomeFlags))
    return difference(DifferenceKind::kOutcome, a,
                      fmt::format("the handler of {} {} in a, {} in b", input_text(pair.a, a),
                                  a.is_failed() ? "failed" : "succeeded",
                                  b.is_failed() ? "failed" : "succeeded"));
  if (auto found = emission_difference(pair, a, b)) return found;
  if (a.num_emissions != b.num_emissions)
    return difference(DifferenceKind::kOutput, a,
                      fmt::format("it emitted {} in a, {} in b",
                                  counted(a.num_emissions, "message"), b.num_emissions));
  return std::nullopt;
}

std::optional<GroupDifference> first_difference(const Pair& pair, GroupId group, TraceDiff& diff) {
  const GroupId host_b(pair.numbers.groups[group.index()]);
  const uint64_t first_a = pair.a.first_step(group), first_b = pair.b.first_step(host_b);
  const uint64_t last_a = pair.a.last_step(group), last_b = pair.b.last_step(host_b);
  if (first_a == 0 || first_b == 0) return end_difference(pair, group, last_a, last_b, diff);
  const uint64_t first = std::max(first_a, first_b);
  const uint64_t last = std::min(last_a, last_b);
  if (first_a != first_b)
    diff.notes.push_back(fmt::format("steps of '{}' before {} are in one of the two alone",
                                     pair.a.catalog().groups[group.index()].name, first));
  for (uint64_t step = first; step <= last;) {
    const uint64_t block = step / kDigestSteps;
    const uint64_t block_end = (block + 1) * kDigestSteps - 1;
    const bool is_whole = step % kDigestSteps == (block == 0 ? 1 : 0) && step >= first_a &&
                          step >= first_b && block_end <= last;
    if (is_whole && pair.numbers.is_identity) {
      const auto digest_a = pair.a.digest(group, block);
      const auto digest_b = pair.b.digest(host_b, block);
      if (digest_a && digest_b && digest_a->steps == digest_b->steps &&
          (digest_a->payloads == digest_b->payloads || !pair.numbers.has_same_policies)) {
        diff.num_steps += block_end - step + 1;
        step = block_end + 1;
        continue;
      }
    }
    for (const uint64_t end = std::min(block_end, last); step <= end; ++step) {
      const auto a = pair.a.step(group, step);
      const auto b = pair.b.step(host_b, step);
      if (!a) note_missing(pair, group, step, true, diff);
      if (!b) note_missing(pair, group, step, false, diff);
      if (!a || !b) continue;
      ++diff.num_steps;
      if (auto found = step_difference(pair, *a, pair.in_a(*b))) return found;
    }
  }
  return end_difference(pair, group, last_a, last_b, diff);
}

}  // namespace primerl
