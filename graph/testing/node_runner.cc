#include "graph/testing/node_runner.h"

#include <fmt/format.h>

#include <algorithm>

namespace primerl {
namespace {

constexpr uint64_t kRunSeed = 17;

}  // namespace

double PublishedMetrics::at(std::string_view name) const {
  for (const auto& [key, value] : values)
    if (key == name) return value;
  CHECK(false, fmt::format("no metric '{}' was published", name));
  return 0;
}

/// Services, outputs, resources and files of one actor, all in memory.
class NodeRunnerCore::World final : public Services,
                                    public OutputSink,
                                    public Resources,
                                    public RunFiles {
 public:
  World(Contract contract, std::shared_ptr<const void> options, std::unique_ptr<Actor> actor)
      : contract_(std::move(contract)),
        options_(std::move(options)),
        actor_(std::move(actor)),
        sent_(contract_.outputs.size()),
        targets_(contract_.outputs.size(), {InstanceId(900)}),
        rooms_(contract_.outputs.size(), kUnlimitedRoom),
        capacities_(contract_.outputs.size(), kUnlimitedRoom),
        step_emissions_(contract_.outputs.size(), 0),
        waiting_(contract_.inputs.size()),
        paused_(contract_.inputs.size(), false) {
    Tenant tenant;
    tenant.name = "main";
    set_tenants({tenant});
    if (actor_ == nullptr) actor_ = contract_.make(options_.get());
    for (uint32_t i = 0; i < contract_.outputs.size(); ++i)
      contract_.outputs[i].bind(*actor_).wire(this, i);
    actor_->attach(this);
  }

  void set_tenants(std::vector<Tenant> tenants) {
    tenants_ = std::move(tenants);
    slots_.clear();
    for (uint32_t i = 0; i < tenants_.size(); ++i) {
      tenants_[i].slot = TenantSlot(i);
      slots_.push_back(TenantSlot(i));
    }
  }

  // Services
  Time now() const override { return now_; }
  const Delivery& delivery() const override { return delivery_; }
  RandomStream random(TenantSlot tenant, std::string_view purpose, uint64_t index) const override {
    return RandomStream(mix(stable_hash(purpose, mix(kRunSeed, tenant.value)), index));
  }
  void set_timer(std::string_view name, Duration delay) override {
    check_timer(name);
    timers_[std::string(name)] = now_ + delay;
  }
  void cancel_timer(std::string_view name) override {
    check_timer(name);
    timers_.erase(std::string(name));
  }
  void pause(std::string_view input) override { paused_[input_index(input)] = true; }
  void resume(std::string_view input) override { paused_[input_index(input)] = false; }
  InstanceId self() const override { return kSelf; }
  std::string_view self_name() const override { return contract_.name; }
  int32_t replica() const override { return replica_; }
  bool share_resource(InstanceId one, InstanceId other) const override {
    return std::ranges::any_of(sharing_, [&](const std::vector<InstanceId>& users) {
      return std::ranges::count(users, one) > 0 && std::ranges::count(users, other) > 0;
    });
  }
  uint32_t incarnation() const override { return kIncarnation; }
  std::span<const TenantSlot> tenants() const override { return slots_; }
  const Tenant& tenant(TenantSlot slot) const override {
    CHECK(slot.index() < tenants_.size(), "a tenant was requested that does not exist");
    return tenants_[slot.index()];
  }
  const ResumePoint* resume_point(TenantSlot slot) const override {
    const auto found = resume_points_.find(slot);
    return found == resume_points_.end() ? nullptr : &found->second;
  }
  Progress progress() override {
    return stop_requested_ ? Progress::kStopRequested : Progress::kGoOn;
  }
  void finish(TenantSlot tenant) override { finished_.insert(tenant); }
  void fail_tenant(TenantSlot tenant, Error why) override {
    failures_.emplace(tenant, std::move(why));
  }
  void stop_on_error() override { stops_on_error_ = true; }
  RunFiles& files() override { return *this; }
  void publish_metrics(TenantSlot tenant, int64_t step, const MetricValues& values) override {
    metrics_.push_back({tenant, step, values});
  }
  void count(std::string_view name, int64_t amount) override {
    counters_[std::string(name)] += amount;
  }
  void log(LogLevel level, std::string_view text) override {
    static constexpr std::string_view kNames[] = {"debug", "info", "warning", "error"};
    log_.push_back(fmt::format("{}: {}", kNames[static_cast<size_t>(level)], text));
  }

  // RunFiles
  Status append_line(std::string_view file, std::string_view line) override {
    if (!file_fault_.empty()) return error(Code::kIo, "{}", file_fault_);
    lines_[std::string(file)].emplace_back(line);
    return ok();
  }
  Result<std::filesystem::path> begin_checkpoint(TenantSlot, int64_t step) override {
    if (checkpoint_folder_.empty()) return error(Code::kIo, "this run has no checkpoint folder");
    const auto folder = checkpoint_folder_ / fmt::format("step_{}", step);
    std::error_code failure;
    std::filesystem::create_directories(folder, failure);
    if (failure) return error(Code::kIo, "'{}': {}", folder.string(), failure.message());
    return folder;
  }
  Status commit_checkpoint(TenantSlot tenant, int64_t step, const Json& manifest) override {
    checkpoints_.push_back({tenant, step, manifest});
    return ok();
  }

  Result<std::filesystem::path> begin_client_folder(TenantSlot, std::string_view path) override {
    if (checkpoint_folder_.empty()) return error(Code::kIo, "this run has no folder for clients");
    const auto folder = checkpoint_folder_ / "clients" / ".filling" / path;
    std::error_code failure;
    std::filesystem::create_directories(folder, failure);
    if (failure) return error(Code::kIo, "'{}': {}", folder.string(), failure.message());
    return folder;
  }
  Status commit_client_folder(TenantSlot, std::string_view path, bool weights_only) override {
    const auto filled = checkpoint_folder_ / "clients" / ".filling" / path;
    const auto to = checkpoint_folder_ / "clients" / path;
    std::error_code failure;
    std::filesystem::create_directories(to.parent_path(), failure);
    std::filesystem::remove_all(to, failure);
    std::filesystem::rename(weights_only ? filled / "weights" : filled, to, failure);
    if (failure) return error(Code::kIo, "'{}': {}", to.string(), failure.message());
    std::filesystem::remove_all(filled, failure);
    return ok();
  }
  Result<std::filesystem::path> client_folder(TenantSlot, std::string_view path) override {
    return checkpoint_folder_ / "clients" / path;
  }
  Status remove_client_folder(TenantSlot, std::string_view path) override {
    std::error_code failure;
    std::filesystem::remove_all(checkpoint_folder_ / "clients" / path, failure);
    return ok();
  }

  // OutputSink
  void emit(uint32_t output, Payload payload, const SendOptions& options) override {
    const OutputPort& port = contract_.outputs[output];
    SendOptions completed = options;
    if (completed.tenant.is_none()) completed.tenant = delivery_.tenant;
    CHECK(!completed.tenant.is_none(),
          fmt::format("'{}.{}' was sent for no tenant", contract_.name, port.name));
    if (completed.cause.is_none()) completed.cause = delivery_.ref;
    if (completed.origin.is_none())
      completed.origin = delivery_.origin.is_none() ? kSelf : delivery_.origin;
    CHECK(port.routing != Routing::kAddressed || !completed.target.is_none(),
          fmt::format("'{}.{}' was sent without a target", contract_.name, port.name));
    const auto& burst = is_working_ ? port.work_burst : port.burst;
    const int64_t most = burst.value(options_.get(), tenants_);
    ++step_emissions_[output];
    CHECK(step_emissions_[output] <= most,
          fmt::format("'{}.{}' was sent {} times in one step, its contract says {}", contract_.name,
                      port.name, step_emissions_[output], most));
    sent_[output].push_back({std::move(payload), completed});
  }
  int64_t room(uint32_t output, InstanceId) const override {
    return std::max<int64_t>(rooms_[output] - step_emissions_[output], 0);
  }
  int64_t capacity(uint32_t output, InstanceId) const override { return capacities_[output]; }
  std::span<const InstanceId> targets(uint32_t output, TenantSlot) const override {
    return targets_[output];
  }

  Status start() {
    if (started_) return ok();
    started_ = true;
    begin({});
    return actor_->start(*this);
  }

  Status handle(size_t input, const Payload& payload, const Given& given) {
    const InputPort& port = contract_.inputs[input];
    CHECK(payload.type == port.type, "a message was given to an input of another type");
    begin({.tenant = given.tenant,
           .sender = given.sender,
           .origin = given.origin,
           .ref = {},
           .sent_at = now_});
    Status status = port.handle(*actor_, payload.message.get());
    if (status.ok()) return status;
    forget_step();
    if (port.refuse) port.refuse(*actor_, payload.message.get(), status.error());
    return status;
  }

  Status give(std::string_view name, Payload payload, const Given& given) {
    RETURN_IF_ERROR(start());
    const size_t input = input_index(name);
    if (paused_[input]) {
      waiting_[input].push_back({std::move(payload), given});
      return ok();
    }
    Status status = handle(input, payload, given);
    Status rest = hand_over_waiting();
    return status.ok() ? rest : status;
  }

  Status hand_over_waiting() {
    for (size_t input = 0; input < waiting_.size(); ++input) {
      while (!paused_[input] && !waiting_[input].empty()) {
        auto [payload, given] = std::move(waiting_[input].front());
        waiting_[input].pop_front();
        RETURN_IF_ERROR(handle(input, payload, given));
      }
    }
    return ok();
  }

  Result<bool> run_work() {
    RETURN_IF_ERROR(start());
    begin({});
    for (auto& [name, resource] : resources_)
      if (resource->has_work()) RETURN_IF_ERROR(resource->step());
    is_working_ = true;
    auto more = actor_->work();
    is_working_ = false;
    if (!more.ok()) forget_step();
    RETURN_IF_ERROR(hand_over_waiting());
    return more;
  }

  Status advance(Duration duration) {
    RETURN_IF_ERROR(start());
    const Time until = now_ + duration;
    while (true) {
      auto next = timers_.end();
      for (auto it = timers_.begin(); it != timers_.end(); ++it)
        if (next == timers_.end() || it->second < next->second) next = it;
      if (next == timers_.end() || next->second > until) break;
      now_ = std::max(now_, next->second);
      const std::string name = next->first;
      timers_.erase(next);
      begin({});
      for (const auto& timer : contract_.timers)
        if (timer.name == name) RETURN_IF_ERROR(timer.handle(*actor_));
      RETURN_IF_ERROR(hand_over_waiting());
    }
    now_ = until;
    return ok();
  }

  Status drain() {
    RETURN_IF_ERROR(start());
    begin({});
    RETURN_IF_ERROR(actor_->drain());
    return hand_over_waiting();
  }

  Status change_tenant(TenantSlot slot, TenantChange::Kind kind) {
    RETURN_IF_ERROR(start());
    begin({});
    RETURN_IF_ERROR(actor_->on_tenant(slot, kind));
    return hand_over_waiting();
  }

  Status peer(const PeerEvent& event) {
    RETURN_IF_ERROR(start());
    begin({});
    RETURN_IF_ERROR(actor_->on_peer(event));
    return hand_over_waiting();
  }

  /// A step that fails sends nothing.
  void forget_step() {
    for (size_t i = 0; i < sent_.size(); ++i) {
      sent_[i].resize(sent_[i].size() - static_cast<size_t>(step_emissions_[i]));
      step_emissions_[i] = 0;
    }
  }

  size_t input_index(std::string_view name) const {
    for (size_t i = 0; i < contract_.inputs.size(); ++i)
      if (contract_.inputs[i].name == name) return i;
    CHECK(false, fmt::format("actor '{}' has no input '{}'", contract_.name, name));
    return 0;
  }
  size_t output_index(std::string_view name) const {
    for (size_t i = 0; i < contract_.outputs.size(); ++i)
      if (contract_.outputs[i].name == name) return i;
    CHECK(false, fmt::format("actor '{}' has no output '{}'", contract_.name, name));
    return 0;
  }
  void check_timer(std::string_view name) const {
    for (const auto& timer : contract_.timers)
      if (timer.name == name) return;
    CHECK(false, fmt::format("actor '{}' declares no timer '{}'", contract_.name, name));
  }

  const Contract contract_;
  const std::shared_ptr<const void> options_;
  std::unique_ptr<Actor> actor_;
  std::vector<Tenant> tenants_;
  std::vector<TenantSlot> slots_;
  std::map<std::string, Resource*, std::less<>> resources_;
  std::map<TenantSlot, ResumePoint> resume_points_;
  int32_t replica_ = 0;
  std::vector<std::vector<InstanceId>> sharing_;  // users of each shared copy
  std::filesystem::path checkpoint_folder_;
  std::string file_fault_;
  bool started_ = false;
  bool stop_requested_ = false;
  bool is_working_ = false;
  Time now_;
  Delivery delivery_;
  uint64_t step_ = 0;
  std::map<std::string, Time> timers_;
  std::vector<std::vector<Emission>> sent_;
  std::vector<std::vector<InstanceId>> targets_;
  std::vector<int64_t> rooms_;
  const std::vector<int64_t> capacities_;
  std::vector<int64_t> step_emissions_;
  std::vector<std::deque<std::pair<Payload, Given>>> waiting_;
  std::vector<bool> paused_;
  std::map<std::string, std::vector<std::string>, std::less<>> lines_;
  std::vector<PublishedMetrics> metrics_;
  std::vector<CommittedCheckpoint> checkpoints_;
  std::map<std::string, int64_t, std::less<>> counters_;
  std::vector<std::string> log_;
  std::set<TenantSlot> finished_;
  std::map<TenantSlot, Error> failures_;
  bool stops_on_error_ = false;

 private:
  Resource* find(std::string_view use) override {
    const auto found = resources_.find(use);
    // Both are optional: an actor asks for them with get_if().
    if (found == resources_.end() && (use == "outside" || use == "weights")) return nullptr;
    CHECK(found != resources_.end(), fmt::format("no resource was given for '{}'", use));
    return found->second;
  }
  void begin(Delivery delivery) {
    delivery.ref = {kSelf, ++step_};
    delivery_ = delivery;
    std::fill(step_emissions_.begin(), step_emissions_.end(), 0);
  }
};

NodeRunnerCore::NodeRunnerCore(Contract contract, std::shared_ptr<const void> options,
                               std::unique_ptr<Actor> actor)
    : world_(std::make_unique<World>(std::move(contract), std::move(options), std::move(actor))) {}
NodeRunnerCore::~NodeRunnerCore() = default;

void NodeRunnerCore::set_tenants(std::vector<Tenant> tenants) {
  CHECK(!world_->started_, "tenants are set before the actor starts");
  world_->set_tenants(std::move(tenants));
}
void NodeRunnerCore::change_tenants(std::vector<Tenant> tenants) {
  world_->set_tenants(std::move(tenants));
}
Status NodeRunnerCore::change_tenant(TenantSlot slot, TenantChange::Kind kind) {
  return world_->change_tenant(slot, kind);
}
void NodeRunnerCore::use(std::string_view name, Resource& resource) {
  world_->resources_[std::string(name)] = &resource;
}
void NodeRunnerCore::set_resume_point(TenantSlot tenant, ResumePoint point) {
  world_->resume_points_[tenant] = std::move(point);
}
void NodeRunnerCore::set_replica(int32_t replica) { world_->replica_ = replica; }
void NodeRunnerCore::set_checkpoint_folder(std::filesystem::path folder) {
  world_->checkpoint_folder_ = std::move(folder);
}
void NodeRunnerCore::set_sharing(std::vector<InstanceId> instances) {
  world_->sharing_.push_back(std::move(instances));
}
void NodeRunnerCore::set_targets(std::string_view output, std::vector<InstanceId> targets) {
  world_->targets_[world_->output_index(output)] = std::move(targets);
}
void NodeRunnerCore::set_room(std::string_view output, int64_t room) {
  world_->rooms_[world_->output_index(output)] = room;
}
void NodeRunnerCore::set_stop_requested(bool requested) { world_->stop_requested_ = requested; }
void NodeRunnerCore::fail_files(std::string text) { world_->file_fault_ = std::move(text); }

Status NodeRunnerCore::start() { return world_->start(); }
Status NodeRunnerCore::give(std::string_view input, Payload payload, Given given) {
  return world_->give(input, std::move(payload), given);
}
Result<bool> NodeRunnerCore::run_work() { return world_->run_work(); }
Result<int> NodeRunnerCore::run_work_until_done(int turns_max) {
  for (int turn = 1; turn <= turns_max; ++turn) {
    ASSIGN_OR_RETURN(const bool more, world_->run_work());
    if (!more) return turn;
  }
  return turns_max;
}
Status NodeRunnerCore::advance(Duration duration) { return world_->advance(duration); }
Status NodeRunnerCore::drain() { return world_->drain(); }
Status NodeRunnerCore::peer(PeerEvent event) { return world_->peer(event); }
bool NodeRunnerCore::idle() { return world_->actor_->idle(); }

Time NodeRunnerCore::now() const { return world_->now_; }
Actor& NodeRunnerCore::actor() { return *world_->actor_; }
const std::vector<Emission>& NodeRunnerCore::emissions(std::string_view output) const {
  return world_->sent_[world_->output_index(output)];
}
std::vector<InstanceId> NodeRunnerCore::targets_of(std::string_view output) const {
  std::vector<InstanceId> targets;
  for (const auto& emission : emissions(output)) targets.push_back(emission.options.target);
  return targets;
}
void NodeRunnerCore::forget_sent(std::string_view output) {
  world_->sent_[world_->output_index(output)].clear();
}
void NodeRunnerCore::forget_sent() {
  for (auto& sent : world_->sent_) sent.clear();
}
bool NodeRunnerCore::is_paused(std::string_view input) const {
  return world_->paused_[world_->input_index(input)];
}
size_t NodeRunnerCore::num_waiting(std::string_view input) const {
  return world_->waiting_[world_->input_index(input)].size();
}
std::optional<Time> NodeRunnerCore::timer(std::string_view name) const {
  const auto found = world_->timers_.find(std::string(name));
  if (found == world_->timers_.end()) return std::nullopt;
  return found->second;
}
const std::vector<std::string>& NodeRunnerCore::lines(std::string_view file) const {
  static const std::vector<std::string> kNone;
  const auto found = world_->lines_.find(file);
  return found == world_->lines_.end() ? kNone : found->second;
}
const std::vector<PublishedMetrics>& NodeRunnerCore::metrics() const { return world_->metrics_; }
const std::vector<CommittedCheckpoint>& NodeRunnerCore::checkpoints() const {
  return world_->checkpoints_;
}
int64_t NodeRunnerCore::counter(std::string_view name) const {
  const auto found = world_->counters_.find(name);
  return found == world_->counters_.end() ? 0 : found->second;
}
const std::vector<std::string>& NodeRunnerCore::log() const { return world_->log_; }
bool NodeRunnerCore::is_finished(TenantSlot tenant) const {
  return world_->finished_.count(tenant) > 0;
}

const Error* NodeRunnerCore::failure_of(TenantSlot tenant) const {
  const auto found = world_->failures_.find(tenant);
  return found == world_->failures_.end() ? nullptr : &found->second;
}
bool NodeRunnerCore::stops_on_error() const { return world_->stops_on_error_; }

}  // namespace primerl
