// The child of launch_test.cc: does what its first argument names.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "runtime/transport/control_channel.h"

namespace {

using primerl::ControlInbox;
using primerl::Duration;

int answer(int fd) {
  auto inbox = std::make_shared<ControlInbox>();
  auto channel = primerl::open_inherited_control(fd, inbox);
  if (!channel.ok()) {
    std::fprintf(stderr, "%s\n", channel.error().text().c_str());
    return 2;
  }
  primerl::WorkerHello hello;
  hello.graph_hash = 11;
  hello.types_hash = 12;
  hello.process = "main";
  hello.incarnation = 3;
  hello.pid = ::getpid();
  (*channel)->report(primerl::LogLine{1, "child", "before the hello"});
  if (!(*channel)->send(hello).ok()) return 1;
  while (auto event = inbox->take(Duration::seconds(60))) {
    if (event->is_closed()) return 4;
    if (primerl::as_if<primerl::StartRun>(event->message) != nullptr) {
      primerl::RunEnded ended;
      ended.text =
          std::getenv("PRIMERL_TEST_WORD") != nullptr ? std::getenv("PRIMERL_TEST_WORD") : "";
      if (!(*channel)->send(ended).ok()) return 1;
      (*channel)->close();
      return 0;
    }
    if (primerl::as_if<primerl::StopRun>(event->message) != nullptr) {
      ::signal(SIGSEGV, SIG_DFL);  // a sanitizer would turn it into an exit code
      ::raise(SIGSEGV);
    }
  }
  return 5;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  // An agent adds arguments of its own before them.
  if (argc < 4 || std::string(argv[argc - 2]) != "--control") return 3;
  const std::string fd = argv[argc - 1];
  if (what == "answer") return answer(std::stoi(fd));
  if (what == "complain") {
    std::fprintf(stderr, "first line\nthe model folder 'x' is missing\n");
    return 7;
  }
  if (what == "hang") {
    sigset_t none;
    ::sigemptyset(&none);
    ::sigsuspend(&none);
  }
  return 3;
}
