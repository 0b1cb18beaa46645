#include "kernels/text/chat/parser.h"

#include <algorithm>
#include <charconv>

#include "graph/base/suggest.h"

namespace primerl::chat {
namespace {

/// Counts the levels of expressions and blocks while it exists.
struct Level {
  explicit Level(int& counted) : depth(counted) { ++depth; }
  ~Level() { --depth; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;
  int& depth;
};

}  // namespace

/// `a`, or `a, b` as a tuple.
Result<ExpressionPtr> Parser::tuple_or_expression() {
  ASSIGN_OR_RETURN(ExpressionPtr first, expression());
  if (!sees_operator(",")) return first;
  auto tuple = make(Op::kTuple, std::move(first));
  while (skip_operator(",")) {
    if (sees(TokenKind::kBlockEnd) || sees(TokenKind::kPrintEnd) || sees_operator(")")) break;
    ASSIGN_OR_RETURN(ExpressionPtr next, expression());
    tuple->operands.push_back(std::move(next));
  }
  return tuple;
}

Result<ExpressionPtr> Parser::expression() {
  const Level level(depth_);
  if (depth_ > kSyntaxDepthMax)
    return fault("expressions and blocks are nested deeper than {}", kSyntaxDepthMax);
  return condition();
}

Result<ExpressionPtr> Parser::condition() {
  ASSIGN_OR_RETURN(ExpressionPtr value, either());
  int num_conditions = 0;
  while (sees_name("if")) {
    if (++num_conditions > kSyntaxDepthMax)
      return fault("more than {} conditions follow each other", kSyntaxDepthMax);
    ++next_;
    ASSIGN_OR_RETURN(ExpressionPtr test, either());
    auto node = make(Op::kCondition, std::move(test), std::move(value));
    if (skip_name("else")) {
      ASSIGN_OR_RETURN(ExpressionPtr other, expression());
      node->operands.push_back(std::move(other));
    } else {
      node->operands.push_back(nullptr);
    }
    value = std::move(node);
  }
  return value;
}

Result<ExpressionPtr> Parser::either() {
  ASSIGN_OR_RETURN(ExpressionPtr first, both());
  if (!sees_name("or")) return first;
  auto node = make(Op::kOr, std::move(first));
  while (skip_name("or")) {
    ASSIGN_OR_RETURN(ExpressionPtr next, both());
    node->operands.push_back(std::move(next));
  }
  return node;
}

Result<ExpressionPtr> Parser::both() {
  ASSIGN_OR_RETURN(ExpressionPtr first, negation());
  if (!sees_name("and")) return first;
  auto node = make(Op::kAnd, std::move(first));
  while (skip_name("and")) {
    ASSIGN_OR_RETURN(ExpressionPtr next, negation());
    node->operands.push_back(std::move(next));
  }
  return node;
}

Result<ExpressionPtr> Parser::negation() {
  if (!sees_name("not")) return comparison();
  const Level level(depth_);
  if (depth_ > kSyntaxDepthMax)
    return fault("expressions and blocks are nested deeper than {}", kSyntaxDepthMax);
  ++next_;
  ASSIGN_OR_RETURN(ExpressionPtr operand, negation());
  return make(Op::kNot, std::move(operand));
}

Result<ExpressionPtr> Parser::comparison() {
  static const std::vector<std::pair<std::string_view, Compare>> kComparisons = {
      {"==", Compare::kEqual},        {"!=", Compare::kNotEqual}, {"<=", Compare::kLessEqual},
      {">=", Compare::kGreaterEqual}, {"<", Compare::kLess},      {">", Compare::kGreater}};
  ASSIGN_OR_RETURN(ExpressionPtr first, sum());
  ExpressionPtr node;
  for (;;) {
    const auto known = std::find_if(kComparisons.begin(), kComparisons.end(),
                                    [&](const auto& each) { return sees_operator(each.first); });
    Compare compare = Compare::kIn;
    if (known != kComparisons.end()) {
      compare = known->second;
    } else if (sees_name("not") && after().kind == TokenKind::kName && after().text == "in") {
      compare = Compare::kNotIn;
      ++next_;
    } else if (!sees_name("in")) {
      break;
    }
    ++next_;
    ASSIGN_OR_RETURN(ExpressionPtr next, sum());
    if (node == nullptr) node = make(Op::kCompare, std::move(first));
    node->compares.push_back(compare);
    node->operands.push_back(std::move(next));
  }
  return node == nullptr ? std::move(first) : std::move(node);
}

// Sums and terms are lists: a long one is no deep tree.
Result<ExpressionPtr> Parser::sum() {
  ASSIGN_OR_RETURN(ExpressionPtr left, concatenation());
  int num_terms = 0;
  while (sees_operator("+") || sees_operator("-")) {
    if (++num_terms > kSyntaxDepthMax)
      return fault("more than {} sums follow each other", kSyntaxDepthMax);
    const Op op = token().text == "+" ? Op::kAdd : Op::kSubtract;
    ++next_;
    ASSIGN_OR_RETURN(ExpressionPtr right, concatenation());
    if (op == Op::kAdd && left->op == Op::kAdd)
      left->operands.push_back(std::move(right));
    else
      left = make(op, std::move(left), std::move(right));
  }
  return left;
}

Result<ExpressionPtr> Parser::concatenation() {
  ASSIGN_OR_RETURN(ExpressionPtr first, term());
  if (!sees_operator("~")) return first;
  auto node = make(Op::kConcatenate, std::move(first));
  while (skip_operator("~")) {
    ASSIGN_OR_RETURN(ExpressionPtr next, term());
    node->operands.push_back(std::move(next));
  }
  return node;
}

Result<ExpressionPtr> Parser::term() {
  ASSIGN_OR_RETURN(ExpressionPtr left, power());
  int num_factors = 0;
  for (;;) {
    Op op = Op::kMultiply;
    if (sees_operator("/"))
      op = Op::kDivide;
    else if (sees_operator("//"))
      op = Op::kFloorDivide;
    else if (sees_operator("%"))
      op = Op::kModulo;
    else if (!sees_operator("*"))
      return left;
    if (++num_factors > kSyntaxDepthMax)
      return fault("more than {} factors follow each other", kSyntaxDepthMax);
    ++next_;
    ASSIGN_OR_RETURN(ExpressionPtr right, power());
    left = make(op, std::move(left), std::move(right));
  }
}

Result<ExpressionPtr> Parser::power() {
  ASSIGN_OR_RETURN(ExpressionPtr left, unary(true));
  int num_powers = 0;
  while (skip_operator("**")) {
    if (++num_powers > kSyntaxDepthMax)
      return fault("more than {} powers follow each other", kSyntaxDepthMax);
    ASSIGN_OR_RETURN(ExpressionPtr right, unary(true));
    left = make(Op::kPower, std::move(left), std::move(right));
  }
  return left;
}

Result<ExpressionPtr> Parser::unary(bool with_filters) {
  const Level level(depth_);
  if (depth_ > kSyntaxDepthMax)
    return fault("expressions and blocks are nested deeper than {}", kSyntaxDepthMax);
  ExpressionPtr node;
  if (sees_operator("-") || sees_operator("+")) {
    const Op op = token().text == "-" ? Op::kNegative : Op::kPositive;
    ++next_;
    ASSIGN_OR_RETURN(ExpressionPtr operand, unary(false));
    node = make(op, std::move(operand));
  } else {
    ASSIGN_OR_RETURN(node, primary());
  }
  ASSIGN_OR_RETURN(node, postfix(std::move(node)));
  if (!with_filters) return node;
  return filters_and_tests(std::move(node));
}

Result<ExpressionPtr> Parser::primary() {
  switch (token().kind) {
    case TokenKind::kName:
      return name_or_literal();
    case TokenKind::kString: {
      const uint32_t offset = token().offset;
      std::string text;
      while (sees(TokenKind::kString)) text += tokens_[next_++].text;
      return make_text(std::move(text), offset);
    }
    case TokenKind::kInt:
    case TokenKind::kFloat:
      return number();
    default:
      break;
  }
  if (sees_operator("(")) return parenthesis();
  if (sees_operator("[")) return list();
  if (sees_operator("{")) return dict();
  return unexpected("an expression");
}

Result<ExpressionPtr> Parser::name_or_literal() {
  const std::string& name = token().text;
  auto node = make(Op::kConstant);
  using Literal = Expression::Literal;
  if (name == "none" || name == "None") {
    node->literal = Literal::kNone;
  } else if (name == "true" || name == "True") {
    node->literal = Literal::kTrue;
  } else if (name == "false" || name == "False") {
    node->literal = Literal::kFalse;
  } else {
    static constexpr std::string_view kKeywords[] = {"if", "else", "elif", "in",    "is",    "and",
                                                     "or", "not",  "for",  "endif", "endfor"};
    if (std::find(std::begin(kKeywords), std::end(kKeywords), name) != std::end(kKeywords))
      return unexpected("an expression");
    node->op = Op::kName;
    node->text = name;
    node->slot = slot_of(name);
  }
  ++next_;
  return node;
}

Result<ExpressionPtr> Parser::number() {
  auto node = make(Op::kConstant);
  const std::string& text = token().text;
  if (sees(TokenKind::kInt)) {
    node->literal = Expression::Literal::kInt;
    std::from_chars(text.data(), text.data() + text.size(), node->integer);
  } else {
    node->literal = Expression::Literal::kFloat;
    std::from_chars(text.data(), text.data() + text.size(), node->real);
  }
  ++next_;
  return node;
}

Result<ExpressionPtr> Parser::parenthesis() {
  auto empty = make(Op::kTuple);
  ++next_;
  if (skip_operator(")")) return empty;
  ASSIGN_OR_RETURN(ExpressionPtr node, tuple_or_expression());
  RETURN_IF_ERROR(expect_operator(")"));
  return node;
}

Result<ExpressionPtr> Parser::list() {
  auto node = make(Op::kList);
  ++next_;
  while (!skip_operator("]")) {
    if (!node->operands.empty()) RETURN_IF_ERROR(expect_operator(","));
    if (skip_operator("]")) break;
    ASSIGN_OR_RETURN(ExpressionPtr item, expression());
    node->operands.push_back(std::move(item));
  }
  return node;
}

Result<ExpressionPtr> Parser::dict() {
  auto node = make(Op::kDict);
  ++next_;
  while (!skip_operator("}")) {
    if (!node->operands.empty()) RETURN_IF_ERROR(expect_operator(","));
    if (skip_operator("}")) break;
    ASSIGN_OR_RETURN(ExpressionPtr key, expression());
    RETURN_IF_ERROR(expect_operator(":"));
    ASSIGN_OR_RETURN(ExpressionPtr value, expression());
    node->operands.push_back(std::move(key));
    node->operands.push_back(std::move(value));
  }
  return node;
}

Result<ExpressionPtr> Parser::postfix(ExpressionPtr node) {
  for (int count = 0;; ++count) {
    if (count > kSyntaxDepthMax)
      return fault("more than {} attributes follow each other", kSyntaxDepthMax);
    if (skip_operator(".")) {
      if (sees(TokenKind::kInt)) {
        ASSIGN_OR_RETURN(ExpressionPtr index, number());
        node = make(Op::kItem, std::move(node), std::move(index));
        continue;
      }
      const uint32_t offset = token().offset;
      ASSIGN_OR_RETURN(std::string name, expect_name());
      node = make(Op::kAttribute, std::move(node));
      node->offset = offset;
      node->text = std::move(name);
    } else if (sees_operator("[")) {
      ASSIGN_OR_RETURN(node, subscript(std::move(node)));
    } else if (sees_operator("(")) {
      ASSIGN_OR_RETURN(node, call(std::move(node)));
    } else {
      return node;
    }
  }
}

Result<ExpressionPtr> Parser::subscript(ExpressionPtr node) {
  const uint32_t offset = token().offset;
  ++next_;
  ExpressionPtr parts[3];
  int num_colons = 0;
  if (!sees_operator(":")) {
    ASSIGN_OR_RETURN(parts[0], expression());
  }
  while (num_colons < 2 && skip_operator(":")) {
    ++num_colons;
    if (sees_operator(":") || sees_operator("]")) continue;
    ASSIGN_OR_RETURN(parts[num_colons], expression());
  }
  RETURN_IF_ERROR(expect_operator("]"));
  if (num_colons == 0) {
    node = make(Op::kItem, std::move(node), std::move(parts[0]));
  } else {
    node = make(Op::kSlice, std::move(node));
    for (auto& part : parts) node->operands.push_back(std::move(part));
  }
  node->offset = offset;
  return node;
}

Result<ExpressionPtr> Parser::call(ExpressionPtr node) {
  Method method{};
  if (node->op == Op::kAttribute && find_method(node->text, method)) {
    node->op = Op::kMethod;
    node->callee = static_cast<uint8_t>(method);
  } else {
    node = make(Op::kCall, std::move(node));
  }
  RETURN_IF_ERROR(arguments(*node));
  return node;
}

Status Parser::arguments(Expression& node) {
  RETURN_IF_ERROR(expect_operator("("));
  bool is_first = true;
  while (!skip_operator(")")) {
    if (!is_first) RETURN_IF_ERROR(expect_operator(","));
    is_first = false;
    if (skip_operator(")")) break;
    if (sees_operator("*") || sees_operator("**"))
      return fault("'{}' before an argument is not supported", token().text);
    if (sees(TokenKind::kName) && after().kind == TokenKind::kOperator && after().text == "=") {
      std::string name = token().text;
      next_ += 2;
      ASSIGN_OR_RETURN(ExpressionPtr value, expression());
      node.named.emplace_back(std::move(name), std::move(value));
      continue;
    }
    if (!node.named.empty()) return fault("an argument without a name follows one with a name");
    ASSIGN_OR_RETURN(ExpressionPtr value, expression());
    node.operands.push_back(std::move(value));
  }
  return ok();
}

Result<ExpressionPtr> Parser::filters_and_tests(ExpressionPtr node) {
  for (int count = 0;; ++count) {
    if (count > kSyntaxDepthMax)
      return fault("more than {} filters follow each other", kSyntaxDepthMax);
    if (sees_operator("|")) {
      ASSIGN_OR_RETURN(node, filter(std::move(node)));
    } else if (sees_name("is")) {
      ASSIGN_OR_RETURN(node, test(std::move(node)));
    } else if (sees_operator("(")) {
      ASSIGN_OR_RETURN(node, call(std::move(node)));
    } else {
      return node;
    }
  }
}

Result<ExpressionPtr> Parser::filter(ExpressionPtr node) {
  ++next_;
  const Error unknown = fault("the filter '{}' is not supported", token().text)
                            .note("filters: " + join_names(filter_names()));
  auto made = make(Op::kFilter);
  made->operands.push_back(std::move(node));
  ASSIGN_OR_RETURN(made->text, expect_name());
  Filter filter{};
  if (!find_filter(made->text, filter)) return unknown;
  made->callee = static_cast<uint8_t>(filter);
  if (sees_operator("(")) RETURN_IF_ERROR(arguments(*made));
  return made;
}

Result<ExpressionPtr> Parser::test(ExpressionPtr node) {
  ++next_;
  const bool is_negated = skip_name("not");
  const Error unknown = fault("the test '{}' is not supported", token().text)
                            .note("tests: " + join_names(test_names()));
  auto made = make(Op::kTest);
  made->operands.push_back(std::move(node));
  ASSIGN_OR_RETURN(made->text, expect_name());
  Test test{};
  if (!find_test(made->text, test)) return unknown;
  made->callee = static_cast<uint8_t>(test);
  const bool has_argument =
      (sees(TokenKind::kName) && !sees_name("else") && !sees_name("or") && !sees_name("and") &&
       !sees_name("if") && !sees_name("is") && !sees_name("in") && !sees_name("not")) ||
      sees(TokenKind::kString) || sees(TokenKind::kInt) || sees(TokenKind::kFloat) ||
      sees_operator("[") || sees_operator("{");
  if (sees_operator("(")) {
    RETURN_IF_ERROR(arguments(*made));
  } else if (has_argument) {
    ASSIGN_OR_RETURN(ExpressionPtr argument, primary());
    ASSIGN_OR_RETURN(argument, postfix(std::move(argument)));
    made->operands.push_back(std::move(argument));
  }
  return is_negated ? make(Op::kNot, std::move(made)) : std::move(made);
}

}  // namespace primerl::chat
