// `generate` and `score` with transformers in a Python worker: for families that this program does
// not have, and compared with its own computation for a family that it has. Answers that are not
// valid come from a worker of this file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "tests/base/made_by_python.h"
#include "tests/cli/program.h"
#include "tests/cpu/reference_models.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::filesystem::path foreign_models() {
  const auto folder = testing::made_by_python(PRIMERL_PYTHON, "transformers",
                                              "tests/e2e/make_foreign_models.py", "foreign_models");
  CHECK(folder.has_value(), "there is no package 'transformers' in " PRIMERL_PYTHON);
  return *folder;
}

Json read_json(const std::filesystem::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return parse_json(text.str(), file.string()).value();
}

std::string comma_list(const Json& ids) {
  std::string text;
  for (const auto& id : ids.as_array())
    text += (text.empty() ? "" : ",") + std::to_string(id.as_int());
  return text;
}

/// The objects that a command printed, one a line.
std::vector<Json> json_lines(const ProgramEnd& end) {
  EXPECT_EQ(end.code, 0) << end.err;
  std::vector<Json> lines;
  std::istringstream text(end.out);
  for (std::string line; std::getline(text, line);)
    lines.push_back(parse_json(line, "output").value());
  return lines;
}

class WithTransformers : public ::testing::Test {
 protected:
  static ProgramEnd run(std::vector<std::string> words,
                        const std::string& python = PRIMERL_PYTHON) {
    words.insert(words.begin(), "primerl-graph");
    return Program(std::move(words), {"PRIMERL_PYTHON=" + python}).wait();
  }

  std::string ids_file(const std::string& text) {
    write_text(scratch_.path() / "ids.txt", text);
    return (scratch_.path() / "ids.txt").string();
  }

  /// A program in place of Python: it answers `load`, and every later call with `answer`.
  std::string fake_python(const std::string& answer,
                          const std::string& facts = R"("vocab_size": 100, "end_ids": [1])") {
    const auto file = scratch_.path() / "fake_python";
    std::ofstream(file) << "#!" << PRIMERL_PYTHON << "\n"
                        << "import json, sys\n"
                           "print('{\"protocol\": \"primerl-graph 1\"}', flush=True)\n"
                           "for line in sys.stdin:\n"
                           "  call = json.loads(line)\n"
                           "  n = len(call.get('ids', []))\n"
                           "  id = call['id']\n"
                           "  if call['call'] == 'load':\n"
                           "    print('{\"id\": %d, "
                        << facts
                        << "}' % id, flush=True)\n"
                           "  else:\n    "
                        << answer << "\n";
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
    return file.string();
  }

  ScratchFolder scratch_;
};

TEST_F(WithTransformers, AFamilyThatIsMissingIsScoredAndContinued) {
  for (const std::string name : {"gpt2", "gemma2"}) {
    const auto folder = (foreign_models() / name).string();
    const Json expected = read_json(foreign_models() / (name + ".json"));
    std::string text;
    for (const Json& each : expected.find("sequences")->as_array())
      text += comma_list(*each.find("ids")) + "\n";
    const auto scored = run({"score", "--model", folder, "--ids-file", ids_file(text), "--json"});
    EXPECT_THAT(scored.err, AllOf(HasSubstr("note: transformers computes '" + folder + "'"),
                                  HasSubstr("'" + name + "' is not supported")));
    const auto lines = json_lines(scored);
    const auto& sequences = expected.find("sequences")->as_array();
    ASSERT_EQ(lines.size(), sequences.size());
    for (size_t i = 0; i < lines.size(); ++i) {
      const auto& values = lines[i].find("logprobs")->as_array();
      const auto& wanted = sequences[i].find("logprobs")->as_array();
      ASSERT_EQ(values.size(), wanted.size());
      for (size_t j = 0; j < values.size(); ++j)
        EXPECT_NEAR(values[j].as_double(), wanted[j].as_double(), 1e-5) << name << " " << j;
    }
    const auto greedy = json_lines(
        run({"generate", "--model", folder, "--prompt-ids", comma_list(*expected.find("prompt")),
             "--max-tokens", "24", "--temperature", "0", "--ignore-eos", "--json"}));
    ASSERT_EQ(greedy.size(), 1U);
    EXPECT_EQ(comma_list(*greedy[0].find("token_ids")), comma_list(*expected.find("tokens")));
    EXPECT_EQ(*greedy[0].get_string("finish_reason"), "length");
  }
}

