#include "kernels/text/chat/value.h"

#include <algorithm>

namespace primerl::chat {

std::string_view name_of(Kind kind) {
  switch (kind) {
    case Kind::kUndefined:
      return "undefined";
    case Kind::kNone:
      return "none";
    case Kind::kBool:
      return "a truth value";
    case Kind::kInt:
      return "an integer";
    case Kind::kFloat:
      return "a float";
    case Kind::kText:
      return "a string";
    case Kind::kList:
      return "a list";
    case Kind::kTuple:
      return "a tuple";
    case Kind::kDict:
      return "a mapping";
    case Kind::kNamespace:
      return "a namespace";
    case Kind::kLoop:
      return "the variable loop";
    case Kind::kMacro:
      return "a macro";
    case Kind::kFunction:
      return "a function";
  }
  return "a value";
}

void Value::release() {
  if (--as_.counted->num_owners == 0) delete as_.counted;
}

Value Value::real(double number, Origin origin) {
  Value value = scalar(Kind::kFloat, origin, 0);
  value.as_.real = number;
  return value;
}

Value Value::list(std::vector<Value>&& items, Origin origin, Kind kind) {
  auto* list = new List;
  list->items = std::move(items);
  for (const Value& item : list->items) {
    list->nesting = std::max(list->nesting, item.nesting() + 1);
    list->weight += item.weight();
  }
  return counted(kind, list, origin);
}

Value Value::dict(Dict* dict, Origin origin) {
  for (const auto& [key, value] : dict->entries) {
    dict->nesting = std::max(dict->nesting, value.nesting() + 1);
    dict->weight += 1 + value.weight();
  }
  return counted(Kind::kDict, dict, origin);
}

Value Value::name_space(Dict* dict) { return counted(Kind::kNamespace, dict, kFromTemplate); }

Value Value::loop(Loop* loop) { return counted(Kind::kLoop, loop, kFromTemplate); }

Value Value::macro(const MacroNode* macro) {
  Value value = scalar(Kind::kMacro, kFromTemplate, 0);
  value.as_.macro = macro;
  return value;
}

Value Value::function(Function function) {
  return scalar(Kind::kFunction, kFromTemplate, static_cast<int64_t>(function));
}

Origin Value::origin() const { return is_text() ? as_text().summary() : origin_; }

const std::vector<Value>& Value::items() const { return static_cast<List*>(as_.counted)->items; }
Dict& Value::as_dict() const { return *static_cast<Dict*>(as_.counted); }
Loop& Value::as_loop() const { return *static_cast<Loop*>(as_.counted); }

bool Value::is_true() const {
  switch (kind_) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return as_.number != 0;
    case Kind::kFloat:
      return as_.real != 0;
    case Kind::kText:
      return !bytes().empty();
    case Kind::kList:
    case Kind::kTuple:
      return !items().empty();
    case Kind::kDict:
      return !as_dict().entries.empty();
    default:
      return true;
  }
}

uint32_t Value::nesting() const {
  if (is_list()) return static_cast<List*>(as_.counted)->nesting;
  return is_dict() ? as_dict().nesting : 0;
}

uint64_t Value::weight() const {
  if (is_list()) return static_cast<List*>(as_.counted)->weight;
  return is_dict() ? as_dict().weight : 1;
}

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : entries)
    if (name.is_text() && name.bytes() == key) return &value;
  return nullptr;
}

const Value* Dict::find(const Value& key) const {
  if (key.is_text()) return find(key.bytes());
  for (const auto& [name, value] : entries)
    if (equal(name, key)) return &value;
  return nullptr;
}

void Dict::set(Value key, Value value) {
  for (auto& entry : entries)
    if (equal(entry.first, key)) {
      entry.second = std::move(value);
      return;
    }
  entries.emplace_back(std::move(key), std::move(value));
}

bool equal(const Value& a, const Value& b) {
  if (a.is_text() && b.is_text()) return a.bytes() == b.bytes();
  if (a.is_whole() && b.is_whole()) return a.as_int() == b.as_int();
  if (a.is_number() && b.is_number()) return a.as_real() == b.as_real();
  if (a.kind() != b.kind()) return false;
  if (a.is_list())
    return std::equal(a.items().begin(), a.items().end(), b.items().begin(), b.items().end(),
                      equal);
  if (a.is_dict()) {
    const Dict& other = b.as_dict();
    if (a.as_dict().entries.size() != other.entries.size()) return false;
    return std::all_of(a.as_dict().entries.begin(), a.as_dict().entries.end(),
                       [&](const auto& entry) {
                         const Value* found = other.find(entry.first);
                         return found != nullptr && equal(entry.second, *found);
                       });
  }
  if (a.is(Kind::kNamespace)) return &a.as_dict() == &b.as_dict();
  if (a.is(Kind::kMacro)) return &a.as_macro() == &b.as_macro();
  if (a.is(Kind::kFunction)) return a.as_function() == b.as_function();
  return true;  // none and none, undefined and undefined
}

bool compare(const Value& a, const Value& b, int& order) {
  const auto sign = [](auto x, auto y) { return x < y ? -1 : (y < x ? 1 : 0); };
  if (a.is_text() && b.is_text()) {
    order = sign(a.bytes().compare(b.bytes()), 0);
    return true;
  }
  if (a.is_whole() && b.is_whole()) {
    order = sign(a.as_int(), b.as_int());
    return true;
  }
  if (a.is_number() && b.is_number()) {
    order = sign(a.as_real(), b.as_real());
    return true;
  }
  if (!a.is_list() || a.kind() != b.kind()) return false;
  const size_t shared = std::min(a.items().size(), b.items().size());
  for (size_t i = 0; i < shared; ++i) {
    if (equal(a.items()[i], b.items()[i])) continue;
    return compare(a.items()[i], b.items()[i], order);
  }
  order = sign(a.items().size(), b.items().size());
  return true;
}

}  // namespace primerl::chat
