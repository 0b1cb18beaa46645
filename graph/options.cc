#include "graph/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "graph/base/suggest.h"
#include "graph/option_text.h"

namespace primerl {
namespace {

Constraint bounded(std::optional<double> min, bool min_excluded, std::optional<double> max,
                   bool max_excluded) {
  Constraint constraint;
  constraint.min = min;
  constraint.max = max;
  constraint.min_excluded = min_excluded;
  constraint.max_excluded = max_excluded;
  return constraint;
}

/// The expected kind of value: "an integer", "a duration such as \"30s\"".
std::string_view expected(OptionType type) {
  switch (type) {
    case OptionType::kBool:
      return "true or false";
    case OptionType::kInteger:
      return "an integer";
    case OptionType::kNumber:
      return "a number";
    case OptionType::kString:
      return "a string";
    case OptionType::kDuration:
      return "a duration such as \"30s\"";
    case OptionType::kBytes:
      return "a size such as \"2GiB\", or a whole number of bytes";
    case OptionType::kStringList:
      return "a list of strings";
    case OptionType::kIntegerList:
      return "a list of integers";
    case OptionType::kTable:
      return "a table";
    case OptionType::kTableList:
      return "a list of tables";
  }
  return "another kind of value";
}

bool is_list(OptionType type) {
  return type == OptionType::kStringList || type == OptionType::kIntegerList ||
         type == OptionType::kTableList;
}

bool is_item(OptionType list, const Value& item) {
  if (list == OptionType::kTableList) return item.is_table();
  return list == OptionType::kStringList ? item.is_string() : item.is_integer();
}

bool has_type(OptionType type, const Value& value) {
  switch (type) {
    case OptionType::kBool:
      return value.is_bool();
    case OptionType::kInteger:
      return value.is_integer();
    case OptionType::kNumber:
      return value.is_number();
    case OptionType::kString:
    case OptionType::kDuration:
      return value.is_string();
    case OptionType::kBytes:
      return value.is_integer() || value.is_string();
    case OptionType::kTable:
      return value.is_table();
    case OptionType::kStringList:
    case OptionType::kIntegerList:
    case OptionType::kTableList:
      break;
  }
  if (!value.is_array()) return false;
  const auto& items = value.as_array();
  return std::all_of(items.begin(), items.end(),
                     [type](const Value& item) { return is_item(type, item); });
}

/// One binding of one table: its name in errors, and where findings go.
struct Binder {
  std::string_view what;
  Diagnostics& diagnostics;

  bool check_range(const OptionField& field, double number, std::string_view shown, Span span) {
    const Constraint& constraint = field.constraint;
    const bool low = constraint.min && (constraint.min_excluded ? number <= *constraint.min
                                                                : number < *constraint.min);
    const bool high = constraint.max && (constraint.max_excluded ? number >= *constraint.max
                                                                 : number > *constraint.max);
    if (!std::isfinite(number)) return refuse_range(field, shown, span, "a finite number");
    if ((!low && !high) || (constraint.zero_is_apart && number == 0)) return true;
    std::string range = constraint_text(constraint, field.type);
    // Even an obvious limit is stated when a value exceeds it.
    const std::string most = high ? limit_text(field.type, *constraint.max) : "";
    if (high && range.find(most) == std::string::npos)
      range += fmt::format("{}at most {}", range.empty() ? "" : ", ", most);
    return refuse_range(field, shown, span, range);
  }

  bool refuse_range(const OptionField& field, std::string_view shown, Span span,
                    std::string_view range) {
    diagnostics
        .error("G023", span, "'{}' of {} is {}, which is out of range", field.name, what, shown)
        .note(fmt::format("'{}' must be {}", field.name, range));
    return false;
  }

  bool check_choice(const OptionField& field, const Value& item) {
    const auto& choices = field.constraint.choices;
    const std::string& text = item.as_string();
    if (choices.empty() || std::find(choices.begin(), choices.end(), text) != choices.end())
      return true;
    auto& found = diagnostics.error("G024", item.span, "'{}' is not a valid choice for '{}' of {}",
                                    text, field.name, what);
    found.note(fmt::format("choices: {}", join_names(choices)));
    if (const auto near = nearest_name(text, choices); !near.empty())
      found.suggest(fmt::format("did you mean '{}'?", near));
    return false;
  }

