// The expressions of a chat template.
#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/text/chat/evaluator.h"
#include "kernels/text/unicode.h"

namespace primerl::chat {
namespace {

std::string_view symbol_of(Op op) {
  switch (op) {
    case Op::kAdd:
      return "+";
    case Op::kSubtract:
      return "-";
    case Op::kMultiply:
      return "*";
    case Op::kDivide:
      return "/";
    case Op::kFloorDivide:
      return "//";
    case Op::kModulo:
      return "%";
    default:
      return "**";
  }
}

double real_arithmetic(Op op, double a, double b) {
  switch (op) {
    case Op::kSubtract:
      return a - b;
    case Op::kMultiply:
      return a * b;
    case Op::kDivide:
      return a / b;
    case Op::kFloorDivide:
      return std::floor(a / b);
    case Op::kModulo:
      return a - b * std::floor(a / b);
    case Op::kPower:
      return std::pow(a, b);
    default:
      return a + b;
  }
}

}  // namespace

std::string shown(const Expression& node) {
  if (node.op == Op::kName) return node.text;
  if (node.op == Op::kText) return "'" + node.text + "'";
  if (node.op == Op::kAttribute) return shown(*node.operands[0]) + "." + node.text;
  if (node.op == Op::kItem && node.operands[1]->op == Op::kText)
    return shown(*node.operands[0]) + "['" + node.operands[1]->text + "']";
  return "the value";
}

Value Evaluator::evaluate(const Expression& node) {
  if (failed()) return {};
  if (++num_steps_ > limits_.steps_max)
    return fail(node, "the template needs more than {} steps", limits_.steps_max);
  if (++depth_ > limits_.depth_max) {
    --depth_;
    return fail(node, "expressions and macro calls are nested deeper than {}", limits_.depth_max);
  }
  Value value = node.op == Op::kName ? at(node.slot) : evaluate_node(node);
  --depth_;
  if (!value.is_list() && !value.is_dict()) return value;
  if (value.weight() > kWeightMax)
    return fail(node, "a list or mapping has more than {} values", kWeightMax);
  if (value.nesting() > kNestingMax)
    return fail(node, "lists and mappings are nested deeper than {}", kNestingMax);
  return value;
}

Value Evaluator::evaluate_node(const Expression& node) {
  switch (node.op) {
    case Op::kConstant:
      return literal(node);
    case Op::kText:
      return constant(node.constant, node.text);
    case Op::kName:
      return at(node.slot);
    case Op::kAttribute:
      return attribute(node);
    case Op::kItem:
      return item(node);
    case Op::kSlice:
      return slice(node);
    case Op::kCall:
      return call(node);
    case Op::kMethod:
    case Op::kFilter:
    case Op::kTest:
      return applied(node);
    case Op::kCompare:
      return compare_chain(node);
    case Op::kConcatenate:
      return concatenate(node);
    case Op::kAdd:
      return add(node);
    case Op::kList:
    case Op::kTuple:
    case Op::kDict:
      return container(node);
    case Op::kNot:
    case Op::kAnd:
    case Op::kOr:
    case Op::kCondition:
      return logic(node);
    default:
      return arithmetic(node);
  }
}

Value Evaluator::attribute(const Expression& node) {
  const Value object = evaluate(*node.operands[0]);
  if (failed()) return {};
  if (object.is(Kind::kUndefined))
    return fail(node, "'{}' is undefined, so it has no '{}'", shown(*node.operands[0]), node.text);
  return attribute_of(node, object, node.text);
}

Value Evaluator::item(const Expression& node) {
  const Value object = evaluate(*node.operands[0]);
  const Value key = evaluate(*node.operands[1]);
  if (failed()) return {};
  if (object.is(Kind::kUndefined))
    return fail(node, "'{}' is undefined, so it has no items", shown(*node.operands[0]));
  return item_of(node, object, key);
}

Value Evaluator::applied(const Expression& node) {
  const Value value = evaluate(*node.operands[0]);
  Arguments arguments = arguments_of(node);
  if (failed()) return {};
  if (node.op == Op::kMethod) return apply_method(node, value, arguments);
  if (node.op == Op::kFilter)
    return apply_filter(node, static_cast<Filter>(node.callee), value, arguments);
  return Value::truth(apply_test(node, static_cast<Test>(node.callee), value, arguments));
}

Value Evaluator::literal(const Expression& node) {
  switch (node.literal) {
    case Expression::Literal::kNone:
      return Value::none();
    case Expression::Literal::kFalse:
      return Value::truth(false);
    case Expression::Literal::kTrue:
      return Value::truth(true);
    case Expression::Literal::kInt:
      return Value::integer(node.integer);
    case Expression::Literal::kFloat:
      return Value::real(node.real);
  }
  return {};
}

Value Evaluator::logic(const Expression& node) {
  if (node.op == Op::kNot) {
    const Value operand = evaluate(*node.operands[0]);
    return Value::truth(!operand.is_true(), operand.is_text() ? kFromTemplate : operand.origin());
  }
  if (node.op == Op::kCondition) {
    const bool is_true = evaluate(*node.operands[0]).is_true();
    const Expression* chosen = node.operands[is_true ? 1 : 2].get();
    return chosen == nullptr ? Value() : evaluate(*chosen);
  }
  Value value;
  for (const auto& operand : node.operands) {
    value = evaluate(*operand);
    if (failed() || value.is_true() == (node.op == Op::kOr)) break;
  }
  return value;
}

Value Evaluator::add_two(const Expression& node, const Value& a, const Value& b) {
  if (a.is_text() && b.is_text()) {
    if (!charge(node, 1, a.bytes().size() + b.bytes().size())) return {};
    TextBuilder text;
    text.append(a.as_text());
    text.append(b.as_text());
    return Value::text(std::move(text).finish());
  }
  if (a.is_list() && a.kind() == b.kind()) {
    if (!charge(node, a.items().size() + b.items().size())) return {};
    std::vector<Value> items = a.items();
    items.insert(items.end(), b.items().begin(), b.items().end());
    return Value::list(std::move(items), joined(a.origin(), b.origin()), a.kind());
  }
  if (a.is_whole() && b.is_whole())
    return whole_arithmetic(node, a.as_int(), b.as_int(), joined(a.origin(), b.origin()));
  if (a.is_number() && b.is_number())
    return Value::real(a.as_real() + b.as_real(), joined(a.origin(), b.origin()));
  return fail(node, "{} and {} cannot be added", name_of(a.kind()), name_of(b.kind()));
}

Value Evaluator::add(const Expression& node) {
  Value sum = evaluate(*node.operands[0]);
  size_t next = 1;
  if (sum.is_text() && node.operands.size() > 2) {
    TextBuilder text;
    text.append(sum.as_text());
    for (; next < node.operands.size(); ++next) {
      const Value operand = evaluate(*node.operands[next]);
      if (failed()) return {};
      if (!operand.is_text())
        return fail(*node.operands[next], "a string and {} cannot be added",
                    operand.is(Kind::kUndefined) ? shown(*node.operands[next]) + ", undefined,"
                                                 : std::string(name_of(operand.kind())));
      if (!charge(node, 1, operand.bytes().size())) return {};
      text.append(operand.as_text());
    }
    return Value::text(std::move(text).finish());
  }
  for (; next < node.operands.size() && !failed(); ++next) {
    const Value operand = evaluate(*node.operands[next]);
    if (failed()) return {};
    sum = add_two(*node.operands[next], sum, operand);
  }
  return sum;
}

Value Evaluator::concatenate(const Expression& node) {
  TextBuilder text;
  for (const auto& operand : node.operands) {
    const Value value = evaluate(*operand);
    if (failed()) return {};
    const size_t before = text.size();
    append_text(text, value);
    if (!charge(node, 1, text.size() - before)) return {};
  }
  return Value::text(std::move(text).finish());
}

Value Evaluator::repeated(const Expression& node, const Value& value, int64_t count) {
  count = std::max<int64_t>(count, 0);
  const size_t size = value.is_text() ? value.bytes().size() : value.items().size();
  // The size is bounded before it is multiplied.
  if (size > 0 && static_cast<size_t>(count) > limits_.text_bytes_max / size)
    return fail(node, "the template makes more than {} bytes of text", limits_.text_bytes_max);
  const size_t total = size * static_cast<size_t>(count);
  if (!charge(node, value.is_text() ? 1 : total, value.is_text() ? total : 0)) return {};
  if (!value.is_text()) {
    std::vector<Value> items;
    for (int64_t i = 0; i < count && size > 0; ++i)
      items.insert(items.end(), value.items().begin(), value.items().end());
    return Value::list(std::move(items), value.origin(), value.kind());
  }
  TextBuilder text;
  for (int64_t i = 0; i < count && size > 0; ++i) text.append(value.as_text());
  return Value::text(std::move(text).finish());
}

Value Evaluator::whole_arithmetic(const Expression& node, int64_t a, int64_t b, Origin origin) {
  int64_t result = 0;
  bool overflows = false;
  switch (node.op) {
    case Op::kSubtract:
      overflows = __builtin_sub_overflow(a, b, &result);
      break;
    case Op::kMultiply:
      overflows = __builtin_mul_overflow(a, b, &result);
      break;
    case Op::kFloorDivide:
    case Op::kModulo: {
      if (b == 0) return fail(node, "the divisor is 0");
      if (b == -1) {
        overflows = node.op == Op::kFloorDivide && __builtin_sub_overflow(int64_t{0}, a, &result);
        break;
      }
      const int64_t rest = a % b;
      const bool rounds = rest != 0 && (rest < 0) != (b < 0);
      result = node.op == Op::kModulo ? (rounds ? rest + b : rest) : a / b - (rounds ? 1 : 0);
      break;
    }
    case Op::kPower:
      result = 1;
      if (b < 0) return Value::real(std::pow(double(a), double(b)), origin);
      if (b > 63 && (a > 1 || a < -1)) overflows = true;
      for (int64_t i = 0; i < b % 64 + (b >= 64 ? 64 : 0) && !overflows; ++i)
        overflows = __builtin_mul_overflow(result, a, &result);
      break;
    default:
      overflows = __builtin_add_overflow(a, b, &result);
  }
  if (overflows) return fail(node, "the result of '{}' has more than 64 bits", symbol_of(node.op));
  return Value::integer(result, origin);
}

Value Evaluator::arithmetic(const Expression& node) {
  const Value a = evaluate(*node.operands[0]);
  if (node.op == Op::kNegative || node.op == Op::kPositive) {
    if (failed()) return {};
    if (!a.is_number()) return fail(node, "{} has no sign", name_of(a.kind()));
    if (node.op == Op::kPositive) return a;
    if (a.is(Kind::kFloat)) return Value::real(-a.as_real(), a.origin());
    int64_t result = 0;
    if (__builtin_sub_overflow(int64_t{0}, a.as_int(), &result))
      return fail(node, "the result of '-' has more than 64 bits");
    return Value::integer(result, a.origin());
  }
  const Value b = evaluate(*node.operands[1]);
  if (failed()) return {};
  if (node.op == Op::kMultiply && (a.is_text() || a.is_list()) && b.is_whole())
    return repeated(node, a, b.as_int());
  if (node.op == Op::kMultiply && (b.is_text() || b.is_list()) && a.is_whole())
    return repeated(node, b, a.as_int());
  if (node.op == Op::kModulo && a.is_text())
    return fail(node, "'%' of a string is not supported: use '~'");
  if (!a.is_number() || !b.is_number())
    return fail(node, "'{}' of {} and {} has no value", symbol_of(node.op), name_of(a.kind()),
                name_of(b.kind()));
  const Origin origin = joined(a.origin(), b.origin());
  const bool divides =
      node.op == Op::kDivide || node.op == Op::kFloorDivide || node.op == Op::kModulo;
  if (divides && b.as_real() == 0) return fail(node, "the divisor is 0");
  if (a.is_whole() && b.is_whole() && node.op != Op::kDivide)
    return whole_arithmetic(node, a.as_int(), b.as_int(), origin);
  return Value::real(real_arithmetic(node.op, a.as_real(), b.as_real()), origin);
}

bool Evaluator::contains(const Expression& node, const Value& container, const Value& item) {
  if (container.is_text()) {
    if (!item.is_text()) {
      fail(node, "'in' looks for {} in a string", name_of(item.kind()));
      return false;
    }
    charge(node, 1, 0);
    num_steps_ += static_cast<int64_t>(container.bytes().size() / 256);
    return container.bytes().find(item.bytes()) != std::string_view::npos;
  }
  if (container.is_dict()) {
    num_steps_ += static_cast<int64_t>(container.as_dict().entries.size() / 8);
    return container.as_dict().find(item) != nullptr;
  }
  if (container.is_list()) {
    charge(node, container.items().size());
    return std::any_of(container.items().begin(), container.items().end(),
                       [&](const Value& each) { return equal(each, item); });
  }
  if (!container.is(Kind::kUndefined)) fail(node, "'in' looks into {}", name_of(container.kind()));
  return false;
}

Value Evaluator::compare_chain(const Expression& node) {
  Value left = evaluate(*node.operands[0]);
  for (size_t i = 0; i < node.compares.size(); ++i) {
    Value right = evaluate(*node.operands[i + 1]);
    if (failed()) return {};
    bool is_met = false;
    int order = 0;
    const Compare kind = node.compares[i];
    if (kind == Compare::kEqual || kind == Compare::kNotEqual) {
      if (!charge(node, left.weight())) return {};
      is_met = equal(left, right) == (kind == Compare::kEqual);
    } else if (kind == Compare::kIn || kind == Compare::kNotIn) {
      is_met = contains(node, right, left) == (kind == Compare::kIn);
    } else if (!compare(left, right, order)) {
      return fail(node, "{} and {} have no order", name_of(left.kind()), name_of(right.kind()));
    } else {
      is_met = kind == Compare::kLess        ? order < 0
               : kind == Compare::kLessEqual ? order <= 0
               : kind == Compare::kGreater   ? order > 0
                                             : order >= 0;
    }
    if (!is_met) return Value::truth(false);
    left = std::move(right);
  }
  return Value::truth(true);
}

Value Evaluator::container(const Expression& node) {
  std::vector<Value> values;
  values.reserve(node.operands.size());
  for (const auto& operand : node.operands) {
    values.push_back(evaluate(*operand));
    if (failed()) return {};
    if (values.back().is(Kind::kNamespace) || values.back().is(Kind::kLoop))
      return fail(*operand, "{} in a list or mapping is not supported",
                  name_of(values.back().kind()));
  }
  if (node.op != Op::kDict)
    return Value::list(std::move(values), kFromTemplate,
                       node.op == Op::kList ? Kind::kList : Kind::kTuple);
  const Shared<Dict> dict(new Dict);
  for (size_t i = 0; i + 1 < values.size(); i += 2) {
    if (values[i].is_list() || values[i].is_dict())
      return fail(*node.operands[i], "{} is no key", name_of(values[i].kind()));
    if (!charge(node, dict->entries.size() / 8)) return {};
    dict->set(values[i], values[i + 1]);
  }
  return Value::dict(dict.get());
}

}  // namespace primerl::chat
