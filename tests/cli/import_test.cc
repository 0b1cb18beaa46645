// `primerl-graph import`: public prime-rl configurations become graphs that pass `check`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "graph/config/toml_source.h"
#include "runtime/cli/prime_rl.h"
#include "runtime/program/exit_code.h"
#include "tests/cli/hollow_model.h"
#include "tests/cli/program.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
namespace fs = std::filesystem;

std::vector<fs::path> configurations() {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(source_path("tests/cli/prime_rl")))
    if (entry.path().extension() == ".toml") found.push_back(entry.path());
  std::ranges::sort(found);
  return found;
}

/// The keys of a file, found without the code of the command.
void add_keys(const Value& value, const std::string& key, std::multiset<std::string>& keys) {
  const bool is_list =
      value.is_array() && !value.as_array().empty() && value.as_array().front().is_table();
  if (is_list)
    for (size_t i = 0; i < value.as_array().size(); ++i)
      add_keys(value.as_array()[i], fmt::format("{}[{}]", key, i), keys);
  else if (value.is_table() && !value.as_table().entries.empty())
    for (const Entry& entry : value.as_table().entries)
      add_keys(entry.value, key.empty() ? entry.key : key + "." + entry.key, keys);
  else
    keys.insert(key);
}

std::multiset<std::string> keys_of(const fs::path& file) {
  Sources sources;
  Diagnostics diagnostics;
  const auto root =
      parse_toml(sources, sources.add("rl.toml", read_text_file(file).value()), diagnostics);
  std::multiset<std::string> keys;
  add_keys(Value(*root, Span{}), "", keys);
  return keys;
}

PrimeRlImport import_text(const std::string& text, std::string* faults = nullptr) {
  Sources sources;
  Diagnostics diagnostics;
  const auto root = parse_toml(sources, sources.add("rl.toml", text), diagnostics);
  PrimeRlImport import;
  if (root)
    import = import_prime_rl(*root,
                             {.source = "rl.toml",
                              .environments =
                              { "reverse_text",
                                "copy" }},
                             diagnostics);
  if (faults != nullptr)
    *faults = render(diagnostics, sources);
  else
    EXPECT_EQ(render(diagnostics, sources), "");
  return import;
}

/// "not supported: reason" of one key.
std::string fate_of(const PrimeRlImport& import, const std::string& key) {
  for (const auto& each : import.keys)
    if (each.key == key)
      return (each.fate == KeyFate::kTaken       ? "taken: "
              : each.fate == KeyFate::kNotNeeded ? "not needed: "
                                                 : "not supported: ") +
             each.text;
  return "missing";
}

class ImportCommand : public testing::Test {
 protected:
  ProgramEnd import(const fs::path& file, std::vector<std::string> more = {}) const {
    std::vector<std::string> words = {"import", file.string(), "--out", out_.string()};
    words.insert(words.end(), more.begin(), more.end());
    return run_graph_program(words);
  }
  fs::path written(const std::string& text) const {
    const fs::path file = scratch_.path() / "rl.toml";
    write_text(file, text);
    return file;
  }

  const ScratchFolder scratch_;
  const fs::path out_ = scratch_.path() / "made/graph.toml";
};

TEST_F(ImportCommand, PutsEachKeyOfPublicConfigurationsIntoOneListAndTheGraphPassesCheck) {
  ASSERT_GE(configurations().size(), 6U);
  const fs::path model = write_hollow_model(scratch_.path() / "model");
  for (const fs::path& file : configurations()) {
    fs::remove(out_);
    const auto end = import(file, {"--json", "--model", model.string()});
    ASSERT_EQ(end.code, kExitDone) << file << end.err;
    const Json document = parse_json(end.out, "import").value();
    std::multiset<std::string> listed;
    for (const char* list : {"taken", "not_needed", "not_supported"})
      for (const Json& key : document.find(list)->as_array())
        listed.insert(key.find("key")->as_string());
    EXPECT_EQ(listed, keys_of(file)) << file;
    const auto check = run_graph_program({"check", out_.string()});
    EXPECT_EQ(check.code, kExitDone) << file << "\n" << check.err << read_text_file(out_).value();
  }
}