TEST_F(WithTransformers, AFamilyThatIsThereGetsTheSameScoresAndGreedyTokens) {
  const auto folder = (testing::reference_models() / "qwen3").string();
  const auto ids = ids_file("5,9,33,80,2,14,77,3\n7,8\n42,17,3,9,9,61,100\n");
  const auto with = [&](const std::string& impl) {
    return json_lines(
        run({"score", "--model", folder, "--ids-file", ids, "--json", "--impl", impl}));
  };
  const auto native = with("native"), other = with("transformers");
  ASSERT_EQ(native.size(), 3U);
  ASSERT_EQ(other.size(), 3U);
  for (size_t i = 0; i < native.size(); ++i) {
    const auto& a = native[i].find("logprobs")->as_array();
    const auto& b = other[i].find("logprobs")->as_array();
    ASSERT_EQ(a.size(), b.size());
    for (size_t j = 0; j < a.size(); ++j) EXPECT_NEAR(a[j].as_double(), b[j].as_double(), 1e-5);
  }
  const auto greedy = [&](const std::string& impl) {
    return json_lines(run({"generate", "--model", folder, "--prompt", "abc", "--temperature", "0",
                           "--max-tokens", "12", "--min-tokens", "3", "--prompt-logprobs", "--json",
                           "--impl", impl}))
        .at(0);
  };
  const Json one = greedy("native"), two = greedy("transformers");
  for (const char* key : {"token_ids", "text", "finish_reason"})
    EXPECT_EQ(one.find(key)->dump(), two.find(key)->dump()) << key;
  EXPECT_EQ(one.find("prompt_logprobs")->as_array().size(),
            two.find("prompt_logprobs")->as_array().size());
}

TEST_F(WithTransformers, SampledTokensScoreTheSameAndASeedRepeats) {
  const auto folder = (foreign_models() / "gpt2").string();
  const std::vector<std::string> words = {
      "generate", "--model", folder, "--prompt-ids", "5,6,7", "--max-tokens", "12", "--n",
      "2",        "--seed",  "3",    "--ignore-eos", "--json"};
  const auto first = run(words);
  const auto lines = json_lines(first);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_NE(lines[0].find("token_ids")->dump(), lines[1].find("token_ids")->dump());
  EXPECT_EQ(first.out, run(words).out);
  const auto scored =
      json_lines(run({"score", "--model", folder, "--ids-file",
                      ids_file("5,6,7," + comma_list(*lines[0].find("token_ids"))), "--json"}));
  const auto& scores = scored.at(0).find("logprobs")->as_array();
  const auto& sampled = lines[0].find("logprobs")->as_array();
  ASSERT_EQ(scores.size(), sampled.size() + 2);
  for (size_t i = 0; i < sampled.size(); ++i)
    EXPECT_NEAR(scores[i + 2].as_double(), sampled[i].as_double(), 1e-5);
}

TEST_F(WithTransformers, AnEndTokenAndAStopTextEndACompletion) {
  // Ids 35 and 36 are 'A' and 'B' in the tokenizer of the folder.
  const auto folder = (foreign_models() / "gpt2").string();
  const auto fake = fake_python(
      "print('{\"id\": %d, \"tokens\": [35, 36, 35, 1], \"logprobs\": [-1, -1, -1, -1]}' % id, "
      "flush=True)");
  const auto at_end =
      run({"generate", "--model", folder, "--prompt", "x", "--max-tokens", "9"}, fake);
  EXPECT_EQ(at_end.code, 0) << at_end.err;
  EXPECT_EQ(at_end.out, "ABA\n");
  const auto at_text = run({"generate", "--model", folder, "--prompt", "x", "--max-tokens", "9",
                            "--stop", "BA", "--json"},
                           fake);
  const Json line = json_lines(at_text).at(0);
  EXPECT_EQ(comma_list(*line.find("token_ids")), "35,36,35");
  EXPECT_EQ(*line.get_string("text"), "A");
  EXPECT_EQ(*line.get_string("finish_reason"), "stop");
  const auto early = run(
      {"generate", "--model", folder, "--prompt", "x", "--max-tokens", "9", "--ignore-eos"}, fake);
  EXPECT_EQ(early.code, 2);
  EXPECT_THAT(early.err, HasSubstr("ended after 4 tokens without an end token"));
}

TEST_F(WithTransformers, NativeRefusesAFamilyThatIsMissing) {
  const auto folder = (foreign_models() / "gpt2").string();
  const auto end =
      run({"score", "--model", folder, "--ids-file", ids_file("1,2\n"), "--impl", "native"});
  EXPECT_EQ(end.code, 2);
  EXPECT_THAT(end.err, HasSubstr("model_type 'gpt2' is not supported"));
  EXPECT_THAT(end.out, IsEmpty());
}

TEST_F(WithTransformers, OptionsOfOurSamplerAreRefusedByName) {
  const auto folder = (foreign_models() / "gpt2").string();
  for (const auto& [name, value] :
       {std::pair("--adapter", "x"), std::pair("--logit-bias", "3=1"),
        std::pair("--repetition-penalty", "1.5"), std::pair("--frequency-penalty", "1"),
        std::pair("--presence-penalty", "1")}) {
    const auto end = run({"generate", "--model", folder, "--prompt", "x", name, value});
    EXPECT_EQ(end.code, 3) << name;
    EXPECT_THAT(end.err, HasSubstr(std::string(name) + " is not there")) << end.err;
  }
  EXPECT_EQ(run({"generate", "--model", folder, "--prompt", "x", "--impl", "hf"}).code, 3);
}

