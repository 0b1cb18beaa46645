#include "runtime/cli/session_trace.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <map>
#include <tuple>

#include "actors/router/prefix_table.h"
#include "graph/base/files.h"
#include "graph/base/json.h"
#include "graph/base/random.h"
#include "graph/base/suggest.h"

namespace primerl {
namespace {

const std::vector<std::string> kKeys = {
    "tenant", "session",    "group",         "arrival_s", "salt",          "prompt",
    "blocks", "completion", "prompt_tokens", "shared",    "shared_tokens", "completion_tokens"};

/// Numbers names in the order in which they appear.
class Counted {
 public:
  uint32_t index_of(const std::string& name) {
    return indices_.try_emplace(name, static_cast<uint32_t>(indices_.size())).first->second;
  }
  uint32_t size() const { return static_cast<uint32_t>(indices_.size()); }

 private:
  std::map<std::string, uint32_t> indices_;
};

/// Calls `take` with each line as JSON. File and line are added to an error of `take`.
Status for_each_line(const std::filesystem::path& file, bool is_last_line_optional,
                     const std::function<Status(const Json&)>& take) {
  ASSIGN_OR_RETURN(const MappedFile mapped, map_file(file));
  std::string_view rest(reinterpret_cast<const char*>(mapped.bytes.data()), mapped.bytes.size());
  for (uint64_t number = 1; !rest.empty(); ++number) {
    const size_t end = rest.find('\n');
    // A killed run may leave half a line.
    if (end == std::string_view::npos && is_last_line_optional) break;
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    const std::string where = fmt::format("{}:{}", file.string(), number);
    if (line.size() > kTraceLineBytesMax)
      return error(Code::kInvalid, "{}: the line has {} bytes, at most {} are valid", where,
                   line.size(), kTraceLineBytesMax);
    ASSIGN_OR_RETURN(const Json json, parse_json(line, where));
    if (!json.is_object())
      return error(Code::kInvalid, "{}: a line is an object, not {}", where, json.kind());
    if (Status taken = take(json); !taken.ok()) return Error(taken.error()).while_doing(where);
  }
  return ok();
}

/// The turns so far, within the limits.
class Turns {
 public:
  explicit Turns(const TraceLimits& limits) : limits_(limits) {}
  Status add(TracedTurn turn) {
    if (turns_.size() >= limits_.turns_max)
      return error(Code::kInvalid, "a trace has at most {} turns", limits_.turns_max);
    num_blocks_ += turn.blocks.size();
    if (num_blocks_ > limits_.blocks_max)
      return error(Code::kInvalid, "the prompts of a trace have at most {} blocks of {} tokens",
                   limits_.blocks_max, kRouteBlockTokens);
    turns_.push_back(std::move(turn));
    return ok();
  }
  std::vector<TracedTurn> take() { return std::move(turns_); }

