/// The bodies of `run` calls that Env makes to the servers of its environment, and its reading of
/// the answers (docs/design/verifiers.md). Pure functions.
#pragma once

#include <string>
#include <vector>

#include "actors/env/environment.h"
#include "actors/messages/run.h"
#include "graph/outside.h"

namespace primerl {

inline constexpr size_t kBranchesMax = 4096;     // of one member
inline constexpr size_t kRunNumbersMax = 256;    // scores of one member; as many metrics
inline constexpr size_t kRunNameBytesMax = 256;  // of a score or metric, or of a stop condition

std::string run_body(const Run& run, std::string_view model, const OutsidePool& pool);

/// A task with `data`; its prompt is for people.
Result<EnvironmentTask> read_driven_task(const std::string& body);
/// An error if the environment that gave this task has another number of tasks.
Status check_num_tasks(const std::string& body, int64_t num_tasks);

/// One result for each member. If the part of one member is wrong, only that member has a fault.
Result<std::vector<MemberResult>> read_run(const std::string& body, int32_t num_members);

}  // namespace primerl
