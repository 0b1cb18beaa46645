#include "runtime/program/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "graph/base/terminal_text.h"

namespace primerl {
namespace {

std::atomic<int> first_refusal{0};  // errno of stdout

void note_refusal() {
  int none = 0;
  first_refusal.compare_exchange_strong(none, errno);
}

}  // namespace

void print_text(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) note_refusal();
}

void print_json(const Json& value) { print_text(value.dump(2) + "\n"); }

void complain_text(std::string_view text) {
  // A failed write to stderr cannot be reported anywhere.
  (void)std::fwrite(text.data(), 1, text.size(), stderr);
}

int fail(const Error& error, int exit_code) {
  complain("error: {}\n", terminal_text(error.message()));
  for (const auto& note : error.notes()) complain("  help: {}\n", terminal_text(note));
  return exit_code;
}

Status finish_output() {
  if (std::fflush(stdout) != 0) note_refusal();
  const int refusal = first_refusal;
  if (refusal == 0 || refusal == EPIPE) return ok();
  return error(Code::kIo, "standard output refused what was printed: {}", std::strerror(refusal));
}

void open_closed_standard_files() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    // open() returns the lowest free number, which is this one.
    if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF) (void)::open("/dev/null", O_RDWR);
}

}  // namespace primerl
