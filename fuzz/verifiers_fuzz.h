/// One input of the fuzzer of verifiers frames: what a hostile or broken server sends. The first
/// byte chooses the dialect; the rest is the frames of several answers, each after its length in
/// two bytes. tests/outside/verifiers/verifiers_fuzz_test.cc runs it over the corpus.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/base/assert.h"
#include "runtime/outside/verifiers/episode.h"
#include "runtime/outside/verifiers/episode_assembly.h"
#include "runtime/outside/verifiers/msgpack_json.h"
#include "runtime/outside/verifiers/probe.h"

namespace primerl {

struct FuzzedServer {
  size_t num_deltas = 0;
  size_t num_answers = 0;  // that became members
};

/// The payloads in the input.
inline std::vector<std::string_view> fuzzed_payloads(std::string_view bytes) {
  std::vector<std::string_view> payloads;
  while (bytes.size() >= 2) {
    const size_t size =
        static_cast<unsigned char>(bytes[0]) * size_t{256} + static_cast<unsigned char>(bytes[1]);
    payloads.push_back(bytes.substr(2, size));
    bytes.remove_prefix(std::min(bytes.size(), size + 2));
  }
  return payloads;
}

/// Members have an end; a failed one has no reward; ranges are within their tokens.
inline void check_members(const Json& answer) {
  for (const Json& member : answer.find("members")->as_array()) {
    const bool is_done = *member.get_string("end") == "done";
    CHECK(is_done == (member.find("reward") != nullptr), "a failed member has a reward");
    for (const Json& branch : member.find("branches")->as_array()) {
      int64_t last = 0;
      for (const Json& range : branch.find("sampled")->as_array()) {
        CHECK(range.as_array()[0].as_int() >= last, "ranges are not in order");
        last = range.as_array()[1].as_int();
      }
      CHECK(std::cmp_less_equal(last, branch.find("tokens")->as_array().size()),
            "a range is outside of its tokens");
    }
  }
}

inline FuzzedServer fuzz_verifiers(std::string_view bytes) {
  FuzzedServer seen;
  if (bytes.empty()) return seen;
  const auto dialect = static_cast<VerifiersDialect>(static_cast<unsigned char>(bytes[0]) % 5);
  EpisodeAssembly assembly;
  ServerProbe probe(
      {}, [] { return std::string("id"); }, Time());
  for (const std::string_view payload : fuzzed_payloads(bytes.substr(1))) {
    probe.on_opened();
    probe.on_connected(Time());
    probe.on_frames({"id", std::string(payload)}, Time());
    probe.on_frames({"id", "reply", std::string(payload)}, Time());
    MsgpackLimits limits;
    limits.values_max = 65'536;
    auto value = read_msgpack(payload, limits);
    if (!value.ok()) continue;
    const std::string again = write_msgpack(*value);
    const auto same = read_msgpack(again, limits);
    CHECK(same.ok() && write_msgpack(*same) == again, "a value did not round trip");
    if (dialect == VerifiersDialect::kW2 && assembly.add(*value).ok()) ++seen.num_deltas;
    if (dialect == VerifiersDialect::kW2) value = assembly.finish(*value);
    if (!value.ok()) continue;
    const auto answer = run_answer(dialect, *value, 1);
    if (!answer.ok()) continue;
    ++seen.num_answers;
    check_members(*answer);
    (void)answer->dump();
  }
  return seen;
}

}  // namespace primerl