TEST_F(ImportCommand, WritesAGraphThatAPersonWouldWrite) {
  const auto end = import(source_path("tests/cli/prime_rl/reverse_text.toml"));
  ASSERT_EQ(end.code, kExitDone) << end.err;
  EXPECT_EQ(
      read_text_file(out_).value(),
      R"(# Written from reverse_text.toml (prime-rl) by `primerl-graph import`; the loop is implied.

[graph]
name = "reverse-text"

[tenant.main]
environment = { name = "reverse_text" }
group_size = 16
batch_size = 128
max_steps = 20
seq_len = 2048
sampling = { max_tokens = 128 }

[model.policy]
path = "Qwen3-0.6B-Reverse-Text-SFT"

[resource.engine]
numerics = "fast"
max_sequence_tokens = 2048
kv_blocks = 2048                         # 16 sequences of full length

[resource.learner]
numerics = "fast"
micro_batch_tokens = 16384
optimizer = { lr = 3e-06 }

[node.rollout]
max_inflight = 128

[place]
driver = { nodes = ["env", "rollout", "router"] }
training = { nodes = ["trainer", "broadcaster"], device = "cuda:0" }
inference = { nodes = ["prefill", "decode"], replicas = 1, devices = ["cuda:1"] }
)");
  EXPECT_THAT(end.out, AllOf(HasSubstr("taken (12)"), HasSubstr("not needed ("),
                             HasSubstr("orchestrator.batch_size"), HasSubstr("wandb.project"),
                             HasSubstr("primerl-graph check ")));
  EXPECT_THAT(end.err, HasSubstr("put the model 'PrimeIntellect/Qwen3-0.6B-Reverse-Text-SFT'"));
}

TEST_F(ImportCommand, NamesAnEnvironmentThatIsNotHereInThreePlaces) {
  const auto file = source_path("tests/cli/prime_rl/wiki_search.toml");
  const auto end = import(file);
  ASSERT_EQ(end.code, kExitDone) << end.err;
  EXPECT_THAT(end.err, HasSubstr("environment 'wiki-search' of prime-rl is not in this program"));
  EXPECT_THAT(end.out, HasSubstr("no environment of this name: 'copy' is used in its place"));
  EXPECT_THAT(read_text_file(out_).value(), HasSubstr("# in place of prime-rl's 'wiki-search'"));
  fs::remove(out_);
  ASSERT_EQ(import(file, {"--environment", "arithmetic_tool"}).code, kExitDone);
  EXPECT_THAT(read_text_file(out_).value(),
              HasSubstr("environment = { name = \"arithmetic_tool\" }"));
}

TEST_F(ImportCommand, RefusesWhatIsNoToml) {
  const auto end = import(written("max_steps = \n"));
  EXPECT_EQ(end.code, kExitBadConfiguration);
  EXPECT_THAT(end.err, AllOf(HasSubstr("rl.toml:1:13: error[G001]"), HasSubstr("not TOML")));
  EXPECT_FALSE(fs::exists(out_));
}

TEST_F(ImportCommand, RefusesValuesOfTheWrongType) {
  const auto end =
      import(written("max_steps = \"many\"\n[trainer.optim]\nlr = true\n[trainer.model.lora]\n"
                     "target_modules = \"all\"\n[orchestrator]\nbatch_size = 1.5\n"));
  EXPECT_EQ(end.code, kExitBadConfiguration);
  EXPECT_THAT(end.err, AllOf(HasSubstr("rl.toml:1:13: error[G021]: 'max_steps' must be an integer"),
                             HasSubstr("'trainer.optim.lr' must be a number"),
                             HasSubstr("'trainer.model.lora.target_modules' must be a list"),
                             HasSubstr("'orchestrator.batch_size' must be an integer"),
                             HasSubstr("4 errors")));
  EXPECT_FALSE(fs::exists(out_));
}

