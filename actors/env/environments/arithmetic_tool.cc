#include "actors/env/environments/arithmetic_tool.h"

#include <charconv>
#include <optional>
#include <string_view>

namespace primerl {
namespace {

struct Expression {
  int64_t left = 0;
  char sign = '+';
  int64_t right = 0;
};

std::string to_text(const Expression& expression) {
  return fmt::format("{}{}{}", expression.left, expression.sign, expression.right);
}

int64_t value_of(const Expression& expression) {
  switch (expression.sign) {
    case '-':
      return expression.left - expression.right;
    case '*':
      return expression.left * expression.right;
    default:
      return expression.left + expression.right;
  }
}

/// Removes a number from the front of `text`. At most kOperandMax, so that a multiplication fits
/// into 64 bits.
std::optional<int64_t> take_number(std::string_view& text) {
  int64_t number = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (fault != std::errc() || text.front() == '-' || number > kOperandMax) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

std::optional<Expression> parse_expression(std::string_view text) {
  Expression expression;
  const auto left = take_number(text);
  if (!left || text.empty()) return std::nullopt;
  expression.sign = text.front();
  if (expression.sign != '+' && expression.sign != '-' && expression.sign != '*')
    return std::nullopt;
  text.remove_prefix(1);
  const auto right = take_number(text);
  if (!right || !text.empty()) return std::nullopt;
  expression.left = *left;
  expression.right = *right;
  return expression;
}

bool is_call(std::string_view action) { return action.substr(0, 2) == "c:"; }

/// The expression of a call such as `c:12+34=`; empty if it cannot be parsed.
std::optional<Expression> parse_call(std::string_view action) {
  if (!is_call(action) || action.back() != '=') return std::nullopt;
  return parse_expression(action.substr(2, action.size() - 3));
}

class ArithmeticTool final : public Environment {
 public:
  explicit ArithmeticTool(const ArithmeticToolOptions& options) : options_(options) {}

  Result<EnvironmentTask> task(uint64_t, RandomStream random) override {
    const auto operands = static_cast<uint64_t>(options_.operand_max) + 1;
    Expression expression;
    expression.left = static_cast<int64_t>(random.below(operands));
    expression.right = static_cast<int64_t>(random.below(operands));
    expression.sign = options_.operators[random.below(options_.operators.size())];
    return EnvironmentTask{"a:" + to_text(expression) + ">", std::to_string(value_of(expression))};
  }

  Result<EnvironmentStep> step(const EnvironmentTask& task,
                               const std::vector<std::string>& actions) override {
    if (actions.empty()) return error(Code::kInvalid, "a step needs an action");
    const std::string asked = asked_in(task);
    if (asked.empty())
      return error(Code::kInvalid, "task '{}' is not a task of this environment", task.prompt);
    bool has_called = false;
    for (size_t turn = 0; turn < actions.size(); ++turn) {
      const std::string& action = actions[turn];
      if (!is_call(action)) return judged(has_called, action == task.answer);
      const auto call = parse_call(action);
      has_called = has_called || (call && to_text(*call) == asked);
    }
    if (actions.size() >= static_cast<size_t>(options_.turns_max)) return judged(has_called, false);
    const auto call = parse_call(actions.back());
    return EnvironmentStep{call ? std::to_string(value_of(*call)) + ">" : "?>", 0, false};
  }

  std::vector<std::string> demonstration(const EnvironmentTask& task) const override {
    return {"c:" + asked_in(task) + "=", task.answer};
  }

 private:
  /// `12+34` for the prompt `a:12+34>`; empty when the prompt is too short.
  static std::string asked_in(const EnvironmentTask& task) {
    if (task.prompt.size() < 3) return "";
    return task.prompt.substr(2, task.prompt.size() - 3);
  }

  EnvironmentStep judged(bool has_called, bool is_right) const {
    if (!has_called) return {"", 0, true};
    return {"", is_right ? 1 : options_.call_reward, true};
  }

  const ArithmeticToolOptions options_;
};

Status validate(const ArithmeticToolOptions& options) {
  if (options.operators.empty() || options.operators.find_first_not_of("+-*") != std::string::npos)
    return error(Code::kInvalid, "'operators' is '{}'", options.operators)
        .note("valid operators are '+', '-' and '*'");
  if (options.operand_max < 0 || options.operand_max > kOperandMax)
    return error(Code::kInvalid, "'operand_max' {} is not in [0, {}]", options.operand_max,
                 kOperandMax);
  if (options.turns_max < 2 || options.turns_max > kToolTurnsMax)
    return error(Code::kInvalid, "'turns_max' {} is not in [2, {}]", options.turns_max,
                 kToolTurnsMax)
        .note("a call and an answer need two turns");
  if (!(options.call_reward >= 0 && options.call_reward < 1))
    return error(Code::kInvalid, "'call_reward' {} is not in [0, 1)", options.call_reward);
  return ok();
}

}  // namespace

Result<std::unique_ptr<Environment>> make_arithmetic_tool(const ArithmeticToolOptions& options) {
  RETURN_IF_ERROR(validate(options));
  return std::unique_ptr<Environment>(std::make_unique<ArithmeticTool>(options));
}

}  // namespace primerl
