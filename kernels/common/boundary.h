/// Converts exceptions of libtorch to Errors.
#pragma once

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <string_view>

#include "graph/base/result.h"

namespace primerl {

/// Runs `body` (which returns a Result) in inference mode. An exception becomes Code::kInternal,
/// and lack of device memory Code::kExhausted. Ask the device itself whether it is lost.
template <class Body>
auto at_boundary(std::string_view doing, Body&& body) -> decltype(body()) {
  try {
    const c10::InferenceMode guard(true);
    return body();
  } catch (const c10::OutOfMemoryError& fault) {
    return error(Code::kExhausted, "{}: {}", doing, fault.what_without_backtrace());
  } catch (const c10::Error& fault) {
    // what() would include a C++ stack trace.
    return error(Code::kInternal, "{}: {}", doing, fault.what_without_backtrace());
  } catch (const std::exception& fault) {
    return error(Code::kInternal, "{}: {}", doing, fault.what());
  }
}

/// Gives the calling thread `threads` compute threads (0 means 1).
inline void use_threads(int32_t threads) {
  // The first read of libtorch's count in a thread copies the value of another thread: read first,
  // then set.
  at::get_num_threads();
  at::set_num_threads(std::max(1, threads));
}

}  // namespace primerl
