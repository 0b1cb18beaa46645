/// The syntax tree of a chat template. Immutable after parse_template(); any thread.
///
/// Names are resolved to slots while parsing. A scope (a loop, a macro, a captured block) has slots
/// of its own for the names that it sets; when it is entered, they are copied from the scope around
/// it, as Jinja does.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/base/result.h"

namespace primerl::chat {

inline constexpr size_t kTemplateBytesMax = size_t{1} << 20;
inline constexpr int kSyntaxDepthMax = 200;  // of blocks and expressions in each other

/// A variable: of the template, or of the macro that is running.
struct Slot {
  bool is_local = false;  // of a macro
  int32_t index = -1;
};

struct Statement;
using Block = std::vector<std::unique_ptr<Statement>>;

enum class Op : uint8_t {
  kConstant,
  kText,
  kName,
  kAttribute,  // operands[0].text
  kItem,       // operands[0][operands[1]]
  kSlice,      // operands[0][operands[1]:operands[2]:operands[3]]; null: left out
  kCall,       // operands[0](operands[1], ...)
  kMethod,     // operands[0].text(operands[1], ...)
  kFilter,     // operands[0] | filter(operands[1], ...); operands[0] is null in a filter block
  kTest,       // operands[0] is test(operands[1], ...)
  kNot,
  kNegative,
  kPositive,
  kAnd,
  kOr,
  kCompare,  // operands[0] compares[0] operands[1] compares[1] ...
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kConcatenate,
  kCondition,  // operands[1] if operands[0] else operands[2]; null: undefined
  kList,
  kTuple,
  kDict  // key, value, key, value, ...
};

enum class Compare : uint8_t {
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn
};

enum class Filter : uint8_t;
enum class Test : uint8_t;
enum class Method : uint8_t;

struct Expression {
  Expression() = default;
  Expression(const Expression&) = delete;
  Expression& operator=(const Expression&) = delete;
  ~Expression();  // without recursion: a chain of operators may be long

  Op op = Op::kConstant;
  uint32_t offset = 0;    // in the source
  std::string text;       // of kText; name of kName, kAttribute, kMethod
  int32_t constant = -1;  // of kText: number of the constant, for the evaluator's cache
  enum class Literal : uint8_t { kNone, kFalse, kTrue, kInt, kFloat } literal = Literal::kNone;
  int64_t integer = 0;
  double real = 0;
  Slot slot;
  uint8_t callee = 0;  // the Filter, Test or Method
  std::vector<Compare> compares;
  std::vector<std::unique_ptr<Expression>> operands;
  std::vector<std::pair<std::string, std::unique_ptr<Expression>>> named;  // arguments
};
using ExpressionPtr = std::unique_ptr<Expression>;

/// A variable that a scope sets, and where its first value comes from.
struct Inherited {
  Slot from;
  Slot to;
};

enum class StatementKind : uint8_t {
  kData,
  kPrint,
  kIf,            // conditions[i] -> blocks[i]; the last block may have no condition
  kFor,           // blocks[0]; blocks[1]: else
  kSet,           // targets = expression
  kSetAttribute,  // slot.text = expression
  kCapture,       // targets[0] = blocks[0], through the filters in expression
  kFilter,        // prints blocks[0] through the filters in expression
  kWith,          // targets[i] = conditions[i]; blocks[0]
  kMacro,
  kGeneration,  // blocks[0]
  kBreak,
  kContinue
};

struct MacroNode {
  std::string name;
  struct Parameter {
    std::string name;
    Slot slot;
    ExpressionPtr fallback;  // null: undefined
  };
  std::vector<Parameter> parameters;
  int32_t num_slots = 0;
  Block body;
  std::vector<Inherited> inherited;
};

struct Statement {
  StatementKind kind = StatementKind::kData;
  uint32_t offset = 0;
  std::string text;  // of kData; name of an attribute
  int32_t constant = -1;
  ExpressionPtr expression;
  std::vector<ExpressionPtr> conditions;
  std::vector<Slot> targets;
  Slot slot;                // kSetAttribute: the namespace; kFor: `loop`; kMacro: its name
  ExpressionPtr loop_test;  // kFor: `if`
  bool unpacks = false;     // kFor, kSet: several targets get the items of one value
  /// kFor: the `if` that is the whole body. If its condition is false for one item, it is false for
  /// all that follow, since it depends on nothing that changes then. Null: none.
  const Statement* guard = nullptr;
  /// kFor: the body only prints, from the item and what is constant: equal items print the same.
  bool only_prints_items = false;
  /// kFor: and it reads no other variable, so that it prints the same for an item in every run.
  bool reads_only_items = false;
  std::vector<Block> blocks;
  std::vector<Inherited> inherited;  // of blocks[0]
  MacroNode macro;
};

struct Syntax {
  std::string source;  // normalized
  Block body;
  /// Slots of the template that have no scope: what the caller gives, and what the template sets.
  std::vector<std::pair<std::string, int32_t>> globals;
  int32_t num_slots = 0;
  int32_t num_constants = 0;
  bool has_generation = false;
};

/// Parses a template; whatever is not supported is named, with line and column.
Result<Syntax> parse_template(std::string_view source);

/// Sets `guard`, `only_prints_items` and `reads_only_items` of a loop that is parsed.
void find_loop_shortcuts(Statement& loop);

/// Names of filters, tests and methods; false if it is not supported (filters.cc, methods.cc).
bool find_filter(std::string_view name, Filter& filter);
bool find_test(std::string_view name, Test& test);
bool find_method(std::string_view name, Method& method);
/// All names, for errors.
std::vector<std::string> filter_names();
std::vector<std::string> test_names();

}  // namespace primerl::chat
