/// CHECK: ends the process with a message when our own code breaks an invariant.
///
/// Never for input, files, peers or anything a user can cause: those are Errors (result.h). Always
/// on, also in release builds: a run that continued after a broken invariant would train garbage.
#pragma once

#include <string_view>

namespace primerl {

/// Called with the text of a failed CHECK before the process aborts (for a flight recorder, or the
/// virtual executor's "repeat with" line). One per process; the last one set is used.
using CheckObserver = void (*)(std::string_view text);
void set_check_observer(CheckObserver observer);

[[noreturn]] void check_failed(const char* condition, const char* file, int line,
                               std::string_view text = {});

}  // namespace primerl

#define CHECK(condition, ...)         \
  ((condition) ? static_cast<void>(0) \
               : ::primerl::check_failed(#condition, __FILE__, __LINE__, ##__VA_ARGS__))
