#include "tests/conformance/executor_actors.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <thread>

namespace primerl {
namespace {

std::atomic<int64_t> actors_alive{0};

/// Counts its instances, and writes to the journal.
class Talker : public Actor {
 public:
  Talker() { ++actors_alive; }
  ~Talker() override { --actors_alive; }

 protected:
  Status say(std::string_view line) { return services().files().append_line("journal", line); }
  void finish_all() {
    for (const TenantSlot slot : services().tenants()) services().finish(slot);
  }
};

struct SourceOptions {
  int64_t count = 10;
  int64_t per_turn = 1;
};

class Source final : public Talker {
 public:
  explicit Source(const SourceOptions& options) : options_(options) {}
  Result<bool> work() override {
    const auto slot = services().tenants().front();
    for (int64_t i = 0; i < options_.per_turn && sent_ < options_.count; ++i)
      out.send({static_cast<uint64_t>(++sent_)}, for_tenant(slot));
    return sent_ < options_.count;
  }
  Status drain() override { return say("source drains"); }
  Out<Number> out;

 private:
  const SourceOptions options_;
  int64_t sent_ = 0;
};

struct NoOptions {};

class Relay final : public Talker {
 public:
  explicit Relay(const NoOptions&) {}
  Status on_number(const Number& number) {
    out.send(number);
    return ok();
  }
  Out<Number> out;
};

struct SinkOptions {
  int64_t count = 10;
  int64_t fail_at = -1;   // a number whose handler returns an error
  int64_t throw_at = -1;  // a number whose handler throws
  int64_t spin = 0;       // busy iterations per number: a slow consumer
  bool pauses = false;    // keeps its input paused forever, and is never idle
};

class Sink final : public Talker {
 public:
  explicit Sink(const SinkOptions& options) : options_(options) {}
  Status start(Resources&) override {
    if (options_.pauses) services().pause("in");
    return ok();
  }
  Status on_number(const Number& number) {
    const auto value = static_cast<int64_t>(number.value);
    for (volatile int64_t i = 0; i < options_.spin;) i = i + 1;
    if (value != last_ + 1) RETURN_IF_ERROR(say(fmt::format("{} after {}", value, last_)));
    last_ = value;
    if (last_ == options_.count) {
      RETURN_IF_ERROR(say(fmt::format("sink has {}", last_)));
      finish_all();
    }
    if (value == options_.fail_at) return error(Code::kInvalid, "did not want {}", value);
    if (value == options_.throw_at) throw std::runtime_error("thrown in anger");
    return ok();
  }
  Status drain() override { return say("sink drains"); }
  bool idle() const override { return !options_.pauses; }

 private:
  const SinkOptions options_;
  int64_t last_ = 0;
};

struct BlobSourceOptions {
  int64_t count = 10;
  int64_t num_bytes = 1 << 20;
  int64_t num_receivers = 1;
};

class BlobSource final : public Talker {
 public:
  explicit BlobSource(const BlobSourceOptions& options)
      : options_(options),
        content_(std::vector<std::byte>(static_cast<size_t>(options.num_bytes))) {}
  Result<bool> work() override {
    if (num_waiting_ > 0 || num_sent_ == options_.count) return false;
    num_waiting_ = options_.num_receivers;
    ++num_sent_;
    out.send({content_, reinterpret_cast<uint64_t>(content_.bytes().data())},
             for_tenant(services().tenants().front()));
    if (num_waiting_ > 0) return false;
    // No answer comes; the end of the run waits until everything has arrived.
    if (num_sent_ == options_.count) finish_all();
    return num_sent_ < options_.count;
  }
  Status on_got(const Number&) {
    if (--num_waiting_ == 0 && num_sent_ == options_.count) finish_all();
    return ok();
  }
  Out<Package> out;

