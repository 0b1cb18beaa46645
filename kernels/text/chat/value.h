/// Value: what an expression of a chat template evaluates to, as in Python.
///
/// Immutable except for namespaces. Texts know the origin of every byte, and numbers, truth values
/// and containers know one origin, so nothing that is printed loses it. One thread: a value belongs
/// to one rendering.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/text/chat/text.h"

namespace primerl::chat {

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kText,
  kList,
  kTuple,
  kDict,
  kNamespace,
  kLoop,
  kMacro,
  kFunction
};

/// "a string", "a list", ... for errors.
std::string_view name_of(Kind kind);

/// Functions that every template may call.
enum class Function : uint8_t { kRange, kNamespace, kDict, kRaise, kDate };

struct List;
struct Dict;
struct Loop;
struct MacroNode;

class Value {
 public:
  Value() { as_.number = 0; }
  Value(const Value& other) : kind_(other.kind_), origin_(other.origin_), as_(other.as_) {
    if (is_counted()) ++as_.counted->num_owners;
  }
  Value(Value&& other) noexcept : kind_(other.kind_), origin_(other.origin_), as_(other.as_) {
    other.kind_ = Kind::kUndefined;
  }
  Value& operator=(Value other) noexcept {
    std::swap(kind_, other.kind_);
    std::swap(origin_, other.origin_);
    std::swap(as_, other.as_);
    return *this;
  }
  ~Value() {
    if (is_counted()) release();
  }

  static Value none(Origin origin = kFromTemplate) { return scalar(Kind::kNone, origin, 0); }
  static Value truth(bool value, Origin origin = kFromTemplate) {
    return scalar(Kind::kBool, origin, value ? 1 : 0);
  }
  static Value integer(int64_t value, Origin origin = kFromTemplate) {
    return scalar(Kind::kInt, origin, value);
  }
  static Value real(double value, Origin origin = kFromTemplate);
  static Value text(const TextRef& text) { return counted(Kind::kText, text.get(), kFromTemplate); }
  static Value text(std::string bytes, Origin origin) {
    return text(text_of(std::move(bytes), origin));
  }
  /// Lists and tuples; `items` is empty afterwards.
  static Value list(std::vector<Value>&& items, Origin origin = kFromTemplate,
                    Kind kind = Kind::kList);
  static Value dict(Dict* dict, Origin origin = kFromTemplate);
  static Value name_space(Dict* dict);
  static Value loop(Loop* loop);
  static Value macro(const MacroNode* macro);
  static Value function(Function function);

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_text() const { return kind_ == Kind::kText; }
  bool is_list() const { return kind_ == Kind::kList || kind_ == Kind::kTuple; }
  bool is_dict() const { return kind_ == Kind::kDict; }
  bool is_number() const {
    return kind_ == Kind::kInt || kind_ == Kind::kBool || kind_ == Kind::kFloat;
  }
  bool is_whole() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }
  /// The origin of a value; of a text, data if any of its bytes is.
  Origin origin() const;

  // Each only for its kind.
  int64_t as_int() const { return as_.number; }
  double as_real() const { return kind_ == Kind::kFloat ? as_.real : double(as_.number); }
  Text& as_text() const { return *static_cast<Text*>(as_.counted); }
  TextRef text_ref() const { return TextRef(&as_text()); }
  std::string_view bytes() const { return as_text().bytes; }
  const std::vector<Value>& items() const;
  Dict& as_dict() const;
  Loop& as_loop() const;
  const MacroNode& as_macro() const { return *as_.macro; }
  Function as_function() const { return static_cast<Function>(as_.number); }

  bool is_true() const;
  /// Levels of containers; at most kNestingMax.
  uint32_t nesting() const;
  /// Values in it, itself included; one that is in it twice counts twice. At most kWeightMax.
  uint64_t weight() const;

 private:
  void release();
  bool is_counted() const { return kind_ >= Kind::kText && kind_ <= Kind::kLoop; }
  static Value scalar(Kind kind, Origin origin, int64_t number) {
    Value value;
    value.kind_ = kind;
    value.origin_ = origin;
    value.as_.number = number;
    return value;
  }
  static Value counted(Kind kind, Counted* counted, Origin origin) {
    Value value;
    value.kind_ = kind;
    value.origin_ = origin;
    value.as_.counted = counted;
    ++counted->num_owners;
    return value;
  }

  Kind kind_ = Kind::kUndefined;
  Origin origin_ = kFromTemplate;
  union {
    int64_t number;
    double real;
    Counted* counted;
    const MacroNode* macro;
  } as_;
};

inline constexpr uint32_t kNestingMax = 128;
inline constexpr uint64_t kWeightMax = 10'000'000;

struct List final : public Counted {
  std::vector<Value> items;
  uint32_t nesting = 1;
  uint64_t weight = 1;
};

/// Keys in the order in which they were set. Keys are texts and numbers.
struct Dict final : public Counted {
  std::vector<std::pair<Value, Value>> entries;
  uint32_t nesting = 1;
  uint64_t weight = 1;

  const Value* find(std::string_view key) const;
  const Value* find(const Value& key) const;
  void set(Value key, Value value);
};

/// The numbers of range(): start, start + step, ...
struct Range {
  int64_t start = 0;
  int64_t step = 1;
  int64_t count = 0;

  int64_t operator[](int64_t index) const { return start + index * step; }
};

/// The items of a loop: those of a list, or numbers, which need no list.
struct LoopItems {
  const std::vector<Value>* list = nullptr;  // null: `range`
  Range range;

  int64_t size() const {
    return list != nullptr ? static_cast<int64_t>(list->size()) : range.count;
  }
  Value operator[](int64_t index) const {
    return list != nullptr ? (*list)[static_cast<size_t>(index)] : Value::integer(range[index]);
  }
};

/// The variable `loop`.
struct Loop final : public Counted {
  const LoopItems* items = nullptr;  // null: the loop has ended
  int64_t index = 0;                 // from 0
  int64_t depth = 1;
};

/// Whether two values are equal in Python: 1 == 1.0 == True, a list is no tuple.
bool equal(const Value& a, const Value& b);
/// Sets `order` to -1, 0 or 1; false if Python does not order the two.
bool compare(const Value& a, const Value& b, int& order);

}  // namespace primerl::chat
