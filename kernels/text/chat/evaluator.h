/// Evaluator: renders a parsed chat template once.
///
/// Internal to this folder: template.h has the interface. One thread, one use. The first fault
/// stops the rendering; functions that return a Value return undefined after it.
#pragma once

#include <bitset>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/base/result.h"
#include "kernels/text/chat/lexer.h"
#include "kernels/text/chat/syntax.h"
#include "kernels/text/chat/value.h"

namespace primerl::chat {

/// A rendering that reaches one of these fails. A step is one node, or one item of a list.
struct RenderLimits {
  int64_t steps_max = 20'000'000;
  int depth_max = 1000;                        // nodes in each other, macro calls included
  size_t output_bytes_max = size_t{64} << 20;  // of the rendered text
  size_t text_bytes_max = size_t{512} << 20;   // of all texts made on the way
};

/// Most items of range(), as in Jinja's sandbox.
inline constexpr size_t kRangeMax = 100'000;

/// A day, for strftime_now.
struct Day {
  int year = 1970;
  int month = 1;
  int day = 1;
};

class Evaluator {
 public:
  Evaluator(const Syntax& syntax, const RenderLimits& limits, Day day)
      : syntax_(syntax), limits_(limits), day_(day) {}

  /// The variables by name; those that the template does not read are left out.
  using Variables = std::vector<std::pair<std::string_view, Value>>;
  Result<TextBuilder> run(const Variables& variables);

  // For filters.cc and methods.cc.
  struct Arguments {
    std::vector<Value> values;
    std::vector<std::pair<std::string_view, Value>> named;
    /// The argument, by position or name; null if it is missing.
    const Value* find(size_t index, std::string_view name) const;
  };
  template <class... Args>
  Value fail(const Expression& at, fmt::format_string<Args...> format, Args&&... args) {
    if (!fault_)
      fault_ = template_error(syntax_.source, at.offset, format, std::forward<Args>(args)...);
    return {};
  }
  bool failed() const { return fault_.has_value(); }
  /// Counts work of a filter or method: items and bytes.
  bool charge(const Expression& at, size_t items, size_t bytes = 0);
  Value apply_filter(const Expression& at, Filter filter, const Value& value, Arguments& arguments);
  bool apply_test(const Expression& at, Test test, const Value& value, const Arguments& arguments);
  Value apply_method(const Expression& at, const Value& object, const Arguments& arguments);
  /// The items of a value that can be iterated.
  std::vector<Value> items_of(const Expression& at, const Value& value);
  Value attribute_of(const Expression& at, const Value& object, std::string_view name);
  Value item_of(const Expression& at, const Value& object, const Value& key);
  bool contains(const Expression& at, const Value& container, const Value& item);

 private:
  enum class Flow : uint8_t { kNormal, kBreak, kContinue };

  // evaluator.cc: statements
  Flow run_block(const Block& block);
  Flow run_statement(const Statement& statement);
  Flow run_if(const Statement& statement);
  Flow run_for(const Statement& statement);
  Flow run_items(const Statement& statement, const LoopItems& items);
  void run_characters(const Statement& statement, const TextRef& text);
  std::vector<Value> filtered(const Statement& statement, const std::vector<Value>& items);
  void run_set(const Statement& statement);
  Flow run_with(const Statement& statement);
  void run_generation(const Statement& statement);
  void print(const Expression& expression);
  Value capture(const Block& block, const std::vector<Inherited>& inherited);
  Value filter_chain(const Expression& chain, Value value);
  void unpack(const Expression& at, const std::vector<Slot>& targets, const Value& value);
  void inherit(const std::vector<Inherited>& inherited);
  Value& at(Slot slot) {
    const auto index = static_cast<size_t>(slot.index);
    return slot.is_local ? locals_[frame_ + index] : globals_[index];
  }
  const Value& constant(int32_t index, std::string_view text);
  template <class... Args>
  void fail_statement(const Statement& at, fmt::format_string<Args...> format, Args&&... args) {
    if (!fault_)
      fault_ = template_error(syntax_.source, at.offset, format, std::forward<Args>(args)...);
  }
  bool check_output(const Statement& at);

  // expressions.cc
  Value evaluate(const Expression& node);
  Value evaluate_node(const Expression& node);
  Value attribute(const Expression& node);
  Value item(const Expression& node);
  /// A method, filter or test.
  Value applied(const Expression& node);
  Value literal(const Expression& node);
  Value add(const Expression& node);
  Value add_two(const Expression& node, const Value& a, const Value& b);
  Value arithmetic(const Expression& node);
  Value whole_arithmetic(const Expression& node, int64_t a, int64_t b, Origin origin);
  Value repeated(const Expression& node, const Value& text, int64_t count);
  Value concatenate(const Expression& node);
  Value compare_chain(const Expression& node);
  Value logic(const Expression& node);
  Value slice(const Expression& node);
  Value slice_of_text(const Expression& node, const Value& text, int64_t start, int64_t stop,
                      int64_t step);
  Value container(const Expression& node);
  Value call(const Expression& node);
  Value call_macro(const Expression& node, const MacroNode& macro, Arguments& arguments);
  Value call_function(const Expression& node, Function function, const Arguments& arguments);
  Value make_namespace(const Expression& node, const Arguments& arguments, bool is_dict);
  Value date(const Expression& node, const Arguments& arguments);
  Range range(const Expression& node, const Arguments& arguments);
  Value range_list(const Expression& node, const Arguments& arguments);
  /// Whether the expression calls range(): a loop over it needs no list of its numbers.
  bool is_range(const Expression& node);
  Value loop_attribute(const Expression& at, const Loop& loop, std::string_view name);
  Arguments arguments_of(const Expression& node);

  const Syntax& syntax_;
  const RenderLimits limits_;
  const Day day_;
  std::optional<Error> fault_;
  int64_t num_steps_ = 0;
  size_t num_text_bytes_ = 0;
  int depth_ = 0;
  Origin mark_ = 0;  // added to all bytes that are printed
  TextBuilder output_;
  TextBuilder* out_ = &output_;
  std::vector<Value> globals_;
  std::vector<Value> locals_;  // frames of the macros that are running
  size_t frame_ = 0;           // of the innermost one
  std::vector<Value> constants_;
  /// For loops that read only their items: the ASCII characters that print nothing.
  std::map<const Statement*, std::bitset<128>> silent_;
};

/// Appends what `{{ value }}` prints.
void append_text(TextBuilder& out, const Value& value, Origin mark = 0);
/// "message.content": the expression as an error names it.
std::string shown(const Expression& node);

}  // namespace primerl::chat
