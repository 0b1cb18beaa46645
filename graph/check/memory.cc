// Computes the memory of engines and learners in each process before a run starts, and compares it
// with the limit of the file.
#include <algorithm>
#include <set>

#include "graph/check/names.h"
#include "graph/check/rules.h"
#include "graph/check/waiting_groups.h"
#include "graph/frozen.h"

namespace primerl {
namespace {

constexpr size_t kNamedPartsMax = 5;

/// The memory limit of a process, and where the file states it.
struct MemoryLimit {
  double bytes = 0;
  Span span;
};

MemoryLimit limit_of(const Draft& draft, const DraftPlace* place) {
  if (place != nullptr && place->options.memory_max > 0)
    return {static_cast<double>(place->options.memory_max), value_span(*place->spec, "memory_max")};
  const Entry* written =
      draft.spec.graph != nullptr ? draft.spec.graph->find("memory_max") : nullptr;
  return {static_cast<double>(draft.settings.memory_max),
          written != nullptr ? written->value.span : Span()};
}

/// Whether a process of the place computes on the CPU. Memory of a CUDA device does not count as
/// memory of the process.
bool is_on_cpu(const DraftPlace* place) {
  return place == nullptr || devices_of(place->options).contains("cpu");
}

/// The memory of the resources in one process of a place.
ProcessMemory memory_of(const Draft& draft, int32_t place) {
  ProcessMemory memory;
  for (const auto& resource : draft.resources) {
    const bool is_here = std::ranges::any_of(resource.users, [&](int32_t user) {
      return draft.nodes[static_cast<size_t>(user)].place == place;
    });
    if (!is_here || resource.memory.empty()) continue;
    memory.add(fmt::format("{} '{}'", resource.common.kind, resource.spec->name),
               resource.model < 0 ? "" : draft.models[static_cast<size_t>(resource.model)].path,
               resource.memory);
  }
  return memory;
}

void check_process(Draft& draft, const DraftPlace* place, int32_t index) {
  const MemoryLimit limit = limit_of(draft, place);
  if (limit.bytes == 0 || !is_on_cpu(place)) return;
  const ProcessMemory memory = memory_of(draft, index);
  const double bytes = memory.needed_bytes();
  if (bytes <= limit.bytes) return;
  std::vector<MemoryPart> parts;  // the largest first
  for (const auto& held : memory.all())
    if (!held.part.is_optional)
      parts.push_back(
          {fmt::format("{}: {}", held.owners_text(), held.what_text()), held.part.bytes});
  std::ranges::stable_sort(parts, std::ranges::greater(), &MemoryPart::bytes);
  auto& found = draft.diagnostics.error(
      "G049", limit.span, "{} needs {:.0f} bytes ({}) of memory, 'memory_max' is {:.0f} ({})",
      place == nullptr ? "the process" : fmt::format("a process of place '{}'", place->spec->name),
      bytes, memory_text(bytes), limit.bytes, memory_text(limit.bytes));
  for (const auto& part : std::span(parts).first(std::min(parts.size(), kNamedPartsMax)))
    found.note(fmt::format("{}: {}", part.what, memory_text(part.bytes)));
  if (parts.size() > kNamedPartsMax)
    found.note(fmt::format("{} smaller parts: {}", parts.size() - kNamedPartsMax,
                           memory_text(sum_of(std::span(parts).subspan(kNamedPartsMax)))));
  found.suggest(
      fmt::format("write memory_max = {:.0f} or more, or make the largest part smaller: lower "
                  "micro_batch_tokens, max_batched_tokens, kv_blocks, adapter_slots or ranks of "
                  "adapters, or put the learner into a place of its own",
                  bytes));
}

/// The model of a resource; a weight channel has none and uses the learner's.
int32_t model_of(const Draft& draft, const DraftResource& resource) {
  if (resource.model >= 0 || resource.common.kind != kWeightChannelKind) return resource.model;
  const auto learner = std::ranges::find_if(draft.resources, [](const DraftResource& each) {
    return each.common.kind == "learner" && each.model >= 0;
  });
  return learner == draft.resources.end() ? -1 : learner->model;
}

/// A process that trains several tenants keeps saved states until each tenant has passed them. A
/// run without a record, or with a flight recorder, makes none.
bool keeps_waiting_cuts(const Draft& draft, const DraftResource& resource) {
  const bool has_several =
      draft.tenants.size() > 1 || draft.settings.tenant_limits.tenants_max > 1;
  return resource.common.kind == "learner" && has_several && draft.trace.is_on() &&
         draft.trace.level != "ring";
}

bool is_optional_part(const MemoryPart& part) { return part.is_optional; }

void warn_of_limit(Draft& draft, Span span, const std::string& owner, std::string_view reason) {
  draft.diagnostics.warning("G090", span, "'memory_max' of {} has no effect: {}", owner, reason)
      .note("it limits engines, learners and weight channels of processes on the CPU")
      .suggest("remove the key; an engine on a CUDA device is limited by its 'kv_blocks'");
}

/// A limit that is compared with no process.
void check_limits(Draft& draft) {
  bool has_limited = draft.places.empty();  // whether the limit of [graph] applies to a place
  for (const auto& place : draft.places) {
    const bool has_own = place.options.memory_max > 0;
    if (is_on_cpu(&place))
      has_limited = has_limited || !has_own;
    else if (has_own)
      warn_of_limit(draft, value_span(*place.spec, "memory_max"),
                    fmt::format("place '{}'", place.spec->name),
                    "all its processes compute on CUDA devices");
  }
  if (draft.settings.memory_max > 0 && !has_limited)
    warn_of_limit(draft, limit_of(draft, nullptr).span, "[graph]",
                  "each place states its own, or computes on CUDA devices");
}

/// The tenants that a resource may have to serve at once: those of the file, or as many as there
/// are slots, each as large as the limits allow, with each optimizer that they allow.
std::vector<std::vector<Tenant>> served_tenants(const Draft& draft) {
  std::vector<std::vector<Tenant>> all{draft.tenant_values()};
  if (!draft.any_tenant) return all;
  std::vector<std::string> kinds = draft.settings.tenant_limits.optimizers;
  kinds.emplace_back();  // the learner's
  for (const std::string& kind : kinds)
    all.push_back(draft.limit_values([&](Tenant& slot) { slot.optimizer.kind = kind; }));
  return all;
}

/// The parts of those tenants that need the most.
Result<std::vector<MemoryPart>> most_memory(const DraftResource& resource,
                                            const std::string& folder,
                                            const std::vector<std::vector<Tenant>>& served) {
  std::vector<MemoryPart> most;
  for (const auto& tenants : served) {
    ASSIGN_OR_RETURN(auto parts,
                     resource.contract->memory(resource.options.get(), folder, tenants));
    if (most.empty() || sum_of(parts) > sum_of(most)) most = std::move(parts);
  }
  return most;
}

}  // namespace

void count_memory(Draft& draft) {
  const auto served = served_tenants(draft);
  auto without = served;
  for (auto& tenants : without) tenants = without_adapters(std::move(tenants));
  for (auto& resource : draft.resources) {
    const int32_t index = model_of(draft, resource);
    if (resource.contract == nullptr || !resource.contract->memory || index < 0) continue;
    const DraftModel& model = draft.models[static_cast<size_t>(index)];
    if (!model.facts) continue;
    const bool has_frozen_weights = is_frozen(draft, resource);
    auto parts = most_memory(resource, model.path, has_frozen_weights ? without : served);
    if (!parts.ok()) continue;  // check_models() reports a model that cannot be read
    resource.memory = std::move(parts).value();
    if (keeps_waiting_cuts(draft, resource))
      resource.memory.push_back({"saved states that wait for checkpoints",
                                 static_cast<double>(kWaitingCutsBytesMax), Sharing::kProcess});
    if (resource.common.kind == "learner")
      for (MemoryPart& part : waiting_groups(draft, resource))
        resource.memory.push_back(std::move(part));
    // No version ever replaces its weights, so it never makes the second set.
    if (has_frozen_weights) std::erase_if(resource.memory, is_optional_part);
  }
}

void check_memory(Draft& draft) {
  check_limits(draft);
  if (draft.spec.places == nullptr) return check_process(draft, nullptr, 0);
  for (size_t index = 0; index < draft.places.size(); ++index)
    check_process(draft, &draft.places[index], static_cast<int32_t>(index));
}

}  // namespace primerl
