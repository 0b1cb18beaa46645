/// ClientProgress: what a trainer keeps for a client that trains its tenant by halves of a step
/// (docs/design/client-steps.md): the open request, the sums of the open gradients, and the names
/// of saved weights and snapshots. client_work.cc does the work.
///
///   wait -> [request] -> work -> answer, one after the other
///
/// It decides from its own state alone and reads no file, so a replay decides the same. A folder
/// of saved weights is never changed: one that is overwritten gets a successor and stays until a
/// later checkpoint is complete, because a resumed run may load it again.
///
/// Not thread-safe: its trainer's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "actors/messages/client.h"
#include "graph/base/json.h"
#include "graph/base/services.h"
#include "graph/tenant.h"
#include "kernels/train/learner.h"

namespace primerl {

/// Most saved weights of a client, and most of its snapshots that are in use.
inline constexpr size_t kSavedWeightsMax = 64;
/// Those that a client keeps, and one of the base model.
inline constexpr size_t kSnapshotsMax = kClientSnapshotsMax + 1;
/// Replaced or removed folders wait for a checkpoint. With so many of them nothing is replaced, and
/// together with saved weights there are at most kSavedWeightsMax more. So a removal is always
/// possible: its folder counts already.
inline constexpr size_t kRetiredFoldersMax = 64;
/// Versions of a start from a checkpoint begin at its number times this.
inline constexpr int64_t kVersionsOfAStart = 1'000'000'000;
/// The folder of the state that every tenant begins with. No client can name it.
inline constexpr std::string_view kFirstFolder = "first";

/// Saved weights: `clients/<tenant>/weights/<name>`, its n-th successor `<name>~<n + 1>`.
struct SavedByClient {
  std::string name;
  uint32_t generation = 1;

  std::string path() const;
  template <class F>
  static void fields(F& f) {
    f("name", &SavedByClient::name)("generation", &SavedByClient::generation);
  }
};

/// A snapshot that is in use. With a name it also has a PEFT folder,
/// `clients/<tenant>/sampler_weights/<name>`.
struct SnapshotOfClient {
  uint32_t number = 0;  // of snapshot_key()
  std::string name;

  std::string path() const;
  template <class F>
  static void fields(F& f) {
    f("number", &SnapshotOfClient::number)("name", &SnapshotOfClient::name);
  }
};

/// The sums of the passes since the last update.
struct OpenPasses {
  int64_t num_calls = 0;
  LossTotals totals;
  Time began;  // the first of them

  template <class F>
  static void fields(F& f) {
    using O = OpenPasses;
    f("num_calls", &O::num_calls)("totals", &O::totals)("began", &O::began);
  }
};

/// A request, and where its answer goes.
struct OpenRequest {
  std::optional<PassRequest> pass;  // exactly one of the three
  std::optional<UpdateRequest> update;
  std::optional<WeightsRequest> weights;
  StepRef cause;
  InstanceId origin;

  std::string_view what() const;  // "pass"
  template <class F>
  static void fields(F& f) {
    using R = OpenRequest;
    f("pass", &R::pass)("update", &R::update)("weights", &R::weights)("cause", &R::cause)(
        "origin", &R::origin);
  }
};

/// Weights that the learner writes for a request; the checkpoints of the trainer wait meanwhile.
struct OpenFolder {
  std::string path;
  bool is_first = false;  // kFirstFolder: no request asked for it
  WeightsDone answer;     // if it can be written

  template <class F>
  static void fields(F& f) {
    f("path", &OpenFolder::path)("is_first", &OpenFolder::is_first)("answer", &OpenFolder::answer);
  }
};

class ClientProgress {
 public:
  /// Refuses data that cannot be trained, before anything is computed: what check_loss_batch()
  /// refuses, data longer than the tenant's seq_len, for which memory was planned, and an answer
  /// that does not fit into a message. The error names the datum.
  static Status check(const LossBatch& batch, const SampleLimits& limits, const Tenant& tenant);
  /// Refuses a request for weights that cannot be done, before anything is changed.
  Status check(const WeightsRequest& request) const;

  /// The saved weights of this name; null: there are none.
  const SavedByClient* find_saved(std::string_view name) const;
  /// Where kSave writes to: a folder that does not exist.
  SavedByClient next_saved(std::string_view name) const;
  /// The folder is complete: the name is its own.
  void add_saved(const SavedByClient& saved);
  void remove_saved(std::string_view name);
  /// The snapshot of this key; null: it is not in use.
  const SnapshotOfClient* find_snapshot(uint32_t number) const;
  void remove_snapshot(uint32_t number);

  /// A pass has ended. `result` null: it failed, and its gradients are discarded.
  void end_pass(bool forward_only, const LossResult* result);
  /// An update, or a load, has closed the gradients.
  void close() { open = {}; }

  /// A checkpoint begins or is complete. The second returns the folders that it makes superfluous.
  void begin_checkpoint() { num_covered_ = retired_.size(); }
  std::vector<std::string> end_checkpoint();

  /// The part of a checkpoint's manifest, and back; kCorrupt if it is none. No snapshot is in use
  /// after a start from a checkpoint alone: their weights were in the channel. `start`: the number
  /// of the start. What earlier ones published after the checkpoint is unknown, so versions
  /// continue beyond all that they could have.
  Json json() const;
  Status read(const Json& json, uint32_t start);

  template <class F>
  static void fields(F& f) {
    using C = ClientProgress;
    f("request", &C::request)("folder", &C::folder)("open", &C::open)("published", &C::published)(
        "has_first", &C::has_first)("is_awaited", &C::is_awaited)("was_loaded", &C::was_loaded)(
        "asked_step", &C::asked_step)("saved", &C::saved_)("snapshots", &C::snapshots)(
        "num_snapshots", &C::num_snapshots)("generations", &C::num_generations_)(
        "retired", &C::retired_)("num_covered", &C::num_covered_);
  }

  std::optional<OpenRequest> request;
  std::optional<OpenFolder> folder;
  OpenPasses open;
  PolicyVersion published;  // the newest version of all keys of the tenant
  bool has_first = false;   // kFirstFolder is complete
  bool is_awaited = false;  // it waits for a request; the timer is set
  /// Since the last update other weights were loaded. A checkpoint has the number of that update,
  /// and a resumed run would compute passes before the load under the loaded weights.
  bool was_loaded = false;
  int64_t asked_step = -1;  // the process asked for a checkpoint of this step or a later one
  std::vector<SnapshotOfClient> snapshots;
  uint32_t num_snapshots = 0;  // ever made

 private:
  Status check_save(const WeightsRequest& asked) const;

  std::vector<SavedByClient> saved_;
  std::vector<SavedByClient> num_generations_;  // of names that had more than one folder
  std::vector<std::string> retired_;            // folders that only a resumed run may need
  uint64_t num_covered_ = 0;  // the first of them, which the begun checkpoint makes superfluous
};

}  // namespace primerl
