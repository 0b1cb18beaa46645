#include "actors/trainer/client_steps.h"

#include <algorithm>
#include <utility>

#include "actors/tinker/names.h"
#include "graph/message_type.h"
#include "kernels/weights/weights_key.h"

namespace primerl {
namespace {

Error no_saved(std::string_view name, const std::vector<SavedByClient>& saved) {
  std::vector<std::string> names;
  for (const auto& each : saved) names.push_back(each.name);
  return error(Code::kNotFound, "there are no saved weights '{}'", name)
      .note(names.empty() ? "none were saved" : fmt::format("saved: {}", fmt::join(names, ", ")));
}

Error open_gradients(std::string_view what, int64_t num_calls) {
  return error(Code::kInvalid, "{} while gradients of {} passes are open", what, num_calls)
      .note("update first: no folder has them");
}

Result<const Json::Array*> list_in(const Json& json, std::string_view key) {
  const Json* found = json.find(key);
  if (found == nullptr || !found->is_array())
    return error(Code::kCorrupt, "the manifest's 'client' has no list '{}'", key);
  return &found->as_array();
}

}  // namespace

std::string SavedByClient::path() const {
  return generation == 1 ? fmt::format("weights/{}", name)
                         : fmt::format("weights/{}~{}", name, generation);
}

std::string SnapshotOfClient::path() const { return fmt::format("sampler_weights/{}", name); }

std::string_view OpenRequest::what() const {
  return pass ? "pass" : update ? "update" : "request for weights";
}

Status ClientProgress::check(const LossBatch& batch, const SampleLimits& limits,
                             const Tenant& tenant) {
  for (size_t i = 0; i < batch.data.size(); ++i)
    if (std::cmp_greater(batch.data[i].tokens.size(), tenant.seq_len))
      return error(Code::kInvalid, "datum {} has {} tokens, 'seq_len' of tenant '{}' is {}", i,
                   batch.data[i].tokens.size(), tenant.name, tenant.seq_len)
          .note("memory was planned for seq_len: cut the datum, or write a larger seq_len");
  RETURN_IF_ERROR(check_loss_batch(batch, limits));
  PassDone answer;
  for (const LossDatum& datum : batch.data)
    answer.result.logprobs.emplace_back(datum.targets.size());
  if (const size_t bytes = body_bytes_max(answer); bytes > kMessageBytesMax)
    return error(Code::kExhausted, "the answer for {} data has {} bytes, a message has at most {}",
                 batch.data.size(), bytes, kMessageBytesMax)
        .note("send the data in several passes: their gradients add up to the same bits");
  return ok();
}

Status ClientProgress::check(const WeightsRequest& asked) const {
  const bool has_name = asked.action == WeightsAction::kSave ||
                        asked.action == WeightsAction::kLoad ||
                        asked.action == WeightsAction::kDropSaved ||
                        (asked.action == WeightsAction::kSnapshot && !asked.name.empty());
  if (has_name) RETURN_IF_ERROR(tinker::check_saved_name(asked.name));
  switch (asked.action) {
    case WeightsAction::kReset:
      return ok();
    case WeightsAction::kSave:
      if (open.num_calls > 0) return open_gradients("a save", open.num_calls);
      return check_save(asked);
    case WeightsAction::kLoad:
      return find_saved(asked.name) != nullptr ? ok() : Status(no_saved(asked.name, saved_));
    case WeightsAction::kDropSaved:
      return find_saved(asked.name) != nullptr ? ok() : Status(no_saved(asked.name, saved_));
    case WeightsAction::kSnapshot:
    case WeightsAction::kBase: {
      if (asked.action == WeightsAction::kSnapshot && open.num_calls > 0)
        return open_gradients("a snapshot", open.num_calls);
      if (snapshots.size() >= kSnapshotsMax)
        return error(Code::kExhausted, "{} snapshots are in use, the most that a tenant has",
                     snapshots.size())
            .note("drop one that is not used");
      if (num_snapshots >= kSnapshotNumberMax)
        return error(Code::kExhausted, "the tenant has made {} snapshots, which is the most",
                     num_snapshots);
      const auto same = std::ranges::find(snapshots, asked.name, &SnapshotOfClient::name);
      if (!asked.name.empty() && same != snapshots.end())
        return error(Code::kInvalid, "there is a snapshot '{}' already", asked.name)
            .note("take another name, or drop that snapshot");
      return ok();
    }
    case WeightsAction::kPublish:
      return open.num_calls > 0 ? Status(open_gradients("publishing", open.num_calls)) : ok();
    case WeightsAction::kDropSnapshot:
      if (!asked.adapter.is_none() &&
          find_snapshot(WeightsKey{TenantSlot(0), asked.adapter}.snapshot_number()) != nullptr)
        return ok();
      return error(Code::kNotFound, "no snapshot of the tenant is in use with this key");
  }
  return error(Code::kInvalid, "an unknown request for weights");
}

Status ClientProgress::check_save(const WeightsRequest& asked) const {
  const bool replaces = find_saved(asked.name) != nullptr;
  if (replaces && !asked.overwrites)
    return error(Code::kInvalid, "there are saved weights '{}' already", asked.name)
        .note("save with another name, or ask to overwrite them");
  if (!replaces && saved_.size() >= kSavedWeightsMax)
    return error(Code::kExhausted, "there are {} saved weights, the most that a tenant has",
                 saved_.size())
        .note("remove some of them");
  const bool is_full =
      replaces ? retired_.size() >= kRetiredFoldersMax
               : saved_.size() + retired_.size() >= kSavedWeightsMax + kRetiredFoldersMax;
  if (is_full)
    return error(Code::kExhausted,
                 "{} folders were overwritten or removed since the last checkpoint",
                 retired_.size())
        .note("they stay until the next checkpoint: update first");
  return ok();
}

const SavedByClient* ClientProgress::find_saved(std::string_view name) const {
  const auto found = std::ranges::find(saved_, name, &SavedByClient::name);
  return found == saved_.end() ? nullptr : &*found;
}

SavedByClient ClientProgress::next_saved(std::string_view name) const {
  const auto last = std::ranges::find(num_generations_, name, &SavedByClient::name);
  return {std::string(name), last == num_generations_.end() ? 1 : last->generation + 1};
}

void ClientProgress::add_saved(const SavedByClient& saved) {
  remove_saved(saved.name);
  saved_.push_back(saved);
  const auto last = std::ranges::find(num_generations_, saved.name, &SavedByClient::name);
  if (last == num_generations_.end())
    num_generations_.push_back(saved);
  else
    last->generation = saved.generation;
}

void ClientProgress::remove_saved(std::string_view name) {
  const auto found = std::ranges::find(saved_, name, &SavedByClient::name);
  if (found == saved_.end()) return;
  retired_.push_back(found->path());
  saved_.erase(found);
}

const SnapshotOfClient* ClientProgress::find_snapshot(uint32_t number) const {
  const auto found = std::ranges::find(snapshots, number, &SnapshotOfClient::number);
  return found == snapshots.end() ? nullptr : &*found;
}

void ClientProgress::remove_snapshot(uint32_t number) {
  std::erase_if(snapshots, [number](const auto& each) { return each.number == number; });
}

void ClientProgress::end_pass(bool forward_only, const LossResult* result) {
  if (forward_only) return;
  if (result == nullptr) return close();
  ++open.num_calls;
  open.totals.add(result->totals);
}

std::vector<std::string> ClientProgress::end_checkpoint() {
  const auto end = retired_.begin() + static_cast<ptrdiff_t>(num_covered_);
  std::vector<std::string> superfluous(retired_.begin(), end);
  retired_.erase(retired_.begin(), end);
  num_covered_ = 0;
  // A name that is not used any more begins anew, once no folder of it is left.
  std::erase_if(num_generations_, [this](const SavedByClient& last) {
    return find_saved(last.name) == nullptr &&
           std::ranges::none_of(retired_, [&](const std::string& path) {
             return path == fmt::format("weights/{}", last.name) ||
                    path.starts_with(fmt::format("weights/{}~", last.name));
           });
  });
  return superfluous;
}

Json ClientProgress::json() const {
  const auto list = [](const std::vector<SavedByClient>& all) {
    Json::Array made;
    for (const auto& each : all)
      made.push_back(Json::object().set("name", each.name).set("generation", each.generation));
    return made;
  };
  Json::Array retired;
  for (const auto& path : retired_) retired.push_back(path);
  return Json::object()
      .set("published", published.value)
      .set("saved", list(saved_))
      .set("generations", list(num_generations_))
      .set("num_snapshots", num_snapshots)
      .set("retired", std::move(retired));
}

Status ClientProgress::read(const Json& json, uint32_t start) {
  const auto read_list = [&json](const char* key, std::vector<SavedByClient>& all) -> Status {
    ASSIGN_OR_RETURN(const Json::Array* list, list_in(json, key));
    for (const Json& each : *list) {
      SavedByClient& made = all.emplace_back();
      ASSIGN_OR_RETURN(made.name, each.get_string("name"));
      ASSIGN_OR_RETURN(const int64_t generation, each.get_int("generation"));
      made.generation = static_cast<uint32_t>(generation);
      RETURN_IF_ERROR(tinker::check_saved_name(made.name));
    }
    return ok();
  };
  ASSIGN_OR_RETURN(published.value, json.get_int("published"));
  published.value = std::max(published.value, int64_t{start} * kVersionsOfAStart);
  RETURN_IF_ERROR(read_list("saved", saved_));
  RETURN_IF_ERROR(read_list("generations", num_generations_));
  ASSIGN_OR_RETURN(const int64_t made, json.get_int("num_snapshots"));
  num_snapshots = static_cast<uint32_t>(made);
  ASSIGN_OR_RETURN(const Json::Array* retired, list_in(json, "retired"));
  for (const Json& each : *retired)
    if (each.is_string()) retired_.push_back(each.as_string());
  has_first = true;
  return ok();
}

}  // namespace primerl