  bool check_duration(const OptionField& field, const Value& value) {
    const auto duration = parse_duration(value.as_string());
    if (duration.ok()) {
      // Divided, not multiplied by 1e-9, so that whole seconds stay whole.
      const double seconds = static_cast<double>(duration->to_nanoseconds()) / 1e9;
      return check_range(field, seconds, value.as_string(), value.span);
    }
    diagnostics
        .error("G022", value.span, "'{}' of {} is not a duration: {}", field.name, what,
               duration.error().message())
        .note("durations need a unit: \"250ms\", \"30s\", \"5m\", \"2h\"");
    return false;
  }

  bool check_bytes(const OptionField& field, const Value& value) {
    if (value.is_integer())
      return check_range(field, static_cast<double>(value.as_integer()),
                         std::to_string(value.as_integer()), value.span);
    const auto bytes = parse_bytes(value.as_string());
    if (bytes.ok())
      return check_range(field, static_cast<double>(*bytes), value.as_string(), value.span);
    diagnostics
        .error("G022", value.span, "'{}' of {} is not a size: {}", field.name, what,
               bytes.error().message())
        .note("a size is a whole number of bytes, or has a unit: \"512MiB\", \"2GiB\", \"1.5GB\"");
    return false;
  }

  /// Reports the first item of the wrong type; there must be one.
  bool refuse_item(const OptionField& field, const Value::Array& items) {
    const auto wrong = std::find_if(items.begin(), items.end(),
                                    [&](const Value& item) { return !is_item(field.type, item); });
    diagnostics.error("G021", wrong->span, "'{}' of {} must be {}, but item {} is {}", field.name,
                      what, expected(field.type), wrong - items.begin() + 1, wrong->kind());
    return false;
  }

  bool check_type(const OptionField& field, const Value& value) {
    if (has_type(field.type, value)) return true;
    if (field.type == OptionType::kDuration && value.is_number()) {
      diagnostics.error("G022", value.span, "'{}' of {} has no unit", field.name, what)
          .note("durations need a unit: \"250ms\", \"30s\", \"5m\", \"2h\"")
          .suggest(fmt::format("write {} = \"{}s\" if you meant seconds", field.name,
                               number_text(value.as_number())));
      return false;
    }
    if (value.is_array() && is_list(field.type)) return refuse_item(field, value.as_array());
    auto& found = diagnostics.error("G021", value.span, "'{}' of {} must be {}, not {}", field.name,
                                    what, expected(field.type), value.kind());
    if (!field.default_text.empty()) found.note(fmt::format("default: {}", field.default_text));
    return false;
  }

