// verifiers_server.py, with packages verifiers and zmq of this file: its tasks, its child and
// its ends. tests/e2e/verifiers_test.cc has the real packages.
#include <csignal>

#include "actors/env/outside_calls.h"
#include "actors/env/python/python_source.h"
#include "graph/base/json.h"
#include "tests/outside/outside_story.h"

namespace primerl {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

/// A server that only waits, and writes its process id into the file `pid`.
constexpr std::string_view kServe =
    "import contextlib, os\n"
    "class Frontend:\n"
    "    def getsockopt_string(self, option): return 'tcp://127.0.0.1:1'\n"
    "class ZMQEnvServer:\n"
    "    frontend = Frontend()\n"
    "    def __init__(self, env_id, args, **others): self.death_pipe = others['death_pipe']\n"
    "    async def run(self):\n"
    "        name = os.path.join(os.path.dirname(__file__), '..', 'pid')\n"
    "        open(name + '.part', 'w').write(str(os.getpid()))\n"
    "        os.rename(name + '.part', name)\n"
    "        with contextlib.suppress(EOFError): self.death_pipe.recv()\n";

/// Rows of an environment with load_environment().
constexpr std::string_view kLegacy =
    "class Environment:\n"
    "    requires_group_rollouts = False\n"
    "    def __init__(self, rows): self.rows = rows\n"
    "    def get_dataset(self):\n"
    "        return [{'example_id': i, 'prompt': [{'role': 'user', 'content': f'row {i}'}],\n"
    "                 'info': {1, 2} if i == 7 else None} for i in range(self.rows)]\n"
    "    def get_eval_dataset(self):\n"
    "        return [{'example_id': i, 'prompt': f'held out {i}'} for i in range(2)]\n"
    "def load_environment(rows=4): return Environment(rows)\n";

/// The parts of verifiers.v1 that verifiers_server.py uses, and a taskset without an end. The role
/// `agent` runs in a sandbox of a service if nothing else is set.
constexpr std::string_view kLoaders =
    "import importlib\n"
    "from types import SimpleNamespace as Has\n"
    "class Config:\n"
    "    model_fields = {'agent': Has(default=Has(runtime=Has(type='prime')))}\n"
    "    def __init__(self, raw):\n"
    "        agent = raw.get('agent', {'runtime': {'type': 'prime'}})\n"
    "        self.taskset = dict(raw['taskset'], runtime=agent['runtime']['type'])\n"
    "def resolve_env_config(raw): return Config(raw)\n"
    "def load_taskset(config):\n"
    "    return importlib.import_module(config['id'].replace('-', '_')).Numbers(config)\n";
constexpr std::string_view kTaskset =
    "import itertools\n"
    "from verifiers.v1 import Taskset\n"
    "class Data:\n"
    "    def __init__(self, idx, runtime): self.idx = idx; self.runtime = runtime\n"
    "    def model_dump(self, mode, exclude_defaults):\n"
    "        return {'idx': self.idx, 'on': self.runtime, 'prompt': f'number {self.idx}'}\n"
    "class Task:\n"
    "    def __init__(self, data): self.data = data\n"
    "class Numbers(Taskset):\n"
    "    INFINITE = True\n"
    "    def __init__(self, config): self.config = config\n"
    "    def __iter__(self):\n"
    "        end = self.config.get('end')\n"
    "        numbers = range(end) if end else itertools.count()\n"
    "        return (Task(Data(i, self.config['runtime'])) for i in numbers)\n"
    "__all__ = ['Numbers']\n";

struct VerifiersServer : OutsideStory {
  void write_in(const std::string& name, std::string_view text) {
    std::filesystem::create_directories((folder / name).parent_path());
    write(name, std::string(text));
  }
  void install(const std::string& version) {
    write_in("verifiers-" + version + ".dist-info/METADATA",
             "Metadata-Version: 2.1\nName: verifiers\nVersion: " + version + "\n");
    write_in("zmq.py", "LAST_ENDPOINT = 32\n");
  }
  /// A version that serves load_environment() only.
  void install_old() {
    install("0.1.14");
    write_in("verifiers/__init__.py",
             "import importlib\n"
             "def load_environment(id, **args):\n"
             "    return importlib.import_module(id).load_environment(**args)\n");
    write_in("verifiers/serve.py", kServe);
  }
  /// A version that serves tasksets only.
  void install_new(const std::string& version = "0.4.0") {
    install(version);
    write_in("verifiers/__init__.py", "");
    write_in("verifiers/v1/__init__.py", "Taskset = type('Taskset', (), {})\n");
    write_in("verifiers/v1/serve.py", "");
    write_in("verifiers/v1/tasksets/__init__.py", "");
    write_in("verifiers/v1/utils/__init__.py", "");
    write_in("verifiers/v1/utils/loaders.py", kLoaders);
  }
  void start_server(const std::string& id, const std::string& more = "") {
    OutsidePool pool;
    pool.command = {PRIMERL_PYTHON, "-c", std::string(python_verifiers_server()),
                    fmt::format(R"({{"id": "{}", "path": "{}"{}}})", id, folder.string(), more)};
    start(std::move(pool));
  }
  std::string body_of(uint64_t ordinal, bool is_evaluation = false) {
    ask(++num_calls, fmt::format(R"({{"call": "task", "ordinal": {}, "seed": 1{}}})", ordinal,
                                 is_evaluation ? R"(, "evaluation": true)" : ""));
    return answer_to(num_calls).body;
  }
  std::string prompt_of(uint64_t ordinal, bool is_evaluation = false) {
    const std::string body = body_of(ordinal, is_evaluation);
    const auto json = parse_json(body, "the answer");
    return json.ok() && json->find("prompt") != nullptr ? *json->get_string("prompt") : body;
  }
  bool wait_until(const std::function<bool()>& holds) {
    const auto until = deadline_after(kPatience);
    while (!holds()) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::yield();
    }
    return true;
  }
  /// The process of the server.
  pid_t child() {
    EXPECT_TRUE(wait_until([this] { return std::filesystem::exists(folder / "pid"); }));
    pid_t pid = 0;
    std::ifstream(folder / "pid") >> pid;
    return pid;
  }
  uint64_t num_calls = 0;
};

