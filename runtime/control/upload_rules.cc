#include "runtime/control/upload_rules.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "graph/base/suggest.h"
#include "graph/config/tables.h"
#include "graph/config/toml_source.h"

namespace primerl {
namespace {

constexpr std::string_view kFile = "tenant.toml";
constexpr std::string_view kByOperator =
    "the operator adds such a tenant on the machine of the run: primerl-graph tenant add FILE";
constexpr std::array<std::string_view, 5> kNever = {"command", "python", "plugins", "address",
                                                    "include"};

/// Walks one file. The first fault ends it.
class UploadRules {
 public:
  UploadRules(const Catalog& catalog, const UploadedFiles& uploaded)
      : catalog_(catalog), uploaded_(uploaded) {}

  std::optional<ControlFault> check(const Table& root) {
    for (const Entry& entry : root.entries) {
      if (is_refused(entry)) break;
      if (entry.key != "tenant")
        refuse(entry.key_span, fmt::format("a tenant's file has no '{}'", entry.key),
               "one table [tenant.<name>], and nothing else",
               "remove it; all other tables belong to the graph");
    }
    if (fault_) return fault_;
    const Entry* const tenants = root.find("tenant");
    const bool is_one = tenants != nullptr && tenants->value.is_table() &&
                        tenants->value.as_table().entries.size() == 1 &&
                        tenants->value.as_table().entries.front().value.is_table();
    if (!is_one) {
      refuse(tenants == nullptr ? Span() : tenants->key_span, "the file has not exactly one tenant",
             "one table [tenant.<name>]", "send a file for each tenant");
      return fault_;
    }
    const Entry& tenant = tenants->value.as_table().entries.front();
    tenant_ = tenant.key;
    if (uploaded_) files_ = uploaded_(tenant_);
    check_tenant(tenant.value.as_table());
    return fault_;
  }

 private:
  void refuse(const Span& span, std::string what, std::string valid, std::string help) {
    if (fault_) return;
    std::string where(kFile);
    if (!span.is_none()) where += fmt::format(":{}:{}", span.begin.line, span.begin.column);
    fault_ =
        ControlFault{400, std::move(what), std::move(where), std::move(valid), std::move(help)};
  }

  /// Keys that no table of an uploaded file may have.
  bool is_refused(const Entry& entry) {
    if (std::ranges::find(kNever, entry.key) != kNever.end())
      refuse(entry.key_span,
             fmt::format("'{}' is not allowed in a file that comes over HTTP", entry.key),
             "values of the tenant, and environments and rewards of this program",
             std::string(kByOperator));
    return fault_.has_value();
  }

  void check_tenant(const Table& tenant) {
    check_table(tenant, tenant_options(), {"environment", "environments", "reward"});
    check_tasks(tenant);
    const Entry* const mix = tenant.find("environments");
    if (mix == nullptr) return;
    if (!mix->value.is_array()) return refuse_kind(*mix, "a list of tables");
    for (const Value& item : mix->value.as_array()) {
      if (!item.is_table()) return refuse_kind(*mix, "a list of tables");
      check_table(item.as_table(), mix_options(), {"environment", "reward"});
      check_tasks(item.as_table());
    }
  }

  void check_tasks(const Table& table) {
    if (const Entry* environment = table.find("environment"); environment != nullptr)
      check_named(*environment, environment->value, catalog_.environments, environment_options());
    const Entry* const reward = table.find("reward");
    if (reward == nullptr) return;
    if (!reward->value.is_array())
      return check_named(*reward, reward->value, catalog_.rewards, reward_options());
    for (const Value& item : reward->value.as_array())
      check_named(*reward, item, catalog_.rewards, reward_options());
  }

  /// `{ name = "...", ... }`, of an environment or a reward.
  template <class Contract>
  void check_named(const Entry& entry, const Value& value, const std::vector<Contract>& contracts,
                   const OptionSet& own) {
    if (!value.is_table()) return refuse_kind(entry, "a table { name = \"...\" }");
    const Table& table = value.as_table();
    // Its values are the operator's; the usual check finds whether there is one of this name.
    if (table.find("service") != nullptr) {
      std::vector<std::string> names = own.names();
      std::erase(names, "name");
      names.insert(names.begin(), "service");
      return check_table(table, OptionSet(), names);
    }
    const Entry* const name = table.find("name");
    std::vector<std::string> allowed;
    const Contract* found = nullptr;
    for (const Contract& each : contracts) {
      if (each.outside == nullptr) allowed.push_back(each.name);
      if (name != nullptr && name->value.is_string() && each.name == name->value.as_string())
        found = &each;
    }
    if (found == nullptr)
      return refuse(name == nullptr ? entry.key_span : name->value.span,
                    fmt::format("'{}' names nothing that this run has", entry.key),
                    join_names(allowed), "write one of these names");
    if (found->outside != nullptr)
      return refuse(
          name->value.span,
          fmt::format("{} '{}' runs a program or asks a server, which is not allowed in a file "
                      "that comes over HTTP",
                      entry.key, found->name),
          join_names(allowed),
          fmt::format("write {{ service = \"...\" }} with a [service.{}.<name>] of the graph; or "
                      "{}",
                      entry.key, kByOperator));
    std::vector<std::string> names = own.names();
    check_table(table, found->options, names);
  }

