// Rules about [tenant.*] teacher: its node, its tokens, and the longest sequence of its engine.
#include <algorithm>
#include <set>
#include <utility>

#include "graph/check/names.h"
#include "graph/check/rules.h"

namespace primerl {
namespace {

/// The model whose tokenizer the node names; -1: none.
int32_t tokenizer_of(const DraftNode& node) {
  for (size_t i = 0; i < node.uses.size(); ++i)
    if (node.contract->resources[i].kind == kTokenizerKind) return node.uses[i];
  return -1;
}

const DraftNode* find_teacher(const Draft& draft) {
  const auto found = std::ranges::find_if(draft.nodes, [](const DraftNode& node) {
    return node.contract != nullptr && node.contract->is_teacher;
  });
  return found == draft.nodes.end() ? nullptr : &*found;
}

/// The tenants name the model of the one teacher of the graph.
void check_names(Draft& draft, const DraftTenant& tenant, const DraftNode* node) {
  const std::string& wanted = tenant.tenant.teacher.model;
  const Span span = nested_span(*tenant.spec, "teacher.model");
  if (find_model_index(draft, wanted, span,
                       fmt::format("'teacher' of tenant '{}'", tenant.spec->name)) < 0)
    return;
  if (node == nullptr) {
    draft.diagnostics
        .error("G083", span,
               "'teacher' of tenant '{}' names model '{}', but no node asks a teacher",
               tenant.spec->name, wanted)
        .note("a file without [edges] gets the nodes of the teacher")
        .suggest("add the nodes and edges of a teacher, or leave out [edges] or 'teacher'");
    return;
  }
  const int32_t model = tokenizer_of(*node);
  if (model < 0) return;  // reported already
  const std::string& named = draft.models[static_cast<size_t>(model)].spec->name;
  if (named == wanted) return;
  draft.diagnostics
      .error("G083", span, "'teacher' of tenant '{}' names model '{}', and node '{}' asks '{}'",
             tenant.spec->name, wanted, node->spec->name, named)
      .note("all teachers of a graph are one model")
      .suggest(fmt::format("write model = \"{}\"", named));
}

/// Each token id of the policy is the same token of the teacher.
void check_tokens(Draft& draft, const DraftNode& teacher, const DraftTenant& tenant) {
  const int32_t model = tokenizer_of(teacher);
  if (!draft.for_run || !draft.catalog.check_same_tokens || model < 0 || !is_here(draft, teacher))
    return;
  const DraftModel& taught = draft.models[static_cast<size_t>(model)];
  if (!taught.facts) return;
  std::set<int32_t> seen;
  for (const DraftEdge& edge : draft.edges) {
    if (!edge.is_whole() || &draft.nodes[static_cast<size_t>(edge.to)] != &teacher) continue;
    const int32_t own = tokenizer_of(draft.nodes[static_cast<size_t>(edge.from)]);
    if (own < 0 || own == model || !seen.insert(own).second) continue;
    const DraftModel& policy = draft.models[static_cast<size_t>(own)];
    if (!policy.facts) continue;
    const Status same = draft.catalog.check_same_tokens(policy.path, taught.path);
    if (same.ok()) continue;
    draft.diagnostics
        .error("G044", nested_span(*tenant.spec, "teacher.model"),
               "model '{}' cannot teach model '{}': {}", taught.spec->name, policy.spec->name,
               same.error().message())
        .note("a teacher reads the token ids of the policy, so both need one tokenizer")
        .suggest("name a model with the tokenizer of the policy");
  }
}

/// The teacher reads a whole sample and samples one token after it.
void check_length(Draft& draft, const DraftNode& teacher, DraftTenant& tenant) {
  const int32_t model = tokenizer_of(teacher);
  for (const DraftResource& resource : draft.resources) {
    if (resource.contract == nullptr || !resource.contract->sequence_limit || model < 0 ||
        resource.model != model || !is_frozen(draft, resource))
      continue;
    const auto& facts = draft.models[static_cast<size_t>(model)].facts;
    const auto limit =
        resource.contract->sequence_limit(resource.options.get(), facts ? &*facts : nullptr);
    if (limit.tokens <= 1 || tenant.tenant.seq_len < limit.tokens) continue;
    if (!tenant.seq_len_is_written) {
      tenant.tenant.seq_len = limit.tokens - 1;
      continue;
    }
    draft.diagnostics
        .error("G084",
               written_span(draft, {value_span(*tenant.spec, "seq_len"),
                                    value_span(*resource.spec, limit.option)}),
               "'seq_len' {} of tenant '{}' is too long for its teacher: a sequence of {} '{}' has "
               "at most {} tokens, and one is sampled after the sample",
               tenant.tenant.seq_len, tenant.spec->name, resource.common.kind, resource.spec->name,
               limit.tokens)
        .suggest(fmt::format("write seq_len = {} or less, or raise {}", limit.tokens - 1,
                             limit.option == "kv_blocks" ? "kv_blocks or block_size"
                                                         : fmt::format("'{}'", limit.option)));
  }
}

/// The teacher has at least top_k tokens.
void check_top_k(Draft& draft, const DraftNode& teacher, const DraftTenant& tenant) {
  const int32_t model = tokenizer_of(teacher);
  if (model < 0) return;
  const auto& facts = draft.models[static_cast<size_t>(model)].facts;
  const int64_t top_k = tenant.tenant.teacher.top_k;
  if (!facts || facts->vocab_size <= 0 || top_k <= facts->vocab_size) return;
  draft.diagnostics
      .error("G083", nested_span(*tenant.spec, "teacher.top_k"),
             "'teacher.top_k' of tenant '{}' is {}, and its model has {} tokens", tenant.spec->name,
             top_k, facts->vocab_size)
      .suggest(fmt::format("write top_k = {} or less", facts->vocab_size));
}

}  // namespace

void check_teachers(Draft& draft) {
  const DraftNode* teacher = find_teacher(draft);
  bool has_tokens = false;
  for (DraftTenant& tenant : draft.tenants) {
    if (!tenant.tenant.teacher.is_there()) continue;
    check_names(draft, tenant, teacher);
    if (teacher == nullptr) continue;
    check_length(draft, *teacher, tenant);
    check_top_k(draft, *teacher, tenant);
    // The tokenizers are those of nodes, not of tenants.
    if (!std::exchange(has_tokens, true)) check_tokens(draft, *teacher, tenant);
  }
}

}  // namespace primerl