TEST_F(ImportCommand, KeepsAFileThatExists) {
  fs::create_directories(out_.parent_path());
  write_text(out_, "written before");
  const auto end = import(source_path("tests/cli/prime_rl/reverse_text.toml"));
  EXPECT_EQ(end.code, kExitFailed);
  EXPECT_THAT(end.err, HasSubstr("exists"));
  EXPECT_EQ(read_text_file(out_).value(), "written before");
}

TEST_F(ImportCommand, RefusesACommandLineThatNamesTooLittleOrTooMuch) {
  const std::string file = source_path("tests/cli/prime_rl/reverse_text.toml");
  const auto without_out = run_graph_program({"import", file});
  EXPECT_EQ(without_out.code, kExitBadCommandLine);
  EXPECT_THAT(without_out.err, HasSubstr("--out FILE is needed"));
  EXPECT_EQ(import(scratch_.path() / "missing.toml").code, kExitBadConfiguration);
  EXPECT_EQ(import(scratch_.path()).code, kExitBadConfiguration) << "a folder";
  const auto unknown = import(file, {"--environment", "reverse_txt"});
  EXPECT_EQ(unknown.code, kExitBadCommandLine);
  EXPECT_THAT(unknown.err, HasSubstr("did you mean 'reverse_text'?"));
}

TEST(PrimeRl, SaysWhatAnUnknownKeyProbablyMeans) {
  const auto import = import_text("max_stesp = 3\n[orchestrator]\nbatch_sise = 4\nnew_key = 1\n");
  EXPECT_EQ(fate_of(import, "max_stesp"),
            "not supported: not a key of prime-rl that is known here; did you mean 'max_steps'?");
  EXPECT_THAT(fate_of(import, "orchestrator.batch_sise"),
              HasSubstr("did you mean 'orchestrator.batch_size'?"));
  EXPECT_EQ(fate_of(import, "orchestrator.new_key"),
            "not supported: not a key of prime-rl that is known here");
}

TEST(PrimeRl, TakesTheNamesOfOtherVersions) {
  const auto import = import_text(
      "[orchestrator]\nrollouts_per_example = 4\nmax_inflight_requests = 24\n"
      "[orchestrator.sampling]\nmax_tokens = 9\n[[orchestrator.env]]\nid = "
      "\"x/reverse-text-v1\"\n");
  EXPECT_THAT(import.graph, AllOf(HasSubstr("group_size = 4\n"), HasSubstr("max_inflight = 24\n"),
                                  HasSubstr("sampling = { max_tokens = 9 }"),
                                  HasSubstr("environment = { name = \"reverse_text\" }\n")));
}

TEST(PrimeRl, LetsAKeyOfOnePartWinOverTheSharedOne) {
  for (const std::string text : {"seq_len = 64\n[orchestrator]\nseq_len = 128\n",
                                 "orchestrator.seq_len = 128\nseq_len = 64\n"})
    EXPECT_THAT(import_text(text).graph, HasSubstr("\nseq_len = 128\n")) << text;
}

TEST(PrimeRl, TakesLossOptimizerScheduleAndAdapter) {
  const std::string graph =
      import_text(
          "[trainer.loss]\ndppo_mask_low = 0.1\nkl_tau = 0\n[trainer.optim]\nlr = 1e-5\n"
          "betas2 = 0.95\n[trainer.scheduler]\ntype = \"cosine\"\nwarmup_steps = 5\n"
          "[trainer.model.lora]\n[trainer.model.ac]\nmode = \"selective\"\n")
          .graph;
  EXPECT_THAT(graph, AllOf(HasSubstr("loss = { clip_low = 0.1, kl_weight = 0 }"),
                           HasSubstr("optimizer = { lr = 1e-05, beta2 = 0.95 }"),
                           HasSubstr("schedule = { kind = \"cosine\", warmup_steps = 5 }"),
                           HasSubstr("adapter = { rank = 16, alpha = 32 }"),
                           HasSubstr("recompute = \"keep_attention\"")));
}

