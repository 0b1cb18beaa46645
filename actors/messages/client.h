/// The messages of a client that trains a tenant by halves of a step (docs/design/client-steps.md):
///
///   tinker --PassRequest, UpdateRequest, WeightsRequest--> trainer
///   trainer ~~PassDone, UpdateDone, WeightsDone~~> tinker
///
/// A tenant has at most one of these requests open: the next one is sent after the answer to the
/// last. Every request gets exactly one answer. One that is refused, or fails, has a fault.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/histogram.h"
#include "graph/message.h"
#include "kernels/train/loss_batch.h"
#include "kernels/weights/weights_key.h"

namespace primerl {

/// Why a request of a client was refused or failed.
struct ClientFault {
  uint8_t code = 0;  // Code
  std::string message;

  bool is_set() const { return !message.empty(); }
  template <class F>
  static void fields(F& f) {
    f("code", &ClientFault::code)("message", &ClientFault::message);
  }
};

/// Forward, and unless batch.forward_only backward: Learner::accumulate().
struct PassRequest {
  static constexpr std::string_view kName = "PassRequest";
  static constexpr uint32_t kVersion = 1;

  uint64_t request = 0;
  LossBatch batch;  // its tenant is the envelope's

  template <class F>
  static void fields(F& f) {
    f("request", &PassRequest::request)("batch", &PassRequest::batch);
  }
};

struct PassDone {
  static constexpr std::string_view kName = "PassDone";
  static constexpr uint32_t kVersion = 1;

  uint64_t request = 0;
  ClientFault fault;
  LossResult result;
  PolicyVersion version;  // updates that were applied before it

  template <class F>
  static void fields(F& f) {
    f("request", &PassDone::request)("fault", &PassDone::fault)("result", &PassDone::result)(
        "version", &PassDone::version);
  }
};

/// The ages of data: updates of the weights between the sampling of their tokens and their pass.
struct DataAges {
  int64_t num_data = 0;  // whose tokens were sampled in this run
  int64_t sum = 0;
  int64_t most = 0;
  std::vector<int64_t> counts;  // by kStalenessBounds (graph/base/histogram.h); empty: none

  void add(int64_t age);
  template <class F>
  static void fields(F& f) {
    using D = DataAges;
    f("num_data", &D::num_data)("sum", &D::sum)("most", &D::most)("counts", &D::counts);
  }
};

inline void DataAges::add(int64_t age) {
  counts.resize(kStalenessBounds.size() + 1);
  ++counts[bucket_of(kStalenessBounds, static_cast<double>(age))];
  ++num_data;
  sum += age;
  most = std::max(most, age);
}

/// One AdamW step by the open gradients: Learner::apply().
struct UpdateRequest {
  static constexpr std::string_view kName = "UpdateRequest";
  static constexpr uint32_t kVersion = 1;

  uint64_t request = 0;
  AdamNumbers adam;
  DataAges ages;  // of its passes

  template <class F>
  static void fields(F& f) {
    f("request", &UpdateRequest::request)("adam", &UpdateRequest::adam)("ages",
                                                                        &UpdateRequest::ages);
  }
};

struct UpdateDone {
  static constexpr std::string_view kName = "UpdateDone";
  static constexpr uint32_t kVersion = 1;

  uint64_t request = 0;
  ClientFault fault;
  PolicyVersion version;  // updates that were applied, this one too
  double loss = 0;        // sum over the passes of the step
  double grad_norm = 0;   // before the clip
  double learning_rate = 0;
  int64_t num_loss_tokens = 0;
  bool skipped = false;  // the gradient was not finite: weights unchanged
  std::string skip_reason;

  template <class F>
  static void fields(F& f) {
    using U = UpdateDone;
    f("request", &U::request)("fault", &U::fault)("version", &U::version)("loss", &U::loss)(
        "grad_norm", &U::grad_norm)("learning_rate", &U::learning_rate)(
        "num_loss_tokens", &U::num_loss_tokens)("skipped", &U::skipped)("skip_reason",
                                                                        &U::skip_reason);
  }
};

enum class WeightsAction : uint8_t {
  kReset,         // a new model: the first adapter, no moments, no open gradients
  kSave,          // weights and optimizer, into the saved weights `name`
  kLoad,          // from the saved weights `name`; without with_optimizer the moments begin anew
  kSnapshot,      // publish the weights under a key of their own, which never changes
  kPublish,       // publish the weights as the next version of the tenant's moving key
  kDropSnapshot,  // `adapter` is used no more: engines and channel drop its key
  kDropSaved,     // remove the saved weights `name`
  kBase,          // as kSnapshot, but an adapter of zeros: the base model; also with open gradients
};

/// The request of a client between steps. kSave, kSnapshot and kPublish are refused while gradients
/// are open.
struct WeightsRequest {
  static constexpr std::string_view kName = "WeightsRequest";
  static constexpr uint32_t kVersion = 1;

  uint64_t request = 0;
  WeightsAction action = WeightsAction::kReset;
  std::string name;             // of saved weights: check_saved_name() (actors/tinker/names.h)
  bool with_optimizer = false;  // of kLoad
  bool overwrites = false;      // of kSave: replaces saved weights of this name
  AdapterId adapter;            // of kDropSnapshot

  template <class F>
  static void fields(F& f) {
    using W = WeightsRequest;
    f("request", &W::request)("action", &W::action)("name", &W::name)(
        "with_optimizer", &W::with_optimizer)("overwrites", &W::overwrites)("adapter", &W::adapter);
  }
};

/// The weights are saved, loaded, or in the weight channel. An engine can sample from published
/// ones once PolicyLive says so.
struct WeightsDone {
  static constexpr std::string_view kName = "WeightsDone";
  static constexpr uint32_t kVersion = 1;

  uint64_t request = 0;
  ClientFault fault;
  PolicyVersion version;  // of kSnapshot, kBase, kPublish: what was published; else updates applied
  AdapterId adapter;      // of kSnapshot and kBase: its key's; of kPublish the moving key's

  template <class F>
  static void fields(F& f) {
    using W = WeightsDone;
    f("request", &W::request)("fault", &W::fault)("version", &W::version)("adapter", &W::adapter);
  }
};

}  // namespace primerl
