/// Asks the control plane of a running run (runtime/store/command_box.h) for the commands of a
/// person: pause, unpause, tenant. Blocks the calling thread until the answer comes.
#pragma once

#include <filesystem>
#include <string_view>

#include "graph/base/clock.h"
#include "graph/base/json.h"
#include "graph/base/result.h"

namespace primerl {

/// The answer of the run in `folder`, within `timeout`. `gone`: what an ended run has no more ("its
/// engines are gone"). kNotFound: no run folder. kInvalid: the run has ended. kUnavailable: its
/// primerl-graph process ended, or it is on another machine. kDeadline: no answer in time.
Result<Json> ask_running(const std::filesystem::path& folder, Json content, Duration timeout,
                         std::string_view gone);

}  // namespace primerl