TEST(PrimeRl, TakesOtherOptimizersWithTheirNumbers) {
  const auto optimizer = [](const std::string& keys) {
    return import_text("[trainer.optim]\n" + keys).graph;
  };
  EXPECT_THAT(optimizer("type = \"muon\"\nlr = 1e-5\nmu = 0.9\n"),
              HasSubstr("optimizer = { kind = \"muon\", lr = 1e-05, momentum = 0.9 }"));
  EXPECT_THAT(
      optimizer("type = \"sgd\"\nlr = 0.5\nmomentum = 0\nnesterov = false\n"),
      HasSubstr("optimizer = { kind = \"sgd\", lr = 0.5, momentum = 0, nesterov = false }"));
}

TEST(PrimeRl, DividesFiltersByTypeAndEffect) {
  const auto import = import_text(
      "[[orchestrator.post_batch_filters]]\nenforce = false\ntype = \"zero_advantage\"\n"
      "[[orchestrator.post_batch_filters]]\ntype = \"gibberish\"\nenforce = false\n"
      "[[orchestrator.post_batch_filters]]\ntype = \"repetition\"\nenforce = true\n");
  EXPECT_THAT(import.graph,
              HasSubstr("filters = { zero_advantage = false, repetition_max = 2999 }"));
  const std::string filters = "orchestrator.post_batch_filters";
  EXPECT_THAT(fate_of(import, filters + "[0].enforce"), HasSubstr("taken"));
  EXPECT_THAT(fate_of(import, filters + "[1].type"), HasSubstr("not needed"));
  EXPECT_THAT(fate_of(import, filters + "[2].enforce"), HasSubstr("taken"));
  const auto numbers = import_text(
      "[[orchestrator.pre_batch_filters]]\ntype = \"gibberish\"\nenforce = true\n"
      "token_id_threshold = 500\nlogprob_offset = 3.0\n"
      "[[orchestrator.pre_batch_filters]]\ntype = \"repetition\"\nenforce = true\n"
      "[[orchestrator.pre_batch_filters]]\ntype = \"new\"\nenforce = true\n");
  EXPECT_THAT(numbers.graph,
              HasSubstr("filters = { gibberish_from = 501, repetition_max = 2999 }"));
  EXPECT_THAT(fate_of(numbers, "orchestrator.pre_batch_filters[0].logprob_offset"),
              HasSubstr("not supported: gibberish_from compares"));
  EXPECT_THAT(fate_of(numbers, "orchestrator.pre_batch_filters[2].type"),
              HasSubstr("not supported: filters are zero_advantage"));
}

TEST(PrimeRl, MakesSeveralEnvironmentsOfOneTenant) {
  const auto import = import_text(
      "[[orchestrator.train.env]]\nid = \"reverse-text\"\nratio = 0.7\n"
      "sampling = { max_tokens = 9 }\n"
      "[[orchestrator.train.env]]\nid = \"x/sums\"\nname = \"my sums\"\nratio = 0.3\n"
      "timeout = 20\ngroup_size = 4\n");
  EXPECT_THAT(import.graph,
              HasSubstr("environments = [\n"
                        "  { name = \"reverse_text\", weight = 7, environment = { name = "
                        "\"reverse_text\" }, sampling = { max_tokens = 9 } },\n"
                        "  { name = \"my-sums\", weight = 3, environment = { name = \"copy\" }, "
                        "rollout_timeout = \"20s\" },\n]"));
  EXPECT_THAT(fate_of(import, "orchestrator.train.env[1].ratio"), HasSubstr("taken"));
  EXPECT_THAT(fate_of(import, "orchestrator.train.env[1].group_size"),
              HasSubstr("not supported: the groups of a tenant have one size"));
  EXPECT_THAT(import_text("[[orchestrator.train.env]]\nid = \"a\"\n"
                          "[[orchestrator.train.env]]\nid = \"b\"\n")
                  .notes,
              testing::Contains(HasSubstr("an environment has no 'ratio'")));
}

