/// Writing results to stdout and everything else to stderr, the same way in every command. A
/// terminal or file that refuses what is written never ends the program in between: what stderr
/// loses is lost, what stdout loses is told by run_command_line() at the end.
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

/// stdin, stdout and stderr that whoever started the program had closed become /dev/null: else the
/// next files to be opened would take their numbers, and what is said would land in them.
void open_closed_standard_files();

/// For programs that outlive their terminal: a reader of stdout or stderr that goes away costs what
/// is said to it, not the program.
void outlive_readers();

}  // namespace primerl
