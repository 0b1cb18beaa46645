#include "kernels/weights/memory_channel.h"

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>

#include "kernels/weights/handshake.h"

namespace primerl {
namespace {

class MemoryChannel final : public WeightChannel {
 public:
  explicit MemoryChannel(size_t versions_max) : versions_max_(versions_max) {}

  Status publish(std::shared_ptr<const WeightSnapshot> snapshot) override {
    if (snapshot == nullptr) return error(Code::kInvalid, "published weights are missing");
    std::lock_guard lock(mutex_);
    RETURN_IF_ERROR(check_rises(newest_, snapshot->name()));
    ASSIGN_OR_RETURN(auto manifest, manifest_of(*snapshot));
    RETURN_IF_ERROR(handshake_.offer(manifest, snapshot->name()));
    if (auto& offered = offered_[snapshot->key]; offered.manifest.empty()) {
      offered.hash = manifest.hash();
      offered.manifest = std::move(manifest);
    }
    CHECK(newest_.set(snapshot->key, snapshot->version), "a key more than was checked");
    auto& versions = versions_[snapshot->key];
    versions.push_back(std::move(snapshot));
    if (versions.size() > versions_max_) versions.pop_front();
    return ok();
  }

  Result<std::shared_ptr<const WeightSnapshot>> fetch(WeightsKey key,
                                                      PolicyVersion version) override {
    std::lock_guard lock(mutex_);
    std::vector<PolicyVersion> held;
    if (const auto found = versions_.find(key); found != versions_.end())
      for (const auto& snapshot : found->second) {
        held.push_back(snapshot->version);
        if (snapshot->version != version) continue;
        const auto& [manifest, hash] = offered_.at(key);
        RETURN_IF_ERROR(handshake_.accept(manifest, hash));
        return snapshot;
      }
    return not_in_channel({key, version}, held);
  }

  PolicyVersion newest(WeightsKey key) const override {
    std::lock_guard lock(mutex_);
    return newest_.of(key);
  }

  void drop(WeightsKey key) override {
    std::deque<std::shared_ptr<const WeightSnapshot>> freed;  // without the lock
    const std::lock_guard lock(mutex_);
    if (const auto found = versions_.find(key); found != versions_.end()) {
      freed.swap(found->second);
      versions_.erase(found);
    }
    offered_.erase(key);
    handshake_.forget(key);
    newest_.erase(key);
  }

  Status expect(const WeightManifest& wanted) override {
    std::lock_guard lock(mutex_);
    return handshake_.expect(wanted);
  }

  std::string describe() const override {
    std::lock_guard lock(mutex_);
    return describe_newest(newest_);
  }

 private:
  const size_t versions_max_;
  mutable std::mutex mutex_;
  // oldest first
  std::map<WeightsKey, std::deque<std::shared_ptr<const WeightSnapshot>>> versions_;
  VersionsByKey newest_;
  Handshake handshake_;
  struct Offered {
    WeightManifest manifest;  // of all versions of a key
    uint64_t hash = 0;
  };
  std::map<WeightsKey, Offered> offered_;
};

}  // namespace

std::shared_ptr<WeightChannel> make_memory_channel(size_t versions_max) {
  return std::make_shared<MemoryChannel>(versions_max);
}

}  // namespace primerl