  bool check(const OptionField& field, const Value& value) {
    if (!check_type(field, value)) return false;
    const Constraint& constraint = field.constraint;
    switch (field.type) {
      case OptionType::kInteger:
        return check_range(field, static_cast<double>(value.as_integer()),
                           std::to_string(value.as_integer()), value.span);
      case OptionType::kNumber:
        return check_range(field, value.as_number(), fmt::format("{}", value.as_number()),
                           value.span);
      case OptionType::kDuration:
        return check_duration(field, value);
      case OptionType::kBytes:
        return check_bytes(field, value);
      case OptionType::kString:
        if (!check_choice(field, value)) return false;
        if (constraint.min || constraint.max)
          return check_range(field, static_cast<double>(value.as_string().size()),
                             fmt::format("{} bytes long", value.as_string().size()), value.span);
        return true;
      case OptionType::kStringList:
      case OptionType::kIntegerList:
      case OptionType::kTableList: {
        bool all = true;
        if (field.type == OptionType::kStringList)
          for (const auto& item : value.as_array()) all = check_choice(field, item) && all;
        if (!all) return false;
        if (constraint.min || constraint.max)
          return check_range(field, static_cast<double>(value.as_array().size()),
                             fmt::format("{} items long", value.as_array().size()), value.span);
        return true;
      }
      default:
        return true;
    }
  }
};

/// The name that was probably meant; a name that the table lacks is preferred.
std::string meant_name(const Table& table, std::string_view key,
                       const std::vector<std::string>& known) {
  std::vector<std::string> missing;
  for (const auto& name : known)
    if (table.find(name) == nullptr) missing.push_back(name);
  std::string near = nearest_name(key, missing);
  return near.empty() ? nearest_name(key, known) : near;
}

/// Renames entries that use the other name of an option. If a table has both names, the one that
/// was written last counts, as in an overlay or a flag; one text with both is an error.
void use_own_names(Table& table, std::string_view what, const OptionSet& options,
                   Diagnostics& diagnostics) {
  for (const auto& field : options.fields) {
    const std::string& other = field.constraint.other_name;
    Entry* renamed = other.empty() ? nullptr : table.find(other);
    if (renamed == nullptr) continue;
    Entry* own = table.find(field.name);
    if (own != nullptr) {
      if (own->key_span.source == renamed->key_span.source)
        diagnostics
            .error("G002", renamed->key_span, "'{}' and '{}' of {} are one option", other,
                   field.name, what)
            .suggest(fmt::format("keep '{}'", field.name));
      // Entries are in the order in which they were written last.
      Entry* earlier = std::min(own, renamed);
      table.entries.erase(table.entries.begin() + (earlier - table.entries.data()));
      renamed = table.find(other);
    }
    if (renamed != nullptr) renamed->key = field.name;
  }
}

void refuse_moved(Table& table, std::string_view what, const std::vector<MovedOption>& moved,
                  Diagnostics& diagnostics) {
  for (const auto& option : moved) {
    const Entry* written = table.find(option.name);
    if (written == nullptr) continue;
    diagnostics.error("G020", written->key_span, "'{}' is no key of {} any more", option.name, what)
        .suggest(option.where);
    table.entries.erase(table.entries.begin() + (written - table.entries.data()));
  }
}

}  // namespace

Constraint operator|(Constraint a, const Constraint& b) {
  if (b.min) {
    a.min = b.min;
    a.min_excluded = b.min_excluded;
  }
  if (b.max) {
    a.max = b.max;
    a.max_excluded = b.max_excluded;
  }
  a.zero_is_apart = a.zero_is_apart || b.zero_is_apart;
  if (!b.choices.empty()) a.choices = b.choices;
  if (!b.unit.empty()) a.unit = b.unit;
  if (!b.refers.kind.empty()) a.refers = b.refers;
  a.required = a.required || b.required;
  if (!b.other_name.empty()) a.other_name = b.other_name;
  return a;
}

Constraint any() { return {}; }
Constraint at_least(double min) { return bounded(min, false, std::nullopt, false); }
Constraint above(double min) { return bounded(min, true, std::nullopt, false); }
Constraint between(double min, double max) { return bounded(min, false, max, false); }
Constraint above_up_to(double min, double max) { return bounded(min, true, max, false); }
Constraint from_below(double min, double max) { return bounded(min, false, max, true); }

Constraint zero_or(Constraint range) {
  range.zero_is_apart = true;
  return range;
}

Constraint count_from(double min) { return between(min, kCountMax); }

Constraint one_of(std::vector<std::string> choices) {
  Constraint constraint;
  constraint.choices = std::move(choices);
  return constraint;
}

Constraint unit(std::string name) {
  Constraint constraint;
  constraint.unit = std::move(name);
  return constraint;
}

Constraint refers_to(std::string kind) {
  Constraint constraint;
  constraint.refers.kind = std::move(kind);
  return constraint;
}

Constraint also_named(std::string name) {
  Constraint constraint;
  constraint.other_name = std::move(name);
  return constraint;
}

Constraint required() {
  Constraint constraint;
  constraint.required = true;
  return constraint;
}

const OptionField* OptionSet::find(std::string_view name) const {
  for (const auto& field : fields)
    if (field.name == name) return &field;
  return nullptr;
}

std::vector<std::string> OptionSet::names() const {
  std::vector<std::string> names;
  names.reserve(fields.size());
  for (const auto& field : fields) names.push_back(field.name);
  return names;
}

void correct_keys(Table& table, std::string_view what, const std::vector<std::string>& known,
                  Diagnostics& diagnostics) {
  const auto is_known = [&known](const Entry& entry) {
    return std::find(known.begin(), known.end(), entry.key) != known.end();
  };
  for (auto& entry : table.entries) {
    if (is_known(entry)) continue;
    auto& found =
        diagnostics.error("G020", entry.key_span, "{} has no option '{}'", what, entry.key);
    if (known.empty())
      found.note("it has no options");
    else
      found.note(fmt::format("options: {}", join_names(known)));
    const auto near = meant_name(table, entry.key, known);
    if (near.empty()) continue;
    found.suggest(fmt::format("did you mean '{}'?", near));
    if (table.find(near) != nullptr) continue;
    entry.key = near;
    entry.is_guess = true;
  }
  std::erase_if(table.entries, [&](const Entry& entry) { return !is_known(entry); });
}

void correct_key(Table& table, std::string_view what, const OptionField& field,
                 const std::vector<std::string>& others, Diagnostics& diagnostics) {
  if (table.find(field.name) != nullptr) return;
  const std::vector<std::string> wanted = {field.name};
  for (auto& entry : table.entries) {
    if (std::find(others.begin(), others.end(), entry.key) != others.end()) continue;
    if (!entry.value.is_string() || nearest_name(entry.key, wanted).empty()) continue;
    diagnostics.error("G020", entry.key_span, "{} has no option '{}'", what, entry.key)
        .note(fmt::format("it needs '{}': {}", field.name, field.doc))
        .suggest(fmt::format("did you mean '{}'?", field.name));
    entry.key = field.name;
    entry.is_guess = true;
    return;
  }
}

void OptionSet::bind(Table& table, std::string_view what, const std::vector<std::string>& ignore,
                     void* options, Diagnostics& diagnostics) const {
  refuse_moved(table, what, moved, diagnostics);
  use_own_names(table, what, *this, diagnostics);
  auto known = names();
  known.insert(known.end(), ignore.begin(), ignore.end());
  correct_keys(table, what, known, diagnostics);
  for (auto& entry : table.entries) {
    if (std::find(ignore.begin(), ignore.end(), entry.key) != ignore.end()) continue;
    const OptionField* field = find(entry.key);
    // A corrected key was reported already: its value is used if it is valid, else ignored
    // silently.
    Diagnostics unsaid;
    Binder binder{what, entry.is_guess ? unsaid : diagnostics};
    if (!binder.check(*field, entry.value)) continue;
    if (field->type == OptionType::kTableList) {
      auto& tables = entry.value.as_array();
      const auto items = field->items(options, tables.size());
      for (size_t i = 0; i < tables.size(); ++i)
        field->table->bind(tables[i].as_table(),
                           fmt::format("'{}[{}]' of {}", field->name, i, what), {}, items[i],
                           diagnostics);
    } else if (field->type == OptionType::kTable)
      field->table->bind(entry.value.as_table(), fmt::format("'{}' of {}", field->name, what), {},
                         field->nested(options), diagnostics);
    else
      field->assign(options, entry.value);
  }
  for (const auto& field : fields)
    if (field.constraint.required && table.find(field.name) == nullptr)
      diagnostics.error("G025", table.span, "{} needs '{}'", what, field.name).note(field.doc);
}

namespace detail {

std::string toml_text(const std::string& value) {
  std::string text = "\"";
  for (const char c : value) {
    switch (c) {
      case '"':
        text += "\\\"";
        break;
      case '\\':
        text += "\\\\";
        break;
      case '\n':
        text += "\\n";
        break;
      case '\t':
        text += "\\t";
        break;
      case '\r':
        text += "\\r";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
          text += fmt::format("\\u{:04X}", static_cast<unsigned>(static_cast<unsigned char>(c)));
        else
          text += c;
    }
  }
  return text + "\"";
}

std::string toml_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::string text = fmt::format("{}", value);
  // A TOML float has a decimal point or an exponent.
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string toml_text(const std::vector<std::string>& values) {
  std::string text = "[";
  for (size_t i = 0; i < values.size(); ++i) text += (i > 0 ? ", " : "") + toml_text(values[i]);
  return text + "]";
}

std::string toml_size(int64_t bytes) {
  const std::string number = std::to_string(bytes);
  if (bytes <= 0) return number;
  const std::string text = bytes_text(bytes);
  return text == number + "B" ? number : toml_text(text);
}

std::string tables_text(const OptionSet& set, const std::vector<const void*>& items) {
  std::vector<std::string> tables;
  for (const void* item : items) {
    std::vector<std::string> parts;
    for (const auto& field : set.fields)
      parts.push_back(fmt::format("{} = {}", field.name, field.print(item)));
    tables.push_back(fmt::format("{{ {} }}", fmt::join(parts, ", ")));
  }
  return fmt::format("[{}]", fmt::join(tables, ", "));
}

std::string toml_text(const std::vector<int64_t>& values) {
  return fmt::format("[{}]", fmt::join(values, ", "));
}

}  // namespace detail
}  // namespace primerl