 private:
  const TraceLimits limits_;
  std::vector<TracedTurn> turns_;
  size_t num_blocks_ = 0;
};

Result<int64_t> number_in(const Json& line, std::string_view key, int64_t least, int64_t most) {
  if (const Json* written = line.find(key);
      written != nullptr && written->is_integer() && written->as_double() >= 0x1p63)
    return error(Code::kInvalid, "'{}' is {}, not in {} to {}", key, written->dump(), least, most);
  ASSIGN_OR_RETURN(const int64_t value, line.get_int(key));
  if (value < least || value > most)
    return error(Code::kInvalid, "'{}' is {}, not in {} to {}", key, value, least, most);
  return value;
}

Result<std::vector<int32_t>> tokens_in(const Json& line, std::string_view key) {
  const Json* list = line.find(key);
  if (list == nullptr || !list->is_array())
    return error(Code::kInvalid, "'{}' is no list of token ids", key);
  if (static_cast<int64_t>(list->as_array().size()) > kTurnTokensMax)
    return error(Code::kInvalid, "'{}' has {} tokens, at most {} are valid", key,
                 list->as_array().size(), kTurnTokensMax);
  std::vector<int32_t> tokens;
  for (const Json& token : list->as_array()) {
    if (!token.is_integer() || token.as_int() < 0 || token.as_int() > INT32_MAX)
      return error(Code::kInvalid, "'{}' holds {}, which is no token id", key, token.dump());
    tokens.push_back(static_cast<int32_t>(token.as_int()));
  }
  return tokens;
}

Result<std::string> text_or(const Json& line, std::string_view key, std::string otherwise) {
  if (line.find(key) == nullptr) return otherwise;
  return line.get_string(key);
}

class TraceReader {
 public:
  explicit TraceReader(const TraceLimits& limits) : turns_(limits) {}
  Status take(const Json& line) {
    for (const auto& [key, value] : line.as_object())
      if (std::ranges::find(kKeys, key) == kKeys.end()) {
        const std::string near = nearest_name(key, kKeys);
        const std::string shown = Json(key).dump();  // in quotes, control characters escaped
        return error(Code::kInvalid, "unknown key '{}'", shown.substr(1, shown.size() - 2))
            .note(near.empty() ? "keys: " + join_names(kKeys)
                               : fmt::format("did you mean '{}'?", near));
      }
    TracedTurn turn;
    ASSIGN_OR_RETURN(const std::string tenant, text_or(line, "tenant", "main"));
    ASSIGN_OR_RETURN(const int64_t session, number_in(line, "session", 0, INT64_MAX));
    const std::string name = fmt::format("{}/{}", tenant, session);
    turn.session = sessions_.index_of(name);
    std::string group = "session " + name;
    if (line.find("group") != nullptr) {
      ASSIGN_OR_RETURN(const int64_t number, number_in(line, "group", 0, INT64_MAX));
      group = fmt::format("group {}/{}", tenant, number);
    }
    turn.group = groups_.index_of(group);
    ASSIGN_OR_RETURN(turn.arrival_s, line.get_double("arrival_s"));
    if (!(turn.arrival_s >= 0 && turn.arrival_s <= 1e9))
      return error(Code::kInvalid, "'arrival_s' is {}, not in 0 to 1e9", turn.arrival_s);
    if (turn.session < newest_.size() && turn.arrival_s < newest_[turn.session])
      return error(Code::kInvalid, "session {} arrives at {} s, its turn before at {} s", session,
                   turn.arrival_s, newest_[turn.session]);
    newest_.resize(sessions_.size());
    newest_[turn.session] = turn.arrival_s;
    RETURN_IF_ERROR(read_prompt(line, tenant, turn));
    return turns_.add(std::move(turn));
  }
  SessionTrace finish() { return {turns_.take(), sessions_.size(), groups_.size()}; }

 private:
  Status read_prompt(const Json& line, const std::string& tenant, TracedTurn& turn) {
    const bool has_ids = line.find("prompt") != nullptr;
    if (has_ids == (line.find("prompt_tokens") != nullptr))
      return error(Code::kInvalid,
                   "a turn has either 'prompt', token ids, or 'prompt_tokens', "
                   "their number");
    ASSIGN_OR_RETURN(const std::string salt, text_or(line, "salt", ""));
    RETURN_IF_ERROR(check_keys(line, has_ids));
    if (has_ids) return read_tokens(line, tenant, salt, turn);
    ASSIGN_OR_RETURN(const int64_t prompt, number_in(line, "prompt_tokens", 1, kTurnTokensMax));
    turn.num_prompt_tokens = static_cast<int32_t>(prompt);
    RETURN_IF_ERROR(read_completion_tokens(line, turn));
    if (line.find("blocks") != nullptr) return read_blocks(line, turn);
    return make_blocks(line, tenant, salt, turn);
  }