  void refuse_kind(const Entry& entry, std::string_view expected) {
    refuse(entry.value.span, fmt::format("'{}' is {}", entry.key, entry.value.kind()),
           std::string(expected), "write it so");
  }

  /// Keys in `apart` are checked elsewhere, or are names and numbers.
  void check_table(const Table& table, const OptionSet& options,
                   const std::vector<std::string>& apart) {
    for (const Entry& entry : table.entries) {
      if (is_refused(entry)) return;
      if (std::ranges::find(apart, entry.key) != apart.end()) continue;
      const OptionField* const field = field_of(options, entry.key);
      if (field == nullptr) {
        std::vector<std::string> names = options.names();
        names.insert(names.end(), apart.begin(), apart.end());
        const std::string near = nearest_name(entry.key, names);
        return refuse(entry.key_span, fmt::format("there is no key '{}' here", entry.key),
                      join_names(names),
                      near.empty() ? "remove it" : fmt::format("did you mean '{}'?", near));
      }
      check_value(entry, *field);
      if (fault_) return;
    }
  }

  static const OptionField* field_of(const OptionSet& options, const std::string& key) {
    for (const OptionField& field : options.fields)
      if (field.name == key ||
          (!field.constraint.other_name.empty() && field.constraint.other_name == key))
        return &field;
    return nullptr;
  }

  void check_value(const Entry& entry, const OptionField& field) {
    const std::string& refers = field.constraint.refers.kind;
    // `path` of an adapter is resolved apart from the options that refer to a file.
    if (refers == "folder" || field.name == "path")
      return refuse(
          entry.key_span,
          fmt::format("'{}' names a file or folder of the machine, which is not allowed in a file "
                      "that comes over HTTP",
                      entry.key),
          "values without paths", std::string(kByOperator));
    if (refers == "file") check_files(entry, entry.value);
    check_texts(entry, entry.value);
    if (field.table == nullptr) return;
    if (entry.value.is_table()) check_table(entry.value.as_table(), *field.table, {});
    if (!entry.value.is_array()) return;
    for (const Value& item : entry.value.as_array())
      if (item.is_table()) check_table(item.as_table(), *field.table, {});
  }

  /// Each is one that came over HTTP for this tenant, by its name alone.
  void check_files(const Entry& entry, const Value& value) {
    if (value.is_array())
      for (const Value& item : value.as_array()) check_files(entry, item);
    if (!value.is_string() || value.as_string().empty()) return;
    if (std::ranges::find(files_, value.as_string()) != files_.end()) return;
    refuse(value.span,
           fmt::format("'{}' names a file, and no file of this name was uploaded for the tenant",
                       entry.key),
           files_.empty() ? std::string("no file: none was uploaded") : join_names(files_),
           fmt::format("send it before, PUT /v1/uploads/{}/NAME; or {}", tenant_, kByOperator));
  }

  /// A NUL ends a text in every call of the system: what was checked would not be what is used.
  void check_texts(const Entry& entry, const Value& value) {
    if (value.is_string() && value.as_string().find('\0') != std::string::npos)
      refuse(value.span, fmt::format("'{}' has a NUL character", entry.key), "text without it",
             "remove \\u0000");
    if (value.is_array())
      for (const Value& item : value.as_array()) check_texts(entry, item);
  }

  const Catalog& catalog_;
  const UploadedFiles& uploaded_;
  std::string tenant_;
  std::vector<std::string> files_;  // that were uploaded for it
  std::optional<ControlFault> fault_;
};

}  // namespace

std::optional<ControlFault> check_upload(std::string_view text, const Catalog& catalog,
                                         const UploadedFiles& uploaded) {
  if (text.size() > kUploadBytesMax)
    return ControlFault{413, fmt::format("the file has {} bytes", text.size()), "body",
                        fmt::format("at most {} bytes", kUploadBytesMax), "send a shorter file"};
  if (text.find('\0') != std::string_view::npos)
    return ControlFault{400, "the file has a NUL byte", std::string(kFile), "TOML text",
                        "remove it"};
  Sources sources;
  Diagnostics diagnostics;
  const SourceId source = sources.add(std::string(kFile), std::string(text));
  const auto root = parse_toml(sources, source, diagnostics);
  if (!root || diagnostics.has_errors()) {
    ControlFault fault{400, "the file is not TOML", std::string(kFile), "TOML text",
                       "see the message"};
    if (!diagnostics.all().empty()) {
      const Diagnostic& first = diagnostics.all().front();
      fault.error = first.message;
      fault.where += fmt::format(":{}:{}", first.span.begin.line, first.span.begin.column);
      if (!first.help.empty()) fault.help = first.help;
    }
    return fault;
  }
  return UploadRules(catalog, uploaded).check(*root);
}

}  // namespace primerl
