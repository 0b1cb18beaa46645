/// Writing results to stdout and everything else to stderr, the same way in every command. A failed
/// write never ends the program at once: what stderr loses is lost, what stdout loses is reported
/// by run_command_line() at the end.
///
/// Any thread.
#pragma once

#include <string_view>
#include <utility>

#include "graph/base/json.h"
#include "graph/base/result.h"

namespace primerl {

/// To stdout, pretty, with a newline.
void print_json(const Json& value);
/// To stdout as it is.
void print_text(std::string_view text);
/// To stderr as it is.
void complain_text(std::string_view text);
/// To stderr, formatted; no newline is added.
template <class... Args>
void complain(fmt::format_string<Args...> format, Args&&... args) {
  complain_text(fmt::format(format, std::forward<Args>(args)...));
}
/// "error: ..." with its notes to stderr; returns `exit_code`.
int fail(const Error& error, int exit_code);

/// Everything printed so far is written out. An Error: stdout refused some of it, as a full disk
/// does. A reader that left early (`| head`) is no error.
Status finish_output();

/// Opens /dev/null as stdin, stdout or stderr if the program was started with it closed: else the
/// next files to be opened would get their numbers, and output would be written into them.
void open_closed_standard_files();

}  // namespace primerl