TEST_F(VerifiersServer, EachEpochHasAnOrderAndAnEvaluationHasTheOrderOfTheRows) {
  install_old();
  write_in("rows.py", kLegacy);
  start_server("rows");
  std::vector<std::string> first;
  std::vector<std::string> second;
  for (uint64_t i = 0; i < 4; ++i) first.push_back(prompt_of(i));
  for (uint64_t i = 4; i < 8; ++i) second.push_back(prompt_of(i));
  const auto all = UnorderedElementsAre("row 0", "row 1", "row 2", "row 3");
  EXPECT_THAT(first, all);
  EXPECT_THAT(second, all);
  EXPECT_NE(first, second);
  EXPECT_EQ(prompt_of(0), first[0]) << "a task that is asked again is the same";
  EXPECT_THAT((std::vector{prompt_of(0, true), prompt_of(1, true), prompt_of(2, true)}),
              ElementsAre("held out 0", "held out 1", "held out 0"));
  EXPECT_THAT(body_of(0, true), HasSubstr(R"("num_tasks": 2)"));
  EXPECT_THAT(body_of(0, true),
              HasSubstr(R"({"data": {"input": {"example_id": 0, "prompt": "held out 0"}})"));
}

TEST_F(VerifiersServer, ARowThatIsNoJsonFailsItsCallAlone) {
  install_old();
  write_in("rows.py", kLegacy);
  start_server("rows", R"(, "args": {"rows": 8}, "shuffle": false)");
  EXPECT_THAT(body_of(7), HasSubstr("Object of type set is not JSON serializable"));
  EXPECT_EQ(prompt_of(6), "row 6");
}