 private:
  const BlobSourceOptions options_;
  const Blob content_;
  int64_t num_sent_ = 0;
  int64_t num_waiting_ = 0;
};

class BlobSink final : public Talker {
 public:
  explicit BlobSink(const NoOptions&) {}
  Status on_package(const Package& package) {
    const auto address = reinterpret_cast<uint64_t>(package.content.bytes().data());
    if (address != package.address) return say("a copy was made");
    got.send({package.content.size()});
    return ok();
  }
  Out<Number> got;
};

struct AskerOptions {
  int64_t count = 10;
};

class Asker final : public Talker {
 public:
  explicit Asker(const AskerOptions& options) : options_(options) {}
  Status start(Resources&) override {
    services().set_timer("begin", Duration());
    return ok();
  }
  Status on_begin() {
    ask();
    return ok();
  }
  Status on_reply(const Reply& reply) {
    if (!reply.fault.empty()) RETURN_IF_ERROR(say("refused: " + reply.fault));
    ++answered_;
    if (answered_ < options_.count) {
      ask();
    } else {
      RETURN_IF_ERROR(say("all answered"));
      finish_all();
    }
    return ok();
  }
  Out<Number> question;

 private:
  void ask() {
    question.send({static_cast<uint64_t>(answered_)}, for_tenant(services().tenants().front()));
  }
  const AskerOptions options_;
  int64_t answered_ = 0;
};

struct AnswererOptions {
  int64_t swallow_from = -1;  // questions from here on get no answer
  int64_t fail_at = -1;
  int64_t stick_at = -1;  // waits at the Gate in this question's handler
  Duration delay;         // answers by a timer
};

class Answerer final : public Talker {
 public:
  explicit Answerer(const AnswererOptions& options) : options_(options) {}
  Status on_question(const Number& number) {
    const auto value = static_cast<int64_t>(number.value);
    if (options_.swallow_from >= 0 && value >= options_.swallow_from) return ok();
    if (value == options_.fail_at) return error(Code::kInvalid, "no answer to {}", value);
    if (value == options_.stick_at) Gate::get().pass();
    if (options_.delay == Duration()) {
      reply.send({number.value, ""});
      return ok();
    }
    pending_ = {number.value, services().delivery().tenant, services().delivery().origin};
    services().set_timer("due", options_.delay);
    return ok();
  }
  void refuse(const Number& number, const Error& error) {
    reply.send({number.value, error.message()});
  }
  Status on_due() {
    reply.send({pending_.value, ""}, for_tenant(pending_.tenant).to_origin_of(pending_.origin));
    return ok();
  }
  Out<Reply> reply;

 private:
  struct Pending {
    uint64_t value = 0;
    TenantSlot tenant;
    InstanceId origin;
  };
  const AnswererOptions options_;
  Pending pending_;
};

/// Remembers the thread on which it was made.
class DiaryResource final : public Resource {
 public:
  static constexpr std::string_view kResourceKind = "engine";
  explicit DiaryResource(std::string name) : name_(std::move(name)) { note("made"); }
  ~DiaryResource() override { note("destroyed"); }
  Status step() override {
    note("stepped");
    --num_steps_left_;
    return ok();
  }
  bool has_work() const override { return num_steps_left_ > 0; }

 private:
  void note(std::string_view what) {
    auto& diary = ResourceDiary::get();
    const std::lock_guard lock(diary.mutex);
    diary.events.push_back(fmt::format("{} {}", what, name_));
    if (std::this_thread::get_id() != thread_) diary.is_one_thread = false;
  }
  const std::string name_;
  const std::thread::id thread_ = std::this_thread::get_id();
  int num_steps_left_ = 3;
};

struct OwnerOptions {
  std::string engine;
  bool fails = false;
};

/// Owns an engine; may fail to start.
class Owner final : public Talker {
 public:
  explicit Owner(const OwnerOptions& options) : options_(options) {}
  Status start(Resources& resources) override {
    engine_ = &resources.get<DiaryResource>("engine");
    if (options_.fails) return error(Code::kInvalid, "the owner does not like it here");
    return ok();
  }
  Result<bool> work() override {
    if (!engine_->has_work()) finish_all();
    return engine_->has_work();
  }

