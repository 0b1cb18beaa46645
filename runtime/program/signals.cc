#include "runtime/program/signals.h"

#include <pthread.h>

#include <csignal>
#include <initializer_list>

namespace primerl {
namespace {

void do_nothing(int) {}

void outlive(int signal) {
  struct sigaction action {};
  action.sa_handler = do_nothing;
  action.sa_flags = SA_RESTART;
  ::sigaction(signal, &action, nullptr);
}

}  // namespace

void report_file_limits() { outlive(SIGXFSZ); }

void outlive_readers() { outlive(SIGPIPE); }

void leave_ending_to_launcher() {
  sigset_t ending;
  ::sigemptyset(&ending);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    outlive(signal);
    ::sigaddset(&ending, signal);
  }
  ::pthread_sigmask(SIG_UNBLOCK, &ending, nullptr);
}

}  // namespace primerl