TEST(PrimeRl, MakesACurriculumOfABuffer) {
  const auto import = import_text(
      "[orchestrator.buffer]\neasy_threshold = 0.95\nhard_threshold = 0.05\neasy_fraction = 0.1\n"
      "online_difficulty_filtering = true\nseed = 3\nenv_ratios = [0.5, 0.5]\n"
      "skip_verification = false\nnew_option = 1\n");
  EXPECT_THAT(import.graph, HasSubstr("curriculum = { easy_threshold = 0.95, hard_threshold = "
                                      "0.05, easy_fraction = 0.1, rows = 1000 }"));
  EXPECT_THAT(import.notes, testing::Contains(HasSubstr("does not say how many rows")));
  const std::string buffer = "orchestrator.buffer.";
  EXPECT_EQ(fate_of(import, buffer + "easy_threshold"),
            "taken: tenant.main.curriculum.easy_threshold");
  EXPECT_THAT(fate_of(import, buffer + "online_difficulty_filtering"),
              HasSubstr("not needed: filters.zero_advantage drops groups"));
  EXPECT_THAT(fate_of(import, buffer + "seed"), HasSubstr("not needed: "));
  EXPECT_THAT(fate_of(import, buffer + "env_ratios"), HasSubstr("not supported: write weight"));
  EXPECT_THAT(fate_of(import, buffer + "skip_verification"), HasSubstr("not needed: "));
  EXPECT_THAT(fate_of(import, buffer + "new_option"), HasSubstr("not supported: "));
  const auto without = import_text("[orchestrator.buffer]\nonline_difficulty_filtering = true\n");
  EXPECT_THAT(without.graph, Not(HasSubstr("curriculum")));
}

/// prime-rl's threshold is the largest reward of a pool, and a reward at it is in that pool.
TEST(PrimeRl, MakesPoolsOfADifficultySampler) {
  const std::string pools =
      "[orchestrator.train.source.sampler]\ntype = \"difficulty_pool\"\nseed = 1\n"
      "[orchestrator.train.source.sampler.pools.easy]\nthreshold = 1.0\nweight = 0\n"
      "[orchestrator.train.source.sampler.pools.hard]\nthreshold = 0.5\nweight = 0.25\n";
  const std::string expected =
      "pools = [{ threshold = -2000000.0, weight = 0.25 }, { threshold = 0.5000000000000001, "
      "weight = 0.0 }], rows = 1000 }";
  const auto import = import_text("[[orchestrator.train.source]]\ntaskset.id = \"copy\"\n" + pools);
  EXPECT_THAT(import.graph, HasSubstr("curriculum = { " + expected));
  const std::string sampler = "orchestrator.train.source[0].sampler.";
  EXPECT_EQ(fate_of(import, sampler + "type"), "taken: tenant.main.curriculum");
  EXPECT_EQ(fate_of(import, sampler + "pools.hard.weight"), "taken: tenant.main.curriculum.pools");
  EXPECT_THAT(fate_of(import, sampler + "seed"), HasSubstr("not needed: "));
  // The older spelling, in an item of several, with prime-rl's own pools.
  const auto mix = import_text(
      "[[orchestrator.train.source]]\nid = \"copy\"\nratio = 1\n[[orchestrator.train.source]]\n"
      "id = \"reverse-text\"\nratio = 1\ncurriculum = { sampler = { type = \"difficulty_pool\" } "
      "}\n");
  EXPECT_THAT(mix.graph,
              HasSubstr("environment = { name = \"reverse_text\" }, curriculum = { pools = [{ "
                        "threshold = -2000000.0, weight = 0.2 }, { threshold = "
                        "0.25000000000000006, weight = 1.0 }, { threshold = 0.7500000000000001, "
                        "weight = 0.2 }], rows = 1000 } },"));
  EXPECT_THAT(mix.graph, Not(HasSubstr("\ncurriculum = ")));
}

