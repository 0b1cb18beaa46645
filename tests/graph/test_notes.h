/// Messages, resources and an actor that does nothing, for the catalog of tests of the graph
/// language.
#pragma once

#include <cstdint>
#include <string_view>

#include "graph/contract.h"

namespace primerl::testing {

template <int kNumber>
struct Note {
  static constexpr std::string_view kNames[] = {
      "Task",       "GenerateRequest", "PrefillDone",  "Completion",    "TrajectoryGroup",
      "GroupEnded", "WeightsReady",    "PolicyUpdate", "PolicyApplied", "PolicyLive",
      "EngineLoad", "Cancel",          "Action",       "Observation",   "PassRequest",
      "PassDone"};
  static constexpr std::string_view kName = kNames[kNumber];
  static constexpr uint32_t kVersion = 1;
  uint64_t id = 0;
  template <class F>
  static void fields(F& f) {
    f("id", &Note::id);
  }
};
using Task = Note<0>;
using GenerateRequest = Note<1>;
using PrefillDone = Note<2>;
using Completion = Note<3>;
using TrajectoryGroup = Note<4>;
using GroupEnded = Note<5>;
using WeightsReady = Note<6>;
using PolicyUpdate = Note<7>;
using PolicyApplied = Note<8>;
using PolicyLive = Note<9>;
using EngineLoad = Note<10>;
using Cancel = Note<11>;
using Action = Note<12>;
using Observation = Note<13>;
using PassRequest = Note<14>;
using PassDone = Note<15>;

struct CatalogEngine : Resource {
  static constexpr std::string_view kResourceKind = "engine";
};
struct CatalogLearner : Resource {
  static constexpr std::string_view kResourceKind = "learner";
};
struct CatalogWeights : Resource {
  static constexpr std::string_view kResourceKind = "weight_channel";
};
struct FakeTokenizer : Resource {
  static constexpr std::string_view kResourceKind = "tokenizer";
};
struct FakeOutside : Resource {
  static constexpr std::string_view kResourceKind = "outside";
};

template <class Options>
class Quiet : public Actor {
 public:
  explicit Quiet(const Options&) {}
  template <class T>
  Status take(const T&) {
    return ok();
  }
  Status tick() { return ok(); }
  Out<Task> task;
  Out<GenerateRequest> generate;
  Out<PrefillDone> done;
  Out<Completion> completion, refused;
  Out<TrajectoryGroup> group;
  Out<GroupEnded> ended;
  Out<WeightsReady> weights;
  Out<PolicyUpdate> update;
  Out<PolicyApplied> applied;
  Out<PolicyLive> live;
  Out<EngineLoad> load;
  Out<Cancel> cancel;
  Out<Action> action;
  Out<Observation> observation;
  Out<PassRequest> pass;
  Out<PassDone> passed;
};

}  // namespace primerl::testing
