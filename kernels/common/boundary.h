/// Where exceptions of libtorch end and Errors begin.
#pragma once

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <string_view>

#include "graph/base/result.h"

namespace primerl {

/// Runs `body` (which returns a Result) in inference mode; an exception becomes Code::kInternal, a
/// lack of a device's memory Code::kExhausted. Whether the device is lost is to be asked of it.
template <class Body>
auto at_boundary(std::string_view doing, Body&& body) -> decltype(body()) {
  try {
    const c10::InferenceMode guard(true);
    return body();
  } catch (const c10::OutOfMemoryError& fault) {
    return error(Code::kExhausted, "{}: {}", doing, fault.what_without_backtrace());
  } catch (const c10::Error& fault) {
    // what() has a stack of C++ frames, too.
    return error(Code::kInternal, "{}: {}", doing, fault.what_without_backtrace());
  } catch (const std::exception& fault) {
    return error(Code::kInternal, "{}: {}", doing, fault.what());
  }
}

/// Gives the calling thread `threads` compute threads (0 means 1).
inline void use_threads(int32_t threads) {
  // A thread's first look at libtorch's count copies what another thread set last: look, then set.
  at::get_num_threads();
  at::set_num_threads(std::max(1, threads));
}

}  // namespace primerl
