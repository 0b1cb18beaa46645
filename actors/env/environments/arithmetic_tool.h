/// A sum with a calculator: several turns, for policies that must learn to call a tool.
///
///   prompt       a:12+34>
///   action 1     c:12+34=        a call: `c:`, whole number, + - or *, whole number, `=`
///   observation  46>             or `?>` for a call that cannot be read
///   action 2     46              anything else is the answer and ends the trajectory
///
/// Reward: 1 for the right answer after a call of the task's own expression; `call_reward` when
/// that call was made but the answer is wrong or missing after `turns_max` actions; else 0. A right
/// answer without the call earns nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "actors/env/environment.h"

namespace primerl {

struct ArithmeticToolOptions {
  std::string operators = "+-";  // any of "+-*"
  int32_t operand_max = 99;      // operands are random in [0, operand_max]
  int32_t turns_max = 3;         // actions of one trajectory, calls included; >= 2
  double call_reward = 0.2;      // in [0, 1)
};

inline constexpr int32_t kOperandMax = 999'999'999;
inline constexpr int32_t kToolTurnsMax = 64;

Result<std::unique_ptr<Environment>> make_arithmetic_tool(const ArithmeticToolOptions& options);

}  // namespace primerl
