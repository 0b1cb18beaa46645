/// Reads run.json for the commands that inspect a run or send it commands: ps, pause, unpause. No
/// state; any thread.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "graph/base/json.h"
#include "graph/base/result.h"

namespace primerl {

/// The given folder as an absolute path, because the output may be read in another folder.
std::filesystem::path run_path(const std::string& named);
/// run.json of a run folder. kNotFound: the folder does not exist, or is not a run folder.
Result<Json> read_run_facts(const std::filesystem::path& folder);
/// The exit code of a command that got no answer from its run.
int exit_code_of(const Error& no_answer);

/// The member; null when it is missing.
Json member(const Json& facts, std::string_view key);
/// "" when it is missing or not a text.
std::string text_member(const Json& facts, std::string_view key);
/// Whether the process with this pid still has this start time.
bool is_alive(const Json& process);
std::string host_name();

}  // namespace primerl