 private:
  const OwnerOptions options_;
  DiaryResource* engine_ = nullptr;
};

struct EngineNumbers {
  int64_t size = 1;
};
struct NowhereOptions {
  int64_t size = 1;
};

template <class A>
Contract answerer_contract(std::string name) {
  using O = AnswererOptions;
  return ContractOf<A, O>(std::move(name), "answers")
      .option("swallow_from", &O::swallow_from, any(), "no answers from here on")
      .option("fail_at", &O::fail_at, any(), "fails at")
      .option("stick_at", &O::stick_at, any(), "waits at the gate at")
      .option("delay", &O::delay, any(), "answers so much later")
      .in("question", &A::on_question, "a question", refuse_with(&A::refuse))
      .out("reply", &A::reply, "the answer", to_origin(), at_most(1))
      .timer("due", &A::on_due, "the answer is due")
      .restartable()
      .stateless();
}

std::vector<Contract> contracts() {
  std::vector<Contract> all;
  all.push_back(ContractOf<Source, SourceOptions>("source", "sends numbers")
                    .option("count", &SourceOptions::count, at_least(1), "how many")
                    .option("per_turn", &SourceOptions::per_turn, at_least(1), "in one work turn")
                    .out("out", &Source::out, "the numbers",
                         work_burst(option_value(&SourceOptions::per_turn, "per_turn")))
                    .source()
                    .stateless());
  all.push_back(ContractOf<Relay, NoOptions>("relay", "passes numbers on")
                    .in("in", &Relay::on_number, "a number")
                    .out("out", &Relay::out, "the same")
                    .stateless());
  all.push_back(ContractOf<Sink, SinkOptions>("sink", "takes numbers")
                    .option("count", &SinkOptions::count, at_least(1), "how many")
                    .option("fail_at", &SinkOptions::fail_at, any(), "fails at")
                    .option("throw_at", &SinkOptions::throw_at, any(), "throws at")
                    .option("spin", &SinkOptions::spin, at_least(0), "rounds of nothing")
                    .option("pauses", &SinkOptions::pauses, any(), "takes nothing")
                    .in("in", &Sink::on_number, "a number")
                    .stateless());
  all.push_back(ContractOf<Asker, AskerOptions>("asker", "asks")
                    .option("count", &AskerOptions::count, at_least(1), "how often")
                    .in("reply", &Asker::on_reply, "an answer")
                    .out("question", &Asker::question, "a question")
                    .timer("begin", &Asker::on_begin, "the first question")
                    .stateless());
  using B = BlobSourceOptions;
  all.push_back(ContractOf<BlobSource, B>("blob_source", "sends one large Blob to all")
                    .option("count", &B::count, at_least(1), "how often")
                    .option("num_bytes", &B::num_bytes, at_least(1), "of the Blob")
                    .option("num_receivers", &B::num_receivers, at_least(0), "who must answer")
                    .in("got", &BlobSource::on_got, "one has it", optional_port())
                    .out("out", &BlobSource::out, "the Blob", broadcast(), work_burst(1))
                    .source()
                    .stateless());
  all.push_back(ContractOf<BlobSink, NoOptions>("blob_sink", "takes Blobs")
                    .in("in", &BlobSink::on_package, "a Blob")
                    .out("got", &BlobSink::got, "it is here", optional_port(), at_most(1))
                    .stateless());
  all.push_back(answerer_contract<Answerer>("answerer"));
  all.push_back(answerer_contract<Answerer>("blocking_answerer"));
  all.back().thread_class = ThreadClass::kOwnThread;
  all.push_back(ContractOf<Owner, OwnerOptions>("owner", "owns an engine")
                    .uses<DiaryResource>("engine", &OwnerOptions::engine, "its engine")
                    .option("fails", &OwnerOptions::fails, any(), "does not start")
                    .works()
                    .stateless());
  return all;
}

Catalog make_catalog() {
  Catalog catalog;
  catalog.actors = contracts();
  catalog.messages = {&message_type<Number>(), &message_type<Package>(), &message_type<Reply>()};
  ResourceContract engine;
  engine.kind = "engine";
  engine.backend = "diary";
  engine.doc = "remembers";
  engine.options =
      OptionsOf<EngineNumbers>().field("size", &EngineNumbers::size, any(), "of nothing").take();
  engine.computes = true;
  catalog.resources = {engine};
  EnvironmentContract nowhere{
      "nowhere", "no environment",
      OptionsOf<NowhereOptions>().field("size", &NowhereOptions::size, any(), "none").take()};
  catalog.environments = {nowhere};
  return catalog;
}

}  // namespace

void TestHostServices::publish_metrics(TenantSlot, int64_t, const MetricValues&) {}

void TestHostServices::log(LogLevel, std::string_view instance, std::string_view text) {
  const std::lock_guard lock(mutex_);
  logged_.push_back(fmt::format("{}: {}", instance, text));
}

std::vector<std::string> TestHostServices::journal() const {
  const std::lock_guard lock(mutex_);
  return journal_;
}

std::vector<std::string> TestHostServices::logged() const {
  const std::lock_guard lock(mutex_);
  return logged_;
}

size_t TestHostServices::count(std::string_view line) const {
  const std::lock_guard lock(mutex_);
  return static_cast<size_t>(std::count(journal_.begin(), journal_.end(), line));
}

Status TestHostServices::append_line(std::string_view, std::string_view line) {
  const std::lock_guard lock(mutex_);
  journal_.emplace_back(line);
  return ok();
}

Result<std::filesystem::path> TestHostServices::begin_checkpoint(TenantSlot, int64_t) {
  return error(Code::kUnavailable, "no checkpoints here");
}
Status TestHostServices::commit_checkpoint(TenantSlot, int64_t, const Json&) {
  return error(Code::kUnavailable, "no checkpoints here");
}

ResourceDiary& ResourceDiary::get() {
  static ResourceDiary diary;
  return diary;
}

void ResourceDiary::clear() {
  const std::lock_guard lock(mutex);
  events.clear();
  is_one_thread = true;
}

int64_t num_actors_alive() { return actors_alive; }

Gate& Gate::get() {
  static Gate gate;
  return gate;
}
void Gate::close() {
  const std::lock_guard lock(mutex_);
  is_open_ = false;
  num_arrived_ = 0;
}
void Gate::open() {
  const std::lock_guard lock(mutex_);
  is_open_ = true;
  changed_.notify_all();
}
void Gate::pass() {
  std::unique_lock lock(mutex_);
  ++num_arrived_;
  changed_.notify_all();
  changed_.wait(lock, [this] { return is_open_; });
}
void Gate::wait_for(int count) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this, count] { return num_arrived_ >= count; });
}

const Catalog& conformance_catalog() {
  static const Catalog catalog = make_catalog();
  return catalog;
}

std::shared_ptr<const Plan> conformance_plan(std::string_view graph, std::string_view settings,
                                             std::string_view tenant) {
  const auto text = fmt::format(
      "[graph]\nname = \"conformance\"\nseed = 3\n{}\n[tenant.main]\nenvironment = {{ name = "
      "\"nowhere\" }}\n{}\n{}\n",
      settings, tenant, graph);
  const auto checked = load_graph_text(text, "conformance.toml", "/", {}, conformance_catalog());
  CHECK(checked.plan != nullptr, render(checked.diagnostics, checked.sources));
  return checked.plan;
}

ResourceFactory conformance_factory() {
  return [](const Plan& plan, int32_t index) -> Result<std::shared_ptr<Resource>> {
    std::shared_ptr<Resource> made =
        std::make_unique<DiaryResource>(plan.resources[static_cast<size_t>(index)].name);
    return made;
  };
}

}  // namespace primerl
