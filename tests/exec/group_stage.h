/// One actor group without an executor: its parts, for tests of a single part. The test sends it
/// messages and sees what leaves. Not thread-safe.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/exec/group_actors.h"
#include "runtime/exec/group_links.h"
#include "runtime/exec/group_saver.h"
#include "runtime/exec/group_steps.h"
#include "tests/exec/small_graph.h"

namespace primerl::testing {

/// A sent batch, by its contents.
struct SentBatch {
  GroupId to;
  uint64_t cut = 0;
  std::vector<int64_t> values;  // of its messages
  std::vector<Grant> grants;
};

class GroupStage final : public GroupExecutor {
 public:
  /// The group named `name` of `graph`. `source` and `cuts` as in GroupSetup.
  GroupStage(SmallGraph& graph, std::string_view name, StepSource* source = nullptr,
             CutSink* cuts = nullptr)
      : plan(graph.plan()),
        wiring(make_wiring(*plan)),
        common(GroupCommon::make(setup(name, source, cuts))),
        links(*common),
        actors(common, links),
        steps(common, links, actors),
        saver(*common, links, actors, steps) {}

  // GroupExecutor
  void ship(MessageBatch&& batch) override {
    SentBatch& one = sent.emplace_back(SentBatch{batch.to, batch.cut, {}, batch.grants});
    for (const auto& message : batch.messages)
      one.values.push_back(message.envelope.payload.as<Number>().value);
  }
  void tenant_finished(TenantSlot tenant, uint32_t) override { finished.push_back(tenant); }
  void tenant_failed(TenantSlot tenant, uint32_t, std::string why) override {
    failed_tenants.emplace_back(tenant, std::move(why));
  }
  void group_failed(GroupId, Error error) override { failures.push_back(error.text()); }
  void command_answered(CommandAnswer answer) override { answers.push_back(std::move(answer)); }

  GroupId group(std::string_view name) const {
    for (uint32_t i = 0; i < plan->groups.size(); ++i)
      if (plan->groups[i].name == name) return GroupId(i);
    CHECK(false, "no such group");
    return {};
  }
  uint32_t peer(std::string_view name) const { return links.peers().index_of(group(name)); }
  /// A message of incoming link `in_index`.
  BatchedMessage message(uint32_t in_index, uint64_t sequence, int64_t value,
                         uint32_t incarnation = 1) const {
    const InLink& in = links.inbox().links[in_index];
    Envelope envelope;
    envelope.edge = in.link->edge;
    envelope.sender = in.link->sender;
    envelope.target = in.link->target;
    envelope.tenant = TenantSlot(0);
    envelope.origin = in.link->sender;
    envelope.incarnation = incarnation;
    envelope.sequence = sequence;
    envelope.payload = Payload::of(Number{value, {}});
    return {in.id, std::move(envelope)};
  }
  /// The group receives messages `first` to `last` of a link; the value is the sequence number.
  Status receive(uint32_t in_index, uint64_t first, uint64_t last, uint32_t incarnation = 1) {
    MessageBatch batch;
    batch.from = links.inbox().links[in_index].link->sender_group;
    batch.to = common->setup.group;
    batch.incarnation = incarnation;
    for (uint64_t i = first; i <= last; ++i)
      batch.messages.push_back(message(in_index, i, static_cast<int64_t>(i), incarnation));
    return links.accept(links.peers().index_of(batch.from), std::move(batch));
  }
  /// The group receives a grant for its outgoing link `out_index`.
  Status receive_grant(uint32_t out_index, uint64_t num_messages, uint32_t incarnation = 1) {
    const OutLink& out = common->flow->links[out_index];
    MessageBatch batch;
    batch.from = out.link->target_group;
    batch.to = common->setup.group;
    batch.incarnation = incarnation;
    batch.grants.push_back({out.id, num_messages, 0, common->setup.incarnation});
    return links.accept(links.peers().index_of(batch.from), std::move(batch));
  }
  /// One whole step; false: nothing to do.
  bool step(Time now = Time()) {
    if (!steps.begin(now)) return false;
    steps.run();
    steps.complete(now);
    return true;
  }
  Puppet& puppet(uint32_t actor = 0) { return static_cast<Puppet&>(actors.running(actor).actor()); }
  /// Batches sent since the last call, after a flush.
  std::vector<SentBatch> flushed() {
    links.flush();
    return std::exchange(sent, {});
  }

  std::shared_ptr<const Plan> plan;
  std::shared_ptr<const Wiring> wiring;
  MemoryHostServices services;
  std::vector<SentBatch> sent;
  std::vector<std::string> failures;
  std::vector<TenantSlot> finished;
  std::vector<std::pair<TenantSlot, std::string>> failed_tenants;
  std::vector<CommandAnswer> answers;
  std::shared_ptr<GroupCommon> common;
  GroupLinks links;
  GroupActors actors;
  GroupSteps steps;
  GroupSaver saver;

 private:
  GroupSetup setup(std::string_view name, StepSource* source, CutSink* cuts) {
    GroupSetup setup;
    setup.plan = plan;
    setup.wiring = wiring;
    setup.group = group(name);
    setup.process_services = &services;
    setup.executor = this;
    setup.factory = [](const Plan&, int32_t) -> Result<std::shared_ptr<Resource>> {
      return error(Code::kInternal, "small graphs have no resources");
    };
    setup.step_source = source;
    setup.cuts = cuts;
    return setup;
  }
};

}  // namespace primerl::testing
