/// Options: makes a checked, documented TOML table from a plain C++ struct of defaults.
///
///   auto options = OptionsOf<RouterOptions>()
///       .field("policy", &RouterOptions::policy, one_of({"round_robin", "random"}), "how an engine
///       is chosen") .field("sessions_max", &RouterOptions::sessions_max, at_least(1), "sessions
///       remembered");
///
/// One registry drives parser, errors, `--help`, generated docs, JSON Schema and completion. The
/// struct's own initialisers are the defaults; they are stated nowhere else.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/byte_size.h"
#include "graph/base/clock.h"
#include "graph/config/diagnostic.h"
#include "graph/value.h"

namespace primerl {

enum class OptionType {
  kBool,
  kInteger,
  kNumber,
  kString,
  kDuration,
  kBytes,  // a whole number with unit("bytes"): 4096 or "2GiB"
  kStringList,
  kIntegerList,
  kTable,
  kTableList  // a list of tables, each with the options of `table`
};

/// The kind of thing that a string option names. `check` resolves it; an empty string means the
/// only one that exists.
struct Refers {
  std::string kind;  // "model", "resource:engine", "environment", ... empty = plain text
};

/// Range and choices of one option. Combine with `|`: `at_least(1) | unit("tokens")`.
struct Constraint {
  std::optional<double> min, max;
  bool min_excluded = false, max_excluded = false;
  bool zero_is_apart = false;  // 0 is valid too, below `min`
  std::vector<std::string> choices;
  std::string unit;
  Refers refers;
  bool required = false;
  std::string other_name;  // a second name that files may use for the option
};

Constraint operator|(Constraint a, const Constraint& b);
Constraint any();
Constraint at_least(double min);
Constraint above(double min);
Constraint between(double min, double max);      // both included
Constraint above_up_to(double min, double max);  // (min, max]
Constraint from_below(double min, double max);   // [min, max)
Constraint zero_or(Constraint range);            // 0, or in a range above it
/// For counts that are multiplied with others: whole numbers up to kCountMax.
Constraint count_from(double min);
inline constexpr double kCountMax = 2147483648.0;  // 2^31
Constraint one_of(std::vector<std::string> choices);
Constraint unit(std::string name);
Constraint refers_to(std::string kind);
Constraint required();
/// The option may also be written under this name; values are resolved under its own.
Constraint also_named(std::string name);
/// For example "from 1 to 8 tokens", "above 0", "one of a and b"; empty if every value is valid.
std::string constraint_text(const Constraint& constraint, OptionType type);

struct OptionSet;

struct OptionField {
  std::string name;
  OptionType type = OptionType::kString;
  Constraint constraint;
  std::string doc;
  std::string default_text;          // as TOML, from the struct's initialiser
  std::shared_ptr<OptionSet> table;  // for a kTable or kTableList option
  /// Stores a value whose type and constraint were checked.
  std::function<void(void* options, const Value& value)> assign;
  /// The current value of a bound struct as TOML text, for `show --resolved`.
  std::function<std::string(const void* options)> print;
  /// The string that a `refers` option has now; otherwise an empty function.
  std::function<std::string*(void* options)> reference;
  /// The same for a list of strings.
  std::function<std::vector<std::string>*(void* options)> references;
  /// The nested struct of a kTable option.
  std::function<void*(void* options)> nested;
  /// For a kTableList option: makes its list as long as this, of structs with the defaults, and
  /// returns them.
  std::function<std::vector<void*>(void* options, size_t count)> items;
};

/// An option that was moved elsewhere; a file that has it is refused.
struct MovedOption {
  std::string name;
  std::string where;  // what to write instead
};

/// The fields of one struct, type-erased.
struct OptionSet {
  std::vector<OptionField> fields;
  std::vector<MovedOption> moved;
  std::function<std::shared_ptr<void>()> make;  // a struct with the defaults

