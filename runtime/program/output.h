/// Writes results to stdout and everything else to stderr, the same way in every command. A failed
/// write never ends the program at once. A failed write to stderr is ignored; run_command_line()
/// reports a failed write to stdout at the end.
///
/// Any thread.
#pragma once

#include <string_view>
#include <utility>

#include "graph/base/json.h"
#include "graph/base/result.h"

namespace primerl {

/// To stdout, indented, with a newline.
void print_json(const Json& value);
/// To stdout, unchanged.
void print_text(std::string_view text);
/// To stderr, unchanged.
void complain_text(std::string_view text);
/// To stderr, formatted; no newline is added.
template <class... Args>
void complain(fmt::format_string<Args...> format, Args&&... args) {
  complain_text(fmt::format(format, std::forward<Args>(args)...));
}
/// "error: ..." with its notes to stderr; returns `exit_code`.
int fail(const Error& error, int exit_code);

/// Flushes everything printed so far. An Error: stdout refused some of it, for example because the
/// disk is full. A reader that left early (`| head`) is no error.
Status finish_output();

/// Opens /dev/null as stdin, stdout or stderr if the program was started with it closed. Otherwise
/// the next opened files would get their numbers, and output would be written into those files.
void open_closed_standard_files();

}  // namespace primerl
