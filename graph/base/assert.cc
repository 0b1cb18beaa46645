#include "graph/base/assert.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace primerl {
namespace {

std::atomic<CheckObserver> observer{nullptr};

}  // namespace

void set_check_observer(CheckObserver next) { observer.store(next); }

void check_failed(const char* condition, const char* file, int line, std::string_view text) {
  std::string message =
      std::string(file) + ":" + std::to_string(line) + ": CHECK(" + condition + ") failed";
  if (!text.empty()) message += ": " + std::string(text);
  std::fprintf(stderr, "%s\n", message.c_str());
  if (auto observe = observer.load()) observe(message);
  std::abort();
}

}  // namespace primerl
