// Frames that real servers of verifiers 0.1.14, 0.2.1, 0.3.1 and 0.4.0 exchanged with their own
// Python clients (golden/). `expected` was computed from them by a few lines of Python.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include "runtime/outside/verifiers/dialect.h"
#include "runtime/outside/verifiers/episode.h"
#include "runtime/outside/verifiers/episode_assembly.h"
#include "runtime/outside/verifiers/msgpack_json.h"

namespace primerl {
namespace {

struct Exchange {
  std::string name;
  VerifiersDialect dialect;
  std::vector<Frames> requests, answers;  // in their order
  Json expected;                          // by the id of a run
};

std::string from_hex(const std::string& hex) {
  std::string made;
  for (size_t i = 0; i < hex.size(); i += 2)
    made.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return made;
}

std::vector<Exchange> exchanges() {
  std::vector<Exchange> all;
  const std::string folder = PRIMERL_SOURCE_DIR "/tests/outside/verifiers/golden";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream stream(entry.path(), std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(stream), {}};
    const Json file = *parse_json(text, entry.path().string());
    Exchange made;
    made.name = entry.path().filename().string();
    made.dialect = *verifiers_dialect(file.get_string("dialect").value());
    made.expected = *file.find("expected");
    for (const Json& message : file.find("frames")->as_array()) {
      Frames frames;
      for (const Json& hex : message.find("frames")->as_array())
        frames.push_back(from_hex(hex.as_string()));
      const bool is_request = message.get_string("to").value() == "server";
      (is_request ? made.requests : made.answers).push_back(std::move(frames));
    }
    all.push_back(std::move(made));
  }
  return all;
}

/// The branches as the files have them: token ids, and 1 for each sampled one.
Json with_masks(const Json& member) {
  Json branches = Json::array();
  for (const Json& branch : member.find("branches")->as_array()) {
    const Json& tokens = *branch.find("tokens");
    std::vector<int64_t> mask(tokens.as_array().size());
    for (const Json& range : branch.find("sampled")->as_array())
      for (int64_t i = range.as_array()[0].as_int(); i < range.as_array()[1].as_int(); ++i)
        mask.at(static_cast<size_t>(i)) = 1;
    branches.push_back(Json::object().set("tokens", tokens).set("mask", Json::list(mask)));
  }
  return branches;
}

TEST(GoldenFrames, HaveOneFileForEachServer) {
  std::vector<VerifiersDialect> dialects;
  for (const Exchange& exchange : exchanges()) dialects.push_back(exchange.dialect);
  EXPECT_THAT(dialects,
              ::testing::UnorderedElementsAre(VerifiersDialect::kW0, VerifiersDialect::kW1a,
                                              VerifiersDialect::kW1c, VerifiersDialect::kW2));
}

TEST(GoldenFrames, AnswersOfRealServersBecomeRewardsAndBranches) {
  for (const Exchange& exchange : exchanges()) {
    SCOPED_TRACE(exchange.name);
    std::map<std::string, EpisodeAssembly> assemblies;
    size_t num_runs = 0;
    for (const Frames& frames : exchange.answers) {
      const auto frame = read_server_frame(exchange.dialect, frames);
      ASSERT_TRUE(frame.ok()) << frame.error().text();
      auto payload = read_msgpack(frame->payload);
      ASSERT_TRUE(payload.ok()) << payload.error().text();
      const Json* const expected = exchange.expected.find(frame->id);
      if (expected == nullptr) continue;  // of health, info or cancel
      EpisodeAssembly& assembly = assemblies[std::string(frame->id)];
      if (frame->is_delta) {
        const Status added = assembly.add(*payload);
        ASSERT_TRUE(added.ok()) << added.error().text();
        continue;
      }
      ++num_runs;
      const auto failure = *failure_of(*payload);
      if (expected->find("failure") != nullptr) {
        EXPECT_EQ(failure, expected->get_string("failure").value());
        continue;
      }
      if (exchange.dialect == VerifiersDialect::kW2) payload = assembly.finish(*payload);
      ASSERT_TRUE(payload.ok()) << payload.error().text();
      const auto answer = run_answer(exchange.dialect, *payload, 1);
      ASSERT_TRUE(answer.ok()) << answer.error().text();
      const Json& member = answer->find("members")->as_array().at(0);
      EXPECT_EQ(member.get_string("end").value(), expected->get_string("end").value());
      EXPECT_EQ(member.get_double("reward").value(), expected->get_double("reward").value());
      EXPECT_EQ(with_masks(member).dump(), expected->find("branches")->dump());
    }
    EXPECT_EQ(num_runs, exchange.expected.as_object().size());
  }
}

/// The keys of a map, and those of the maps in it.
void collect_keys(const Json& value, const std::string& path, std::set<std::string>& keys) {
  if (!value.is_object()) return;
  for (const auto& [key, each] : value.as_object()) {
    keys.insert(path + key);
    collect_keys(each, path + key + ".", keys);
  }
}

TEST(GoldenFrames, RequestsHaveTheFormOfThePythonClients) {
  for (const Exchange& exchange : exchanges()) {
    SCOPED_TRACE(exchange.name);
    for (const Frames& frames : exchange.requests) {
      if (frames.size() == 3 && frames[1] == "health") {
        EXPECT_EQ(health_request(exchange.dialect, frames[0]), frames);
      }
      if (frames.size() == 3 && frames[1] == "info") {
        EXPECT_EQ(empty_request("info", frames[0]), frames);
      }
      if (frames.size() == 3 && frames[1] == "cancel") {
        const std::string run = read_msgpack(frames[2])->get_string("request_id").value();
        EXPECT_EQ(*cancel_request(exchange.dialect, frames[0], run), frames);
      }
      if (frames.back().empty()) {
        EXPECT_EQ(*cancel_request(exchange.dialect, "x", frames[0]), frames);
      }
      if (!exchange.expected.find(frames[0]) || frames.back().empty()) continue;
      const Json request = *read_msgpack(frames.back());
      Json call = *parse_json(R"({"salt":"s","base_url":"http://h","model":"main",
          "api_key_var":"K","sampling":{"temperature":1.0,"top_p":1.0,"max_tokens":16}})",
                              "");
      Json data = Json::object();
      for (const char* key : {"input", "task_data", "task_idx"})
        if (const Json* const value = request.find(key)) data.set(key, *value);
      const auto made = run_request(exchange.dialect, frames[0], call.set("data", data), {});
      ASSERT_TRUE(made.ok()) << made.error().text();
      ASSERT_EQ(made->size(), frames.size());
      EXPECT_EQ((*made)[made->size() - 2], frames[frames.size() - 2]);  // method, or the id
      std::set<std::string> known_keys, made_keys;
      collect_keys(request, "", known_keys);
      collect_keys(*read_msgpack(made->back()), "", made_keys);
      // Servers refuse keys of a client that they do not know.
      for (const std::string& key : made_keys)
        EXPECT_TRUE(!key.starts_with("client.") || known_keys.contains(key)) << key;
      for (const char* key : {"model", "client", "sampling", "client_config", "sampling_args",
                              "request_type", "state_columns", "max_retries"})
        EXPECT_EQ(made_keys.contains(key), known_keys.contains(key)) << key;
    }
  }
}

}  // namespace
}  // namespace primerl
