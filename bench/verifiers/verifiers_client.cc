// Runs of a verifiers server, a number of them in flight, driven by VerifiersServers.
//
//   verifiers_client POOL RUNS INFLIGHT
//
// POOL is JSON: `address` of a server or `command` of verifiers_server.py; maybe `protocol`,
// `client`, `base_url`, `renderer`, `renderer_model`, `sampling`. With a command each run has the
// task of its number, else `task_data` is {"idx": number}. Prints one line of JSON.
//
// Bound: one run is a request of 400 bytes and an answer of 10 kB in seven messages. ZeroMQ,
// msgpack and the answer's JSON cost about 100 us of one core.
#include <sys/resource.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "graph/base/json.h"
#include "graph/base/real_clock.h"
#include "runtime/outside/verifiers/verifiers_servers.h"

namespace primerl {
namespace {

std::string text_or(const Json& json, std::string_view key, std::string otherwise) {
  const Json* const found = json.find(key);
  if (found == nullptr) return otherwise;
  return found->is_string() ? found->as_string() : found->dump();
}

OutsidePool pool_of(const Json& options) {
  OutsidePool pool;
  pool.kind = OutsidePoolKind::kVerifiers;
  pool.name = "bench";
  pool.verifiers.address = text_or(options, "address", "");
  pool.verifiers.protocol = text_or(options, "protocol", "auto");
  pool.verifiers.client = text_or(options, "client", "train");
  pool.verifiers.renderer = text_or(options, "renderer", "");
  pool.verifiers.renderer_model = text_or(options, "renderer_model", "");
  pool.verifiers.concurrency = kOutsideConcurrencyMax;
  pool.start_timeout = Duration::seconds(300);
  pool.call_timeout = Duration::seconds(300);
  pool.answer_bytes_max = int64_t{256} << 20;
  if (const Json* const command = options.find("command"); command != nullptr)
    for (const Json& word : command->as_array()) pool.command.push_back(word.as_string());
  return pool;
}

/// Asks, and hands out answers as they arrive.
class Driver {
 public:
  explicit Driver(const Json& options) : options_(options) {
    VerifiersServersSetup setup;
    setup.spec.pools = {pool_of(options)};
    setup.log = [](std::string_view line) { fmt::print(stderr, "{}\n", line); };
    outside_ = make_verifiers_servers(std::move(setup));
    outside_->set_wake([this] {
      const std::lock_guard lock(mutex_);
      has_news_ = true;
      changed_.notify_all();
    });
  }
  ~Driver() { outside_.reset(); }

  void ask(uint64_t id, bool is_run, const Json& body) {
    OutsideCall call;
    call.id = id;
    call.session = is_run ? id + 1 : 0;
    call.is_whole = !is_run;
    call.body = body.dump();
    CHECK(outside_->ask(std::move(call)).ok(), "too many calls");
  }
  std::vector<OutsideAnswer> wait() {
    while (true) {
      auto answers = outside_->receive_answers();
      if (!answers.empty()) return answers;
      if (const Status state = outside_->step(); !state.ok()) {
        fmt::print(stderr, "{}\n", state.error().text());
        std::exit(1);
      }
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return has_news_; });
      has_news_ = false;
    }
  }
  /// The data of the task with this number.
  Json task(uint64_t number) {
    if (options_.find("command") == nullptr)
      return Json::object().set("task_data", Json::object().set("idx", number));
    ask(number, false, Json::object().set("call", "task").set("ordinal", number).set("seed", 1));
    const OutsideAnswer answer = wait().front();
    const auto body = parse_json(answer.body, "the task");
    CHECK(answer.end == OutsideEnd::kDone && body.ok(), answer.body);
    return *body->find("data");
  }
  Json run_call(const Json& data) const {
    const Json* const sampling = options_.find("sampling");
    return Json::object()
        .set("call", "run")
        .set("data", data)
        .set("members", 1)
        .set("salt", "main:1|main.0.0.0@1")
        .set("base_url", text_or(options_, "base_url", "http://127.0.0.1:1"))
        .set("model", "main")
        .set("api_key_var", "PRIMERL_KEY")
        .set("sampling", sampling == nullptr ? Json::object() : *sampling);
  }

 private:
  const Json options_;
  std::shared_ptr<Outside> outside_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool has_news_ = false;
};

double cpu_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

int run(const Json& options, uint64_t num_runs, uint64_t inflight) {
  Driver driver(options);
  std::vector<Json> calls;
  for (uint64_t i = 0; i < num_runs; ++i) calls.push_back(driver.run_call(driver.task(i)));
  driver.ask(num_runs, true, calls.front());  // until the server is known
  (void)driver.wait();
  const Time began = steady_now();
  const double cpu_before = cpu_seconds();
  uint64_t num_asked = 0, num_answered = 0, num_done = 0, num_tokens = 0;
  double rewards = 0;
  std::string last_fault;
  while (num_answered < num_runs) {
    for (; num_asked < num_runs && num_asked - num_answered < inflight; ++num_asked)
      driver.ask(num_runs + 1 + num_asked, true, calls[num_asked]);
    for (const OutsideAnswer& answer : driver.wait()) {
      ++num_answered;
      const auto body = parse_json(answer.body, "the answer");
      if (answer.end != OutsideEnd::kDone || !body.ok()) {
        last_fault = answer.body;
        continue;
      }
      const Json& member = body->find("members")->as_array().at(0);
      if (member.get_string("end").value() != "done") {
        last_fault = member.get_string("error").value();
        continue;
      }
      ++num_done;
      rewards += member.get_double("reward").value();
      for (const Json& branch : member.find("branches")->as_array())
        num_tokens += branch.find("tokens")->as_array().size();
    }
  }
  const double seconds = (steady_now() - began).to_seconds();
  const double cpu = cpu_seconds() - cpu_before;
  fmt::print("{}\n",
             Json::object()
                 .set("runs", num_done)
                 .set("seconds", seconds)
                 .set("client_cpu_ms_per_run", cpu * 1e3 / static_cast<double>(num_runs))
                 .set("reward", rewards / static_cast<double>(std::max(num_done, uint64_t{1})))
                 .set("tokens", num_tokens)
                 .set("last_fault", last_fault)
                 .dump());
  return num_done == num_runs ? 0 : 1;
}

}  // namespace
}  // namespace primerl

int main(int argc, char** argv) {
  const auto options = primerl::parse_json(argc == 4 ? argv[1] : "", "POOL");
  if (!options.ok()) {
    fmt::print(stderr, "usage: verifiers_client POOL RUNS INFLIGHT\n{}\n", options.error().text());
    return 2;
  }
  return primerl::run(*options, std::strtoull(argv[2], nullptr, 10),
                      std::strtoull(argv[3], nullptr, 10));
}
