/// The filters of chat templates: their names, and those that work on lists.
///
/// Internal to this folder.
#pragma once

#include "kernels/text/chat/evaluator.h"

namespace primerl::chat {

enum class Filter : uint8_t {
  kAbs,
  kCapitalize,
  kDefault,
  kDictSort,
  kFirst,
  kFloat,
  kIndent,
  kInt,
  kItems,
  kJoin,
  kLast,
  kLength,
  kList,
  kLower,
  kMap,
  kMax,
  kMin,
  kReject,
  kRejectAttr,
  kReplace,
  kReverse,
  kSafe,
  kSelect,
  kSelectAttr,
  kSort,
  kString,
  kSum,
  kTitle,
  kToJson,
  kTrim,
  kUnique,
  kUpper
};

/// Whether an argument is given and true.
bool flag(const Evaluator::Arguments& arguments, size_t index, std::string_view name);
/// "a.b.0": an attribute path of map, selectattr, sort and others.
Value attribute_path(Evaluator& evaluator, const Expression& at, Value value, const Value& path);

// list_filters.cc
Value dict_sort(Evaluator& evaluator, const Expression& at, const Value& value,
                const Evaluator::Arguments& arguments);
/// sort, unique, min, max.
Value ordered(Evaluator& evaluator, const Expression& at, Filter filter, const Value& value,
              const Evaluator::Arguments& arguments);
Value mapped(Evaluator& evaluator, const Expression& at, const Value& value,
             Evaluator::Arguments& arguments);
/// select, reject, selectattr, rejectattr.
Value selected(Evaluator& evaluator, const Expression& at, Filter filter, const Value& value,
               const Evaluator::Arguments& arguments);
Value sum_of(Evaluator& evaluator, const Expression& at, const Value& value,
             const Evaluator::Arguments& arguments);

}  // namespace primerl::chat
