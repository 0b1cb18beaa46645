// Rules about [trace] and the `record` of single edges.
#include "graph/check/rules.h"

namespace primerl {

void bind_trace(Draft& draft) {
  Table* written = draft.spec.trace;
  if (written == nullptr) return;
  TraceSettings& trace = draft.trace;
  trace_options().bind(*written, "[trace]", {}, &trace, draft.diagnostics);
  if (trace.bytes_max / 2 >= trace.segment_bytes) return;
  // The file has at least one of the two keys: the defaults fit each other.
  const Entry* bytes_max = written->find("bytes_max");
  const Entry* named = bytes_max != nullptr ? bytes_max : written->find("segment_bytes");
  draft.diagnostics
      .error("G023", named->value.span, "'bytes_max' of [trace] is less than two segments")
      .note(fmt::format("bytes_max = {}, segment_bytes = {}", detail::toml_size(trace.bytes_max),
                        detail::toml_size(trace.segment_bytes)))
      .suggest(fmt::format("write bytes_max = {} or more, or make segments smaller",
                           bytes_text(2 * trace.segment_bytes)));
}

void check_recording(Draft& draft) {
  if (!draft.trace.is_on()) return;
  for (const auto& edge : draft.edges) {
    if (!edge.is_whole() || edge.spec->record_span.is_none()) continue;
    const auto& from = draft.nodes[static_cast<size_t>(edge.from)];
    const auto& output = from.contract->outputs[static_cast<size_t>(edge.output)];
    if (!output.is_recorded || record_policy(draft, edge) >= RecordPolicy::kInput) continue;
    const auto& to = draft.nodes[static_cast<size_t>(edge.to)].spec->name;
    draft.diagnostics
        .warning("G039", edge.spec->record_span,
                 "with record = \"{}\", '{}' cannot be replayed alone", edge.spec->record, to)
        .note(fmt::format("the messages of '{}.{}' cannot be computed again cheaply, or at all",
                          from.spec->name, output.name))
        .suggest("leave 'record' out, or write record = \"payload\"");
  }
}

}  // namespace primerl