  /// Refuses a key that has no effect here, because the user expects an effect.
  static Status check_keys(const Json& line, bool has_ids) {
    const auto has = [&](std::string_view key) { return line.find(key) != nullptr; };
    const bool has_blocks = !has_ids && has("blocks");
    for (const auto& [key, is_known] :
         {std::pair("completion", has_ids), std::pair("blocks", has_blocks),
          std::pair("salt", !has_blocks), std::pair("shared", !has_ids && !has_blocks),
          std::pair("shared_tokens", !has_ids && !has_blocks)})
      if (has(key) && !is_known)
        return error(Code::kInvalid, "'{}' means nothing beside '{}'", key,
                     has_ids      ? "prompt"
                     : has_blocks ? "blocks"
                                  : "prompt_tokens");
    if (has("completion") && has("completion_tokens"))
      return error(Code::kInvalid, "a turn has either 'completion' or 'completion_tokens'");
    if (has("shared") != has("shared_tokens"))
      return error(Code::kInvalid, "'shared' and 'shared_tokens' go together");
    return ok();
  }

  static Status read_completion_tokens(const Json& line, TracedTurn& turn) {
    ASSIGN_OR_RETURN(const int64_t count, number_in(line, "completion_tokens", 1, kTurnTokensMax));
    turn.num_completion_tokens = static_cast<int32_t>(count);
    return ok();
  }

  Status read_tokens(const Json& line, const std::string& tenant, const std::string& salt,
                     TracedTurn& turn) {
    ASSIGN_OR_RETURN(auto tokens, tokens_in(line, "prompt"));
    if (tokens.empty()) return error(Code::kInvalid, "'prompt' is empty");
    turn.num_prompt_tokens = static_cast<int32_t>(tokens.size());
    if (line.find("completion") == nullptr) {
      RETURN_IF_ERROR(read_completion_tokens(line, turn));
    } else {
      ASSIGN_OR_RETURN(const auto completion, tokens_in(line, "completion"));
      if (completion.empty()) return error(Code::kInvalid, "'completion' is empty");
      turn.num_completion_tokens = static_cast<int32_t>(completion.size());
      tokens.insert(tokens.end(), completion.begin(), completion.end());
    }
    const TenantSlot slot(tenants_.index_of(tenant));
    turn.blocks = namer_.names_of(tokens, {{slot}, salt, PolicyVersion(0)});
    return ok();
  }

  static Status read_blocks(const Json& line, TracedTurn& turn) {
    const Json& list = *line.find("blocks");
    const auto num_tokens = turn.num_prompt_tokens + turn.num_completion_tokens;
    const size_t most = static_cast<size_t>(num_tokens / kRouteBlockTokens);
    if (!list.is_array() || list.as_array().size() > most)
      return error(Code::kInvalid, "'blocks' is a list of at most {} names for {} tokens", most,
                   num_tokens);
    for (const Json& block : list.as_array()) {
      const std::string text = block.is_string() ? block.as_string() : "";
      uint64_t name = 0;
      const char* const last = text.data() + text.size();
      const auto [end, fault] = std::from_chars(text.data(), last, name, 16);
      if (fault != std::errc() || end != last)
        return error(Code::kInvalid, "'blocks' holds {}, which is no hexadecimal number of 64 bits",
                     block.dump());
      turn.blocks.push_back(name);
    }
    return ok();
  }

  /// Names for unknown tokens. The first `shared_tokens` are shared by all lines with the same
  /// `shared`; the rest is the session's own.
  static Status make_blocks(const Json& line, const std::string& tenant, const std::string& salt,
                            TracedTurn& turn) {
    ASSIGN_OR_RETURN(const std::string shared, text_or(line, "shared", ""));
    int64_t num_shared = 0;
    if (line.find("shared_tokens") != nullptr) {
      ASSIGN_OR_RETURN(num_shared, number_in(line, "shared_tokens", 0, turn.num_prompt_tokens));
    }
    const uint64_t common = stable_hash(fmt::format("{}\n{}\n{}", tenant, salt, shared));
    const uint64_t own = mix(mix(common, static_cast<uint64_t>(num_shared)), turn.session + 1);
    const int64_t num_tokens = turn.num_prompt_tokens + turn.num_completion_tokens;
    for (int64_t end = kRouteBlockTokens; end <= num_tokens; end += kRouteBlockTokens)
      turn.blocks.push_back(mix(end <= num_shared ? common : own, static_cast<uint64_t>(end)));
    return ok();
  }

