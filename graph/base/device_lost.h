#pragma once
#include "graph/base/result.h"
namespace primerl {
inline constexpr Code kDeviceLostCode = static_cast<Code>(10);
}  // namespace primerl