TEST_F(VerifiersServer, ATasksetWithoutAnEndIsReadAsFarAsItIsAskedAndAgainForAnEarlierTask) {
  install_new();
  write_in("numbers_env.py", kTaskset);
  start_server("numbers-env", R"(, "serves": false)");
  EXPECT_EQ(prompt_of(0), "number 0");
  EXPECT_EQ(prompt_of(5000), "number 5000");
  EXPECT_EQ(prompt_of(1000), "number 1000") << "one that is kept";
  EXPECT_EQ(prompt_of(3), "number 3") << "one that is not kept any more";
  EXPECT_THAT(body_of(4), HasSubstr(R"({"data": {"task_data": {"idx": 4, "on": "subprocess", )"));
  EXPECT_THAT(body_of(4), HasSubstr(R"("num_tasks": null)"));
}

TEST_F(VerifiersServer, ATasksetOfEachVersionGivesItsTasks) {
  write_in("numbers_env.py", kTaskset);
  for (const char* version : {"0.3.0", "0.3.1", "0.4.0"}) {
    SCOPED_TRACE(version);
    std::filesystem::remove_all(folder / "verifiers");
    install_new(version);
    start_server("numbers-env", R"(, "serves": false)");
    EXPECT_THAT(body_of(4), AllOf(HasSubstr(R"({"data": {"task_data": {"idx": 4, )"),
                                  HasSubstr(R"("scores_groups": false)")));
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      if (entry.path().extension() == ".dist-info") std::filesystem::remove_all(entry.path());
  }
}

TEST_F(VerifiersServer, ATasksetThatEndsThoughItSaysItWouldNotFailsTheCall) {
  install_new();
  write_in("numbers_env.py", kTaskset);
  start_server("numbers-env", R"(, "serves": false, "args": {"taskset": {"end": 3},
                                  "agent": {"runtime": {"type": "docker"}}})");
  EXPECT_EQ(prompt_of(2), "number 2");
  EXPECT_THAT(body_of(2), HasSubstr(R"("on": "docker")"));
  EXPECT_THAT(body_of(3), HasSubstr("the taskset ended after 3 tasks"));
}

TEST_F(VerifiersServer, AMissingPackageIsAFailureThatNamesIt) {
  start_server("rows");
  EXPECT_THAT(failure(), ::testing::ContainsRegex(
                             "ModuleNotFoundError: No module named 'verifiers' for .*python.*: "
                             "install it, or let the option 'python' name another"));
}

TEST_F(VerifiersServer, AModuleThatIsNotThereOrIsNoEnvironmentIsAFailure) {
  install_old();
  start_server("rows");
  EXPECT_THAT(failure(), HasSubstr("No module named 'rows' of the environment 'rows'"));
  write_in("rows.py", "x = 1\n");
  start_server("rows");
  EXPECT_THAT(failure(), HasSubstr("the module 'rows' has no load_environment(), and its __all__ "
                                   "no Taskset, which verifiers 0.1.14 cannot serve"));
}

TEST_F(VerifiersServer, AnOldEnvironmentNeedsAnOldVersion) {
  install_new();
  write_in("rows.py", kLegacy);
  start_server("rows");
  EXPECT_THAT(failure(),
              HasSubstr("verifiers 0.4.0 serves tasksets only, and 'rows' has load_environment()"));
}

TEST_F(VerifiersServer, ItEndsWithItsServerAndNamesHowThatEnded) {
  install_old();
  write_in("rows.py", kLegacy);
  start_server("rows", R"(, "args": {"rows": 1})");
  EXPECT_EQ(prompt_of(0), "row 0");
  ASSERT_GT(child(), 0);
  ::kill(child(), SIGKILL);
  EXPECT_TRUE(wait_until([this] {
    return log_text().find("the server of the environment ended: signal 9") != std::string::npos;
  })) << log_text();
  EXPECT_EQ(prompt_of(1), "row 0") << "another one is started";
}

TEST_F(VerifiersServer, TheServerEndsWithIt) {
  install_old();
  write_in("rows.py", kLegacy);
  start_server("rows");
  (void)prompt_of(0);
  const pid_t server = child();
  ASSERT_GT(server, 0);
  outside.reset();
  EXPECT_TRUE(wait_until([&] { return ::kill(server, 0) != 0; }))
      << "process " << server << " is still there";
}

}  // namespace
}  // namespace primerl
