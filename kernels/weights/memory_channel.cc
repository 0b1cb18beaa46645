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
    if (newest_.empty()) {
      manifest_hash_ = manifest.hash();
      manifest_ = std::move(manifest);
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
        RETURN_IF_ERROR(handshake_.accept(manifest_, manifest_hash_));
        return snapshot;
      }
    return not_in_channel({key, version}, held);
  }

  PolicyVersion newest(WeightsKey key) const override {
    std::lock_guard lock(mutex_);
    return newest_.of(key);
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
  std::map<WeightsKey, std::deque<std::shared_ptr<const WeightSnapshot>>> versions_;  // by age
  VersionsByKey newest_;
  Handshake handshake_;
  WeightManifest manifest_;  // of all versions
  uint64_t manifest_hash_ = 0;
};

}  // namespace

std::shared_ptr<WeightChannel> make_memory_channel(size_t versions_max) {
  return std::make_shared<MemoryChannel>(versions_max);
}

}  // namespace primerl
