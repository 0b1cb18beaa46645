/// SessionTrace: prompts with their arrival times, so that routing policies can be tried on them.
/// Read from a file of its own format (docs/formats/session-trace.md) or from the rollouts of a
/// run.
///
/// Prompts are stored as names of blocks of kRouteBlockTokens tokens
/// (actors/router/prefix_table.h), so a trace does not reveal its prompts. A value.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "graph/base/result.h"

namespace primerl {

/// Limits of a trace; the error of a trace beyond a limit names the line.
inline constexpr size_t kTraceLineBytesMax = size_t{16} << 20;
inline constexpr int64_t kTurnTokensMax = 1 << 20;
struct TraceLimits {
  size_t turns_max = 1'000'000;
  size_t blocks_max = size_t{1} << 26;  // total number of names, 8 bytes each
};

struct TracedTurn {
  uint32_t session = 0;  // numbered in the order in which sessions appear, like groups
  uint32_t group = 0;    // the rollout waits for all sessions of a group
  double arrival_s = 0;
  int32_t num_prompt_tokens = 0;
  int32_t num_completion_tokens = 0;
  /// Names of the full blocks of prompt and completion, as far as they are known.
  std::vector<uint64_t> blocks;

  /// Number of those blocks that are in the prompt.
  size_t num_prompt_blocks() const;
};

struct SessionTrace {
  std::vector<TracedTurn> turns;  // turns of one session are in order
  uint32_t num_sessions = 0;
  uint32_t num_groups = 0;
};

Result<SessionTrace> read_session_trace(const std::filesystem::path& file,
                                        const TraceLimits& limits = {});
/// `file` is rollouts.jsonl of a run with log_tokens. It has no times: groups arrive in the order
/// of their numbers, one every `group_every_s`.
Result<SessionTrace> read_rollouts(const std::filesystem::path& file, double group_every_s,
                                   const TraceLimits& limits = {});
/// The text of a file that read_session_trace() can read.
std::string session_trace_text(const SessionTrace& trace);

}  // namespace primerl
