#include "graph/check/names.h"

#include <algorithm>
#include <filesystem>

#include "graph/base/file_digest.h"

namespace primerl {
namespace {

std::string listed(const std::vector<std::string>& names) {
  return names.empty() ? "none" : join_names(names);
}

}  // namespace

bool is_reported(Draft& draft, const std::string& what, Span span) {
  constexpr size_t kNotesMax = 4;
  const auto told = draft.missing.find(what);
  if (told == draft.missing.end()) return false;
  if (told->second->notes.size() < kNotesMax && !draft.sources.is_built_in(span))
    told->second->note(fmt::format("also named at {}:{}:{}", draft.sources.get(span.source).name,
                                   span.begin.line, span.begin.column));
  return true;
}

void remember_report(Draft& draft, const std::string& what, Diagnostic& found) {
  draft.missing.emplace(what, &found);
}

void resolve_files(const OptionSet& options, const Table& table, void* bound,
                   const std::string& what, Draft& draft) {
  for (const auto& field : options.fields) {
    const Entry* entry = table.find(field.name);
    if (entry == nullptr) continue;
    if (field.table != nullptr && entry->value.is_table())
      resolve_files(*field.table, entry->value.as_table(), field.nested(bound), what, draft);
    const std::string& kind = field.constraint.refers.kind;
    if (kind != "file" && kind != "folder") continue;
    const auto resolve = [&](std::string& name, const Value& value) {
      if (name.empty()) return;
      name = absolute_path(draft.file, value);
      std::error_code fault;
      if (kind == "file" ? std::filesystem::is_regular_file(name, fault)
                         : std::filesystem::is_directory(name, fault))
        return;
      draft.diagnostics.error("G046", value.span, "'{}' of {} is not a {}", field.name, what, kind)
          .note(fmt::format("looked for '{}'", name));
    };
    if (field.reference && entry->value.is_string()) resolve(*field.reference(bound), entry->value);
    if (!field.references || !entry->value.is_array()) continue;
    auto& names = *field.references(bound);
    for (size_t i = 0; i < names.size(); ++i) resolve(names[i], entry->value.as_array()[i]);
  }
}

void note_digests(const OptionSet& options, const Table& table, void* bound, Draft& draft) {
  for (const auto& field : options.fields) {
    const OptionField* digest = options.find(field.name + "_sha256");
    const OptionField* size = options.find(field.name + "_bytes");
    if (digest == nullptr || table.find(digest->name) != nullptr) continue;
    const std::vector<std::string> names =
        field.references ? *field.references(bound) : std::vector{*field.reference(bound)};
    Value::Array digests, sizes;
    for (const std::string& name : names) {
      if (name.empty()) continue;
      auto found = file_digest(name);
      if (!found.ok()) {
        draft.diagnostics.error("G046", table.span, "{}", found.error().message());
        return;
      }
      digests.emplace_back(std::move(found->sha256), Span());
      sizes.emplace_back(found->bytes, Span());
    }
    if (digests.empty()) continue;
    const bool is_list = static_cast<bool>(field.references);
    digest->assign(bound, is_list ? Value(std::move(digests), Span()) : digests.front());
    if (size != nullptr && table.find(size->name) == nullptr)
      size->assign(bound, is_list ? Value(std::move(sizes), Span()) : sizes.front());
  }
}

std::optional<Span> quoted_span(const Table& table, const Error& fault) {
  const auto is_quoted = [&](const std::string& key) {
    return fault.message().find(fmt::format("'{}'", key)) != std::string::npos;
  };
  std::optional<Span> whole;  // of a table whose key is quoted, without the key in it
  for (const Entry& entry : table.entries) {
    if (is_quoted(entry.key)) return entry.value.span;
    if (!entry.value.is_table()) continue;
    for (const Entry& nested : entry.value.as_table().entries)
      if (is_quoted(fmt::format("{}.{}", entry.key, nested.key))) return nested.value.span;
    if (!whole && fault.message().find(fmt::format("'{}.", entry.key)) != std::string::npos)
      whole = entry.value.span;
  }
  return whole;
}

void refuse_options(Draft& draft, const Table& table, Span span, const std::string& what,
                    const Error& fault) {
  span = quoted_span(table, fault).value_or(span);
  auto& found =
      draft.diagnostics.error("G085", span, "{} refuses its options: {}", what, fault.message());
  for (const auto& note : fault.notes()) found.note(note);
}

Span value_span(const NamedTable& spec, std::string_view key) {
  const Entry* entry = spec.table->find(key);
  return entry != nullptr ? entry->value.span : spec.name_span;
}

Span nested_span(const NamedTable& spec, std::string_view path) {
  const Table* table = spec.table;
  Span span = spec.name_span;
  while (table != nullptr && !path.empty()) {
    const size_t dot = std::min(path.find('.'), path.size());
    const Entry* entry = table->find(path.substr(0, dot));
    if (entry == nullptr) break;
    span = entry->value.span;
    table = entry->value.is_table() ? &entry->value.as_table() : nullptr;
    path.remove_prefix(std::min(dot + 1, path.size()));
  }
  return span;
}

const Entry* nested_entry(const NamedTable& spec, std::string_view path) {
  const Table* table = spec.table;
  const Entry* entry = nullptr;
  while (!path.empty()) {
    const size_t dot = std::min(path.find('.'), path.size());
    entry = table == nullptr ? nullptr : table->find(path.substr(0, dot));
    if (entry == nullptr) return nullptr;
    table = entry->value.is_table() ? &entry->value.as_table() : nullptr;
    path.remove_prefix(std::min(dot + 1, path.size()));
  }
  return entry;
}

Span written_span(const Draft& draft, std::initializer_list<Span> spans) {
  for (const Span& span : spans)
    if (!span.is_none() && !draft.sources.is_built_in(span)) return span;
  return *spans.begin();
}

Span place_span(const Draft& draft, const DraftResource& resource) {
  for (const int32_t user : resource.users) {
    const int32_t place = draft.nodes[static_cast<size_t>(user)].place;
    if (place >= 0 && static_cast<size_t>(place) < draft.places.size())
      return draft.places[static_cast<size_t>(place)].spec->name_span;
  }
  return {};
}

std::string write_help(const Draft& draft, std::string_view kind, const NamedTable& spec,
                       std::string_view line) {
  if (!draft.sources.is_built_in(spec.name_span)) return fmt::format("write {}", line);
  return fmt::format("add a table [{}.{}] with {}", kind, spec.name, line);
}

std::string text_of(const Table& table, std::string_view key) {
  const Entry* entry = table.find(key);
  return entry != nullptr && entry->value.is_string() ? entry->value.as_string() : std::string();
}

Table only(const Table& table, const std::vector<std::string>& keys) {
  Table some;
  some.span = table.span;
  for (const auto& entry : table.entries)
    if (std::find(keys.begin(), keys.end(), entry.key) != keys.end()) some.entries.push_back(entry);
  return some;
}

int32_t find_model_index(Draft& draft, const std::string& name, Span span, std::string_view what) {
  std::vector<std::string> known;
  for (const auto& model : draft.models) known.push_back(model.spec->name);
  for (size_t i = 0; i < known.size(); ++i)
    if (known[i] == name || (name.empty() && known.size() == 1)) return static_cast<int32_t>(i);
  // It may be the missing model that other places name.
  const auto told = draft.missing.lower_bound("model '");
  if (name.empty() && known.empty() && told != draft.missing.end() &&
      told->first.rfind("model '", 0) == 0)
    return -1;
  if (name.empty() && known.empty()) {
    const std::string any = "any model";  // one table would serve all that need a model
    if (draft.missing.contains(any)) return -1;
    auto& found = draft.diagnostics.error("G018", span, "{} names no model", what);
    found.suggest("add a table [model.policy] with path = \"a Hugging Face folder\"");
    remember_report(draft, any, found);
    return -1;
  }
  // Each of them may be the one that was meant, so none is reported as unused.
  if (!name.empty() || draft.sources.is_built_in(span))
    for (auto& model : draft.models) model.is_named = true;
  if (name.empty()) {
    draft.diagnostics.error("G018", span, "{} names no model", what)
        .note(fmt::format("models: {}", join_names(known)))
        .suggest(fmt::format("write model = \"{}\"", known.front()));
    return -1;
  }
  const std::string missing = fmt::format("model '{}'", name);
  if (is_reported(draft, missing, span)) return -1;
  auto& found = draft.diagnostics.error("G014", span, "{} names model '{}', which does not exist",
                                        what, name);
  remember_report(draft, missing, found);
  found.note(fmt::format("models: {}", listed(known)));
  suggest_name(found, name, known);
  return -1;
}

int32_t find_resource_index(Draft& draft, const std::string& name, std::string_view kind, Span span,
                            std::string_view what, std::string_view option) {
  std::vector<std::string> known, of_kind;
  int32_t last = -1;
  for (size_t i = 0; i < draft.resources.size(); ++i) {
    const auto& resource = draft.resources[i];
    known.push_back(resource.spec->name);
    if (resource.common.kind == kind) {
      of_kind.push_back(resource.spec->name);
      last = static_cast<int32_t>(i);
    }
    if (resource.spec->name != name) continue;
    // A resource whose kind could not be read may be of any kind.
    if (resource.common.kind == kind || resource.contract == nullptr)
      return static_cast<int32_t>(i);
    of_kind.clear();
    // Several nodes of a built-in loop name the resource; its `kind` in the file is the fault.
    const bool is_implied = draft.sources.is_built_in(span);
    const std::string wrong = fmt::format("kind of resource '{}'", name);
    if (is_implied && is_reported(draft, wrong, span)) return -1;
    auto& found = draft.diagnostics.error(
        "G040", written_span(draft, {span, value_span(*resource.spec, "kind")}),
        "'{}' of {} must be of kind '{}', but '{}' is of kind '{}'", option, what, kind, name,
        resource.common.kind);
    if (is_implied) remember_report(draft, wrong, found);
    draft.doubtful_kinds.push_back(resource.common.kind);
    for (const auto& other : draft.resources)
      if (other.common.kind == kind) of_kind.push_back(other.spec->name);
    found.note(fmt::format("resources of kind '{}': {}", kind, listed(of_kind)));
    return -1;
  }
  if (name.empty() && of_kind.size() == 1) return last;
  const bool is_known = std::all_of(draft.resources.begin(), draft.resources.end(),
                                    [](const auto& resource) { return resource.contract; });
  if (name.empty() && of_kind.empty() && !is_known)
    return -1;  // it may be the resource that has
                // errors
  if (name.empty()) {
    auto& found = draft.diagnostics.error("G018", span, "{} names no {}", what, kind);
    if (of_kind.empty())
      found.suggest(fmt::format("add a table [resource.{}] with kind = \"{}\"", option, kind));
    else
      found.note(fmt::format("resources of kind '{}': {}", kind, join_names(of_kind)))
          .suggest(fmt::format("write {} = \"{}\"", option, of_kind.front()));
    return -1;
  }
  const std::string missing = fmt::format("resource '{}'", name);
  if (is_reported(draft, missing, span)) return -1;
  auto& found = draft.diagnostics.error(
      "G013", span, "'{}' of {} names resource '{}', which does not exist", option, what, name);
  remember_report(draft, missing, found);
  found.note(fmt::format("resources of kind '{}': {}", kind, listed(of_kind)));
  suggest_name(found, name, known);
  return -1;
}

}  // namespace primerl
