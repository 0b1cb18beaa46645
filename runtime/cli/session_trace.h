/// SessionTrace: which prompts came when, so that routing can be tried on them again. Read from a
/// file of its own format (docs/formats/session-trace.md) or from the rollouts of a run.
///
/// Prompts are kept as names of blocks of kRouteBlockTokens tokens (actors/router/prefix_table.h):
/// who has a trace cannot read its prompts. A value.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "graph/base/result.h"

namespace primerl {

/// Limits of a trace: one past them is an error that names the line.
inline constexpr size_t kTraceLineBytesMax = size_t{16} << 20;
inline constexpr int64_t kTurnTokensMax = 1 << 20;
struct TraceLimits {
  size_t turns_max = 1'000'000;
  size_t blocks_max = size_t{1} << 26;  // names in all, 8 bytes each
};

struct TracedTurn {
  uint32_t session = 0;  // counted in the order in which sessions appear, as groups are
  uint32_t group = 0;    // whose sessions are waited for together
  double arrival_s = 0;
  int32_t num_prompt_tokens = 0;
  int32_t num_completion_tokens = 0;
  /// Of the full blocks of prompt and completion, as far as they are known.
  std::vector<uint64_t> blocks;

  /// Those that lie in the prompt.
  size_t num_prompt_blocks() const;
};

struct SessionTrace {
  std::vector<TracedTurn> turns;  // of one session in their order
  uint32_t num_sessions = 0;
  uint32_t num_groups = 0;
};

Result<SessionTrace> read_session_trace(const std::filesystem::path& file,
                                        const TraceLimits& limits = {});
/// `file` is rollouts.jsonl of a run with log_tokens. It says no times: groups arrive in the order
/// of their numbers, one every `group_every_s`.
Result<SessionTrace> read_rollouts(const std::filesystem::path& file, double group_every_s,
                                   const TraceLimits& limits = {});
/// The text of a file that read_session_trace() takes.
std::string session_trace_text(const SessionTrace& trace);

}  // namespace primerl
