/// What run.json says of a run, for the commands that look at a run or reach into it: ps, pause,
/// unpause. No state; any thread.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "graph/base/json.h"
#include "graph/base/result.h"

namespace primerl {

/// The folder that a person named, as an absolute path: the output may be read in another folder.
std::filesystem::path run_path(const std::string& named);
/// run.json of a run folder. kNotFound: there is no such folder, or it is of no run.
Result<Json> read_run_facts(const std::filesystem::path& folder);
/// The exit code of a command that was given a run and got no answer.
int exit_code_of(const Error& no_answer);

/// The member; null when it is not there.
Json member(const Json& facts, std::string_view key);
/// "" when it is not there, or no text.
std::string text_member(const Json& facts, std::string_view key);
/// Whether the process with this pid is still the one with this start time.
bool is_alive(const Json& process);
std::string host_name();

}  // namespace primerl
