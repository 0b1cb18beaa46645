/// Value: a value of a graph file with its position. A TOML document without toml++ types;
/// `graph/config/toml_source` makes it, `check` and option binding read it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "graph/base/assert.h"

namespace primerl {

/// Names a text that errors can point into: a graph file, an overlay, or a `--set` flag.
using SourceId = uint32_t;

struct Position {
  uint32_t line = 0;    // from 1; 0 = no position
  uint32_t column = 0;  // from 1, in bytes
};

struct Span {
  SourceId source = 0;
  Position begin;
  Position end;  // one past the last character
  bool is_none() const { return begin.line == 0; }
};

class Value;
struct Entry;

/// Keys in the order of the file, without duplicates (the parser refuses them).
struct Table {
  std::vector<Entry> entries;
  Span span;
  const Entry* find(std::string_view key) const;
  Entry* find(std::string_view key);
};

class Value {
 public:
  using Array = std::vector<Value>;

  Value() = default;
  template <class T>
  Value(T value, Span where) : span(where), value_(std::move(value)) {}

  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_integer() const { return std::holds_alternative<int64_t>(value_); }
  bool is_number() const { return is_integer() || std::holds_alternative<double>(value_); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_table() const { return std::holds_alternative<Table>(value_); }
  /// "an integer", "a string", ... for error texts.
  std::string_view kind() const;

  bool as_bool() const { return get<bool>(); }
  int64_t as_integer() const { return get<int64_t>(); }
  double as_number() const {
    return is_integer() ? static_cast<double>(as_integer()) : get<double>();
  }
  const std::string& as_string() const { return get<std::string>(); }
  const Array& as_array() const { return get<Array>(); }
  Array& as_array() { return const_cast<Array&>(std::as_const(*this).as_array()); }
  const Table& as_table() const { return get<Table>(); }
  Table& as_table() { return const_cast<Table&>(std::as_const(*this).as_table()); }

  Span span;

 private:
  template <class T>
  const T& get() const {
    const T* found = std::get_if<T>(&value_);
    CHECK(found != nullptr, "a value was read as another kind");
    return *found;
  }
  std::variant<std::monostate, bool, int64_t, double, std::string, Array, Table> value_;
};

struct Entry {
  std::string key;
  Span key_span;
  Value value;
  bool is_guess = false;  // the key was misspelt and reported; `key` is the one that was meant
};

}  // namespace primerl