  Turns turns_;
  Counted sessions_, groups_, tenants_;
  std::vector<double> newest_;  // [sessions]
  RouteBlockNamer namer_;
};

/// One rollout of a run.
struct LoggedRollout {
  std::pair<std::string, int64_t> group;  // tenant and number
  int64_t attempt = 0;
  std::string name;
  std::string salt;
  std::vector<int32_t> tokens;
  std::vector<int64_t> sample_begins;                // of the samples after the first; they rise
  std::vector<std::pair<int64_t, int64_t>> sampled;  // [begin, end) of each turn's completion

  /// The tokens [begin, end) of the sample that has the token at `position`.
  std::pair<size_t, size_t> sample_of(int64_t position) const {
    const auto next = std::upper_bound(sample_begins.begin(), sample_begins.end(), position);
    return {next == sample_begins.begin() ? 0 : static_cast<size_t>(*std::prev(next)),
            next == sample_begins.end() ? tokens.size() : static_cast<size_t>(*next)};
  }
};

/// Where further samples begin; empty in the lines of older runs.
Status read_sample_begins(const Json& line, LoggedRollout& rollout) {
  if (line.find("sample_begins") == nullptr) return ok();
  ASSIGN_OR_RETURN(const auto begins, tokens_in(line, "sample_begins"));
  for (const int32_t begin : begins) {
    const int64_t last = rollout.sample_begins.empty() ? 0 : rollout.sample_begins.back();
    if (begin <= last || std::cmp_greater_equal(begin, rollout.tokens.size()))
      return error(Code::kInvalid, "a sample begins at {} of {} tokens", begin,
                   rollout.tokens.size());
    rollout.sample_begins.push_back(begin);
  }
  return ok();
}

Result<LoggedRollout> rollout_in(const Json& line) {
  LoggedRollout rollout;
  ASSIGN_OR_RETURN(rollout.name, line.get_string("rollout"));
  ASSIGN_OR_RETURN(rollout.group.first, line.get_string("tenant"));
  ASSIGN_OR_RETURN(rollout.group.second, line.get_int("group"));
  ASSIGN_OR_RETURN(rollout.attempt, line.get_int("attempt"));
  ASSIGN_OR_RETURN(const int64_t version, line.get_int("version"));
  rollout.salt = fmt::format("{}:{}", rollout.group.first, version);
  if (line.find("tokens") == nullptr)
    return error(Code::kInvalid, "the rollout has no token ids")
        .note("a run writes them with `--set node.rollout.log_tokens=true`");
  ASSIGN_OR_RETURN(rollout.tokens, tokens_in(line, "tokens"));
  RETURN_IF_ERROR(read_sample_begins(line, rollout));
  const Json* spans = line.find("versions");
  if (spans == nullptr || !spans->is_array())
    return error(Code::kInvalid, "'versions' is no list of spans");
  const auto num_tokens = static_cast<int64_t>(rollout.tokens.size());
  for (const Json& span : spans->as_array()) {
    const int64_t least = rollout.sampled.empty() ? 1 : rollout.sampled.back().second;
    ASSIGN_OR_RETURN(const int64_t begin, number_in(span, "begin", least, num_tokens));
    ASSIGN_OR_RETURN(const int64_t end, number_in(span, "end", begin, num_tokens));
    if (begin == end) continue;
    // Another version in the middle of a completion does not begin a turn.
    if (!rollout.sampled.empty() && rollout.sampled.back().second == begin)
      rollout.sampled.back().second = end;
    else
      rollout.sampled.emplace_back(begin, end);
  }
  return rollout;
}

}  // namespace

size_t TracedTurn::num_prompt_blocks() const {
  return std::min(blocks.size(), static_cast<size_t>(num_prompt_tokens / kRouteBlockTokens));
}

Result<SessionTrace> read_session_trace(const std::filesystem::path& file,
                                        const TraceLimits& limits) {
  TraceReader reader(limits);
  RETURN_IF_ERROR(for_each_line(file, false, [&](const Json& line) { return reader.take(line); }));
  SessionTrace trace = reader.finish();
  if (trace.turns.empty()) return error(Code::kInvalid, "{}: no turn is in it", file.string());
  return trace;
}

Result<SessionTrace> read_rollouts(const std::filesystem::path& file, double group_every_s,
                                   const TraceLimits& limits) {
  std::vector<LoggedRollout> rollouts;
  RETURN_IF_ERROR(for_each_line(file, true, [&](const Json& line) -> Status {
    if (rollouts.size() > limits.turns_max)
      return error(Code::kInvalid, "a trace has at most {} turns", limits.turns_max);
    ASSIGN_OR_RETURN(auto rollout, rollout_in(line));
    if (!rollout.sampled.empty()) rollouts.push_back(std::move(rollout));
    return ok();
  }));
  const auto order = [](const LoggedRollout& rollout) {
    return std::tie(rollout.group.second, rollout.group.first, rollout.attempt, rollout.name);
  };
  std::ranges::sort(rollouts, [&](const auto& a, const auto& b) { return order(a) < order(b); });
  SessionTrace trace;
  Turns turns(limits);
  RouteBlockNamer namer;
  Counted groups, tenants;
  for (const LoggedRollout& rollout : rollouts) {
    TracedTurn turn;
    turn.session = trace.num_sessions++;
    turn.group = groups.index_of(
        fmt::format("{}/{}/{}", rollout.group.first, rollout.group.second, rollout.attempt));
    turn.arrival_s = turn.group * group_every_s;
    const TenantSlot slot(tenants.index_of(rollout.group.first));
    std::vector<uint64_t> names;
    size_t named = SIZE_MAX;  // the beginning of the sample that `names` are of
    for (const auto& [begin, end] : rollout.sampled) {
      const auto [first, last] = rollout.sample_of(begin);
      if (std::exchange(named, first) != first)
        names = namer.names_of(std::span(rollout.tokens).subspan(first, last - first),
                               {{slot}, rollout.salt, PolicyVersion(0)});
      const auto length = end - static_cast<int64_t>(first);
      turn.num_prompt_tokens = static_cast<int32_t>(begin - static_cast<int64_t>(first));
      turn.num_completion_tokens = static_cast<int32_t>(end - begin);
      const auto num_full = std::min<int64_t>(std::ssize(names), length / kRouteBlockTokens);
      turn.blocks.assign(names.begin(), names.begin() + num_full);
      if (Status added = turns.add(turn); !added.ok())
        return Error(added.error()).while_doing(file.string());
    }
  }
  trace.turns = turns.take();
  trace.num_groups = groups.size();
  if (trace.turns.empty()) return error(Code::kInvalid, "{}: no rollout is in it", file.string());
  return trace;
}

std::string session_trace_text(const SessionTrace& trace) {
  std::string text;
  for (const TracedTurn& turn : trace.turns) {
    Json blocks = Json::array();
    for (const uint64_t block : turn.blocks) blocks.push_back(fmt::format("{:016x}", block));
    text += Json::object()
                .set("session", turn.session)
                .set("group", turn.group)
                .set("arrival_s", turn.arrival_s)
                .set("prompt_tokens", turn.num_prompt_tokens)
                .set("completion_tokens", turn.num_completion_tokens)
                .set("blocks", std::move(blocks))
                .dump() +
            "\n";
  }
  return text;
}

}  // namespace primerl