TEST(PrimeRl, NamesSamplersAndGatesThatAreNotHere) {
  const auto import = import_text(
      "[[orchestrator.train.source]]\nid = \"copy\"\n"
      "[orchestrator.train.source.curriculum.sampler]\ntype = \"standard\"\n"
      "[orchestrator.train.source.curriculum.gates.zero]\ntype = \"advantage_range\"\n"
      "reject_min = 0.0\nreject_max = 0.05\n"
      "[orchestrator.train.source.curriculum.gates.own]\ntype = \"own\"\n");
  EXPECT_THAT(import.graph, Not(HasSubstr("curriculum")));
  const std::string of_source = "orchestrator.train.source[0].curriculum.";
  EXPECT_THAT(fate_of(import, of_source + "sampler.type"), HasSubstr("not needed: tasks come in"));
  EXPECT_THAT(fate_of(import, of_source + "gates.zero.type"),
              HasSubstr("not needed: filters.zero_advantage"));
  EXPECT_THAT(fate_of(import, of_source + "gates.zero.reject_min"), HasSubstr("not needed: "));
  EXPECT_THAT(fate_of(import, of_source + "gates.zero.reject_max"),
              HasSubstr("not supported: a filter drops groups without an advantage"));
  EXPECT_THAT(fate_of(import, of_source + "gates.own.type"),
              HasSubstr("not supported: the only gate is advantage_range"));
}

TEST_F(ImportCommand, OfACurriculumPassesCheck) {
  const auto file = written(
      "max_steps = 4\n[orchestrator]\nbatch_size = 16\ngroup_size = 8\n"
      "[orchestrator.buffer]\neasy_threshold = 1.0\nhard_threshold = 0.0\n"
      "[[orchestrator.train.env]]\nid = \"copy\"\n");
  const fs::path model = write_hollow_model(scratch_.path() / "model");
  const auto end = import(file, {"--model", model.string()});
  ASSERT_EQ(end.code, kExitDone) << end.err;
  const auto check = run_graph_program({"check", out_.string()});
  EXPECT_EQ(check.code, kExitDone) << check.err << read_text_file(out_).value();
}

TEST(PrimeRl, NamesTheLossesThatItKnows) {
  EXPECT_THAT(import_text("[trainer.loss]\ntype = \"ipo\"\n").graph,
              HasSubstr("loss = { kind = \"ipo\" }"));
  EXPECT_THAT(import_text("[trainer.loss]\ntype = \"default\"\n").graph, Not(HasSubstr("loss =")));
  EXPECT_THAT(fate_of(import_text("[trainer.loss]\ntype = \"custom\"\n"), "trainer.loss.type"),
              HasSubstr("not supported: "));
}

TEST(PrimeRl, DoesNotNeedAKeyThatIsOff) {
  const auto import = import_text(
      "[trainer.model]\nep = 1\ncp = 2\nfsdp_cpu_offload = false\n[inference.parallel]\ntp = 1\n");
  EXPECT_EQ(fate_of(import, "trainer.model.ep"), "not needed: the value that this program has");
  EXPECT_THAT(fate_of(import, "trainer.model.cp"), HasSubstr("not supported: "));
  EXPECT_THAT(fate_of(import, "trainer.model.fsdp_cpu_offload"), HasSubstr("not needed: "));
  EXPECT_THAT(fate_of(import, "inference.parallel.tp"), HasSubstr("not needed: "));
}

TEST(PrimeRl, PutsEnginesOnDevicesOfTheirOwn) {
  EXPECT_THAT(import_text("[deployment]\nnum_infer_gpus = 2\n").graph,
              HasSubstr("replicas = 2, devices = [\"cuda:1\", \"cuda:2\"]"));
  const auto import = import_text("[deployment]\nnum_train_gpus = 4\n");
  EXPECT_THAT(fate_of(import, "deployment.num_train_gpus"),
              HasSubstr("not supported: a learner computes on one device"));
}

