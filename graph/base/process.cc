#include "graph/base/process.h"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

namespace primerl {

int64_t start_ticks(int64_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  // The name in parentheses may contain anything. Words follow it: the state is field 3 of the
  // line, the start is field 22.
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream words(text.substr(name_end + 1));
  std::string state, skipped;
  words >> state;
  if (state == "Z" || state == "X") return 0;
  for (int i = 4; i < 22; ++i) words >> skipped;
  int64_t ticks = 0;
  return words >> ticks ? ticks : 0;
}

void set_default_signals() {
  constexpr int kSignals = 64;
  struct KernelAction {  // of the system call rt_sigaction
    void (*handler)(int);
    unsigned long flags;
    void (*restorer)();
    uint64_t mask;
  } action{SIG_DFL, 0, nullptr, 0};
  for (int signal = 1; signal <= kSignals; ++signal)
    ::syscall(SYS_rt_sigaction, signal, &action, nullptr, sizeof action.mask);
}

}  // namespace primerl
