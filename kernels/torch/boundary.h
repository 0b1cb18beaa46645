/// Where exceptions of libtorch end and Errors begin.
#pragma once

#include <c10/core/InferenceMode.h>

#include <exception>
#include <string_view>

#include "graph/base/result.h"

namespace primerl {

/// Runs `body` (which returns a Result) in inference mode; an exception becomes Code::kInternal.
template <class Body>
auto at_boundary(std::string_view doing, Body&& body) -> decltype(body()) {
  try {
    const c10::InferenceMode guard(true);
    return body();
  } catch (const std::exception& fault) {
    return error(Code::kInternal, "{}: {}", doing, fault.what());
  }
}

}  // namespace primerl