  const OptionField* find(std::string_view name) const;
  std::vector<std::string> names() const;
  /// Checks every entry of `table` (unknown keys, types, units, ranges: codes G02x) and assigns the
  /// valid ones to `options`. `what` names the table in errors ("node 'router'"). Keys in `ignore`
  /// are read elsewhere. Misspelt keys are corrected in place, see correct_keys; other names of an
  /// option are replaced by its own.
  void bind(Table& table, std::string_view what, const std::vector<std::string>& ignore,
            void* options, Diagnostics& diagnostics) const;
};

/// Reports the unknown keys of `table` (G020), each with the nearest known key. If the table lacks
/// that key, the entry is renamed to it, so that later rules read what was meant and one mistake
/// gives one error. Other unknown entries are removed.
void correct_keys(Table& table, std::string_view what, const std::vector<std::string>& known,
                  Diagnostics& diagnostics);

/// The same for the one key that determines which others exist (`actor` of a node, `kind` of a
/// resource), before those are known: a string entry with a similar key is renamed to it.
void correct_key(Table& table, std::string_view what, const OptionField& field,
                 const std::vector<std::string>& others, Diagnostics& diagnostics);

namespace detail {

template <class M>
OptionType option_type() {
  if constexpr (std::is_same_v<M, bool>)
    return OptionType::kBool;
  else if constexpr (std::is_integral_v<M>)
    return OptionType::kInteger;
  else if constexpr (std::is_floating_point_v<M>)
    return OptionType::kNumber;
  else if constexpr (std::is_same_v<M, Duration>)
    return OptionType::kDuration;
  else if constexpr (std::is_same_v<M, std::vector<std::string>>)
    return OptionType::kStringList;
  else if constexpr (std::is_same_v<M, std::vector<int64_t>>)
    return OptionType::kIntegerList;
  else {
    static_assert(std::is_same_v<M, std::string>,
                  "an option is a bool, number, string, Duration or list of strings or int64_t");
    return OptionType::kString;
  }
}

/// The string quoted and escaped as a TOML basic string.
std::string toml_text(const std::string& value);
std::string toml_text(double value);
std::string toml_text(const std::vector<std::string>& values);
std::string toml_text(const std::vector<int64_t>& values);
/// "[{ a = 1 }, { a = 2 }]": bound structs of one set, without nested tables.
std::string tables_text(const OptionSet& set, const std::vector<const void*>& items);
/// A size: "8GiB" in quotes if a unit divides it, else the number.
std::string toml_size(int64_t bytes);
template <class M>
std::string print_option(const M& value) {
  if constexpr (std::is_same_v<M, bool>)
    return value ? "true" : "false";
  else if constexpr (std::is_integral_v<M>)
    return std::to_string(value);
  else if constexpr (std::is_floating_point_v<M>)
    return toml_text(static_cast<double>(value));
  else if constexpr (std::is_same_v<M, Duration>)
    return toml_text(to_string(value));
  else
    return toml_text(value);
}

template <class M>
void assign_option(M& target, const Value& value) {
  if constexpr (std::is_same_v<M, bool>)
    target = value.as_bool();
  else if constexpr (std::is_integral_v<M>)
    target =
        static_cast<M>(value.is_string() ? *parse_bytes(value.as_string()) : value.as_integer());
  else if constexpr (std::is_floating_point_v<M>)
    target = static_cast<M>(value.as_number());
  else if constexpr (std::is_same_v<M, Duration>)
    target = *parse_duration(value.as_string());
  else if constexpr (std::is_same_v<M, std::string>)
    target = value.as_string();
  else {
    target.clear();
    for (const auto& item : value.as_array()) {
      if constexpr (std::is_same_v<M, std::vector<int64_t>>)
        target.push_back(item.as_integer());
      else
        target.push_back(item.as_string());
    }
  }
}

}  // namespace detail

/// Builds an OptionSet for struct S.
template <class S>
class OptionsOf {
 public:
  OptionsOf() {
    set_.make = [] { return std::static_pointer_cast<void>(std::make_shared<S>()); };
  }
  template <class M>
  OptionsOf&& field(std::string name, M S::*member, Constraint constraint, std::string doc) && {
    OptionField field;
    field.name = std::move(name);
    field.type = detail::option_type<M>();
    if constexpr (std::is_integral_v<M> && !std::is_same_v<M, bool>) {
      const double lowest = static_cast<double>(std::numeric_limits<M>::min());
      const double highest = static_cast<double>(std::numeric_limits<M>::max());
      if (!constraint.min) constraint.min = lowest;
      if (!constraint.max) constraint.max = highest;
      if (constraint.unit == "bytes") field.type = OptionType::kBytes;
    }
    // In seconds. The bound keeps sums and multiples within a Duration.
    if constexpr (std::is_same_v<M, Duration>)
      if (!constraint.max) constraint.max = kCountMax;
    field.constraint = std::move(constraint);
    field.doc = std::move(doc);
    const auto print = [type = field.type](const M& value) {
      if constexpr (std::is_integral_v<M>)
        if (type == OptionType::kBytes) return detail::toml_size(static_cast<int64_t>(value));
      return detail::print_option(value);
    };
    field.default_text = print(S().*member);
    field.assign = [member](void* options, const Value& value) {
      detail::assign_option(static_cast<S*>(options)->*member, value);
    };
    field.print = [member, print](const void* options) {
      return print(static_cast<const S*>(options)->*member);
    };
    if constexpr (std::is_same_v<M, std::string>)
      if (!field.constraint.refers.kind.empty())
        field.reference = [member](void* options) { return &(static_cast<S*>(options)->*member); };
    if constexpr (std::is_same_v<M, std::vector<std::string>>)
      if (!field.constraint.refers.kind.empty())
        field.references = [member](void* options) { return &(static_cast<S*>(options)->*member); };
    set_.fields.push_back(std::move(field));
    return std::move(*this);
  }
  template <class M>
  OptionsOf&& table(std::string name, M S::*member, OptionSet fields, std::string doc) && {
    OptionField field;
    field.name = std::move(name);
    field.type = OptionType::kTable;
    field.doc = std::move(doc);
    field.table = std::make_shared<OptionSet>(std::move(fields));
    field.nested = [member](void* options) -> void* {
      return &(static_cast<S*>(options)->*member);
    };
    set_.fields.push_back(std::move(field));
    return std::move(*this);
  }
  /// A list of at most `count_max` tables.
  template <class M>
  OptionsOf&& tables(std::string name, std::vector<M> S::*member, size_t count_max,
                     OptionSet fields, std::string doc) && {
    OptionField field;
    field.name = std::move(name);
    field.type = OptionType::kTableList;
    field.constraint = between(0, static_cast<double>(count_max));
    field.doc = std::move(doc);
    field.default_text = "[]";
    field.table = std::make_shared<OptionSet>(std::move(fields));
    field.print = [member, set = field.table](const void* options) {
      std::vector<const void*> items;
      for (const M& item : static_cast<const S*>(options)->*member) items.push_back(&item);
      return detail::tables_text(*set, items);
    };
    field.items = [member](void* options, size_t count) {
      auto& list = static_cast<S*>(options)->*member;
      list.assign(count, M());
      std::vector<void*> items;
      for (M& item : list) items.push_back(&item);
      return items;
    };
    set_.fields.push_back(std::move(field));
    return std::move(*this);
  }
  operator OptionSet() && { return std::move(set_); }
  OptionSet take() && { return std::move(set_); }

 private:
  OptionSet set_;
};

}  // namespace primerl
