/// Look-up of names, with errors that say what was meant and which names exist.
#pragma once

#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/suggest.h"
#include "graph/check/draft.h"

namespace primerl {

inline void suggest_name(Diagnostic& found, std::string_view word,
                         std::span<const std::string> known) {
  if (const auto near = nearest_name(word, known); !near.empty())
    found.suggest(fmt::format("did you mean '{}'?", near));
}

/// Whether `what` ("node 'x'") was reported as missing already; then this place is added as a note.
bool is_reported(Draft& draft, const std::string& what, Span span);
/// Remembers the finding that reported `what`.
void remember_report(Draft& draft, const std::string& what, Diagnostic& found);

/// The position of the value of `key`, or else of the table's name.
Span value_span(const NamedTable& spec, std::string_view key);

/// The position of the value of "sampling.temperature", or of the innermost part that the file has.
Span nested_span(const NamedTable& spec, std::string_view path);

/// The entry "sampling.temperature"; null if the file does not have it.
const Entry* nested_entry(const NamedTable& spec, std::string_view path);

/// The first of these positions that is in a text of the user; without one, the first of all.
Span written_span(const Draft& draft, std::initializer_list<Span> spans);

/// The name of the first place with a node that uses the resource; none without [place].
Span place_span(const Draft& draft, const DraftResource& resource);

/// "write max_inflight = 8"; for a table that only a built-in graph has, "add a table
/// [node.rollout] with max_inflight = 8". `kind` is "node" or "resource".
std::string write_help(const Draft& draft, std::string_view kind, const NamedTable& spec,
                       std::string_view line);

/// The string at `key`; empty if there is none.
std::string text_of(const Table& table, std::string_view key);

/// Makes the path of each refers_to("file") and refers_to("folder") option absolute, so that it
/// means the same in every process and folder. A path is relative to the file that has it. Reports
/// G046 if there is no such file or folder. `table` was bound to `bound`; `what` is "node 'x'".
void resolve_files(const OptionSet& options, const Table& table, void* bound,
                   const std::string& what, Draft& draft);

/// Fills the empty options "X_sha256" and "X_bytes" with SHA-256 and size of the files that option
/// "X" names, so that a record says what was in them. Reports G046 if one cannot be read.
void note_digests(const OptionSet& options, const Table& table, void* bound, Draft& draft);

/// The position of the option of `table` that `fault` quotes, 'x' or 'x.y'; empty: of none.
std::optional<Span> quoted_span(const Table& table, const Error& fault);

/// Reports G085: each option of `table` is in its range, but they do not fit together. The position
/// is the option that `fault` quotes, else `span`.
void refuse_options(Draft& draft, const Table& table, Span span, const std::string& what,
                    const Error& fault);

/// A table with only these keys, for a table whose other keys cannot be known.
Table only(const Table& table, const std::vector<std::string>& keys);

/// Index of the model called `name`; empty = the only one. -1 after an error (G014, G018).
int32_t find_model_index(Draft& draft, const std::string& name, Span span, std::string_view what);

/// Index of the resource called `name` of `kind`; empty = the only one of that kind. -1 after an
/// error (G013, G018, G040). `option` is the key that names it.
int32_t find_resource_index(Draft& draft, const std::string& name, std::string_view kind, Span span,
                            std::string_view what, std::string_view option);

}  // namespace primerl