TEST(PrimeRl, ComputesRolloutsInFlightAsPrimeRlDoes) {
  EXPECT_THAT(import_text("[orchestrator]\nbatch_size = 96\noversampling_factor = 1.5\n").graph,
              HasSubstr("max_inflight = 144\n"));
  EXPECT_THAT(import_text("[orchestrator]\nbatch_size = 96\n").graph,
              HasSubstr("max_inflight = 96\n"));
  EXPECT_THAT(
      import_text("[orchestrator]\nbatch_size = 32\ngroup_size = 16\noversampling_factor = 0.1\n")
          .graph,
      HasSubstr("max_inflight = 16\n"))
      << "at least a group";
}

/// The notes without those about the model and the end, which most texts here get.
std::vector<std::string> notes_of(const std::string& text) {
  std::vector<std::string> notes = import_text(text).notes;
  std::erase_if(notes, [](const std::string& note) {
    return note.starts_with("the file names no model") || note.starts_with("the file has no max_");
  });
  return notes;
}

TEST(PrimeRl, SaysOfEachValueThatTheGraphDoesNotHave) {
  const std::pair<const char*, const char*> cases[] = {
      {"[deployment]\nnum_infer_gpus = -1\n",
       "'deployment.num_infer_gpus' is -1: the graph has 1, because a place has 1 to "},
      {"[inference.parallel]\ndp = 0\n", "'inference.parallel.dp' is 0: the graph has 1"},
      {"[orchestrator.sampling]\ntop_k = -7\n",
       "'orchestrator.train.sampling.top_k' is -7: the graph has 0"},
      {"[ckpt]\ninterval = 4\nkeep_interval = 10\n",
       "keeps every checkpoint number 2 for ever, which is every 8 steps"},
      {"seq_len = 4096\n[inference.model]\nmax_model_len = 1024\n",
       "'inference.model.max_model_len' is 1024: the graph has 4096"},
      {"seq_len = 4096\n[trainer.model]\nseq_len = 512\n",
       "'trainer.model.seq_len' is 512: the graph has 4096"},
      {"[trainer.model.ac]\nmode = \"half\"\n", "'trainer.model.ac.mode' is \"half\": the graph"},
      {"[orchestrator]\ngroup_size = 16\nmax_inflight_rollouts = 4\n",
       "'orchestrator.max_inflight_rollouts' is 4: the graph has 16"},
      {"[orchestrator]\nmax_inflight_rollouts = 64\noversampling_factor = 2.0\n",
       "'orchestrator.oversampling_factor' is not used"},
      {"[wandb]\nname = \"my run/1\"\n",
       "'wandb.name' is \"my run/1\": the graph has \"my-run-1\""},
      {"seq_len = 64\n[orchestrator]\nseq_len = 128\n",
       "'seq_len' is stated twice: 128 is used in place of 64"},
      {"[orchestrator]\ngroup_size = 8\n[[orchestrator.env]]\nid = \"copy\"\ngroup_size = 4\n",
       "'orchestrator.group_size' is 8: the graph has 4"},
  };
  for (const auto& [text, note] : cases)
    EXPECT_THAT(notes_of(text), testing::ElementsAre(HasSubstr(note))) << text;
}

TEST(PrimeRl, SaysNothingOfValuesThatTheGraphHas) {
  for (const char* text :
       {"[deployment]\nnum_infer_gpus = 2\n", "[orchestrator.sampling]\ntop_k = -1\n",
        "[ckpt]\ninterval = 4\nkeep_interval = 8\n",
        "seq_len = 64\n[inference.model]\nmax_model_len = 128\n",
        "[trainer.model.ac]\nmode = \"full\"\n", "[wandb]\nname = \"my-run\"\n",
        "seq_len = 64\n[orchestrator]\nseq_len = 64\n"})
    EXPECT_THAT(notes_of(text), IsEmpty()) << text;
}

}  // namespace
}  // namespace primerl