TEST_F(WithTransformers, FoldersThatTransformersCannotReadAreNamed) {
  const auto empty = scratch_.path() / "model";
  std::filesystem::create_directories(empty);
  write_text(empty / "config.json", R"({"model_type": "nosuch"})");
  const auto end = run({"score", "--model", empty.string(), "--ids-file", ids_file("1,2\n")});
  EXPECT_EQ(end.code, 2);
  EXPECT_THAT(end.err, AllOf(HasSubstr("transformers, '" + empty.string() + "'"),
                             HasSubstr("nosuch"), HasSubstr("PRIMERL_PYTHON")));
  // A file that is no config is reported without Python.
  write_text(empty / "config.json", "[]");
  const auto broken =
      run({"score", "--model", empty.string(), "--ids-file", ids_file("1,2\n")}, "/nowhere/python");
  EXPECT_EQ(broken.code, 2);
  EXPECT_THAT(broken.err, ::testing::Not(HasSubstr("python")));
}

TEST_F(WithTransformers, APythonThatIsMissingOrHasNoPackagesIsNamed) {
  const auto folder = (foreign_models() / "gpt2").string();
  const std::vector<std::string> words = {"score", "--model", folder, "--ids-file",
                                          ids_file("1,2\n")};
  const auto missing = run(words, "/nowhere/python");
  EXPECT_EQ(missing.code, 2);
  EXPECT_THAT(missing.err, HasSubstr("PRIMERL_PYTHON is '/nowhere/python', which is no program"));
  // -S -E: without site-packages.
  const auto bare = scratch_.path() / "bare_python";
  std::ofstream(bare) << "#!/bin/sh\nexec " PRIMERL_PYTHON " -S -E \"$@\"\n";
  std::filesystem::permissions(bare, std::filesystem::perms::owner_all);
  const auto without = run(words, bare.string());
  EXPECT_EQ(without.code, 2);
  EXPECT_THAT(without.err, HasSubstr("has no package 'torch'"));
  const auto failing = run(words, "/bin/false");
  EXPECT_EQ(failing.code, 2);
  EXPECT_THAT(failing.err, HasSubstr("exited with code 1"));
}

TEST_F(WithTransformers, IdsAreCheckedBeforeTheyAreSent) {
  const auto folder = (foreign_models() / "gpt2").string();
  const auto fake =
      fake_python("print(json.dumps({'id': id, 'logprobs': [-0.5] * (n - 1)}), flush=True)");
  const auto of = [](size_t count) {
    std::string text = "1";
    for (size_t i = 1; i < count; ++i) text += ",1";
    return text + "\n";
  };
  const auto most = run({"score", "--model", folder, "--ids-file", ids_file(of(32768))}, fake);
  EXPECT_EQ(most.code, 0) << most.err;
  const auto more = run({"score", "--model", folder, "--ids-file", ids_file(of(32769))}, fake);
  EXPECT_EQ(more.code, 2);
  EXPECT_THAT(more.err, HasSubstr("32769 tokens are more than the 32768"));
  const auto beyond =
      run({"score", "--model", folder, "--ids-file", ids_file("7,8\n3,100\n")}, fake);
  EXPECT_EQ(beyond.code, 2);
  EXPECT_THAT(beyond.err, AllOf(HasSubstr("sequence 2"),
                                HasSubstr("token 100 is not in the vocabulary of 100")));
}

TEST_F(WithTransformers, AnswersThatAreNotValidAreErrors) {
  const auto folder = (foreign_models() / "gpt2").string();
  const auto ids = ids_file("7,8,9\n");
  const auto fault = [&](const std::string& answer) {
    const auto end = run({"score", "--model", folder, "--ids-file", ids},
                         fake_python("print('{\"id\": %d, " + answer + "}' % id, flush=True)"));
    EXPECT_EQ(end.code, 2) << answer;
    EXPECT_THAT(end.out, IsEmpty());
    return end.err;
  };
  EXPECT_THAT(fault(R"("logprobs": [-1])"), HasSubstr("1 log-probabilities for 2 tokens"));
  EXPECT_THAT(fault(R"("logprobs": 3)"), HasSubstr("no list 'logprobs'"));
  EXPECT_THAT(fault(R"("logprobs": [-1, 2])"), HasSubstr("'logprobs' of its answer has 2"));
  EXPECT_THAT(fault(R"("error": "out of memory")"), HasSubstr("out of memory"));
  const auto dead =
      run({"score", "--model", folder, "--ids-file", ids}, fake_python("sys.exit(4)"));
  EXPECT_EQ(dead.code, 2);
  EXPECT_THAT(dead.err, HasSubstr("exited with code 4"));
  const auto facts = run({"score", "--model", folder, "--ids-file", ids},
                         fake_python("pass", R"("vocab_size": 100, "end_ids": [-3])"));
  EXPECT_EQ(facts.code, 2);
  EXPECT_THAT(facts.err, HasSubstr("'end_ids' of its answer has -3"));
}

}  // namespace
}  // namespace primerl
