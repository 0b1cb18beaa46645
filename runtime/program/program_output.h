/// Runs another program and returns its output. It is started without a shell, so names with any
/// character are safe. Time and size of the output are limited. Plain function, any thread.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "graph/base/clock.h"
#include "graph/base/result.h"

namespace primerl {

struct ProgramOutput {
  int exit_code = -1;  // -1: a signal ended it
  /// Stdout and stderr, without line ends at the end. Separate, because a program that succeeds may
  /// write to stderr, such as a library's warning.
  std::string out, err;

  /// The text to show when it failed.
  const std::string& why() const { return err.empty() ? out : err; }
};

/// Limit of each stream; the rest is dropped.
inline constexpr size_t kProgramTextMax = size_t{64} << 10;
/// A worker loads libtorch first, which takes tens of seconds from a cold disk.
inline constexpr Duration kProgramWaitMax = Duration::seconds(120);

/// Runs `program ARGUMENTS` with an empty stdin. kIo: it cannot be started. kDeadline: it had not
/// ended after `most` and was killed; the error has its output.
Result<ProgramOutput> output_of(const std::filesystem::path& program,
                                const std::vector<std::string>& arguments,
                                Duration most = kProgramWaitMax);

}  // namespace primerl
