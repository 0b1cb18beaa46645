#include "runtime/program/output.h"

#include <cstdio>

namespace primerl {

void print_text(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

void print_json(const Json& value) { print_text(value.dump(2) + "\n"); }

int fail(const Error& error, int exit_code) {
  fmt::print(stderr, "error: {}\n", error.message());
  for (const auto& note : error.notes()) fmt::print(stderr, "  help: {}\n", note);
  return exit_code;
}

}  // namespace primerl
