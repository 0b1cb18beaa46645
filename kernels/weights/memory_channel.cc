#include "kernels/weights/memory_channel.h"

#include <algorithm>
#include <deque>
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
    if (!versions_.empty() && snapshot->version <= versions_.back()->version)
      return error(Code::kInvalid, "version {} was published after version {}",
                   snapshot->version.value, versions_.back()->version.value)
          .note("published versions rise");
    ASSIGN_OR_RETURN(auto manifest, manifest_of(*snapshot));
    RETURN_IF_ERROR(handshake_.offer(manifest, snapshot->version));
    if (versions_.empty()) {
      manifest_hash_ = manifest.hash();
      manifest_ = std::move(manifest);
    }
    versions_.push_back(std::move(snapshot));
    if (versions_.size() > versions_max_) versions_.pop_front();
    return ok();
  }

  Result<std::shared_ptr<const WeightSnapshot>> fetch(PolicyVersion version) override {
    std::lock_guard lock(mutex_);
    for (const auto& snapshot : versions_)
      if (snapshot->version == version) {
        RETURN_IF_ERROR(handshake_.accept(manifest_, manifest_hash_));
        return snapshot;
      }
    return error(Code::kNotFound, "version {} is not in the weight channel", version.value)
        .note(versions_.empty()
                  ? std::string("nothing was published yet")
                  : fmt::format("it holds versions {} to {}", versions_.front()->version.value,
                                versions_.back()->version.value));
  }

  PolicyVersion newest() const override {
    std::lock_guard lock(mutex_);
    return versions_.empty() ? PolicyVersion() : versions_.back()->version;
  }

  Status expect(const WeightManifest& wanted) override {
    std::lock_guard lock(mutex_);
    return handshake_.expect(wanted);
  }

  std::string describe() const override { return fmt::format("newest version {}", newest().value); }

 private:
  const size_t versions_max_;
  mutable std::mutex mutex_;
  std::deque<std::shared_ptr<const WeightSnapshot>> versions_;  // oldest first
  Handshake handshake_;
  WeightManifest manifest_;  // of all versions
  uint64_t manifest_hash_ = 0;
};

}  // namespace

std::shared_ptr<WeightChannel> make_memory_channel(size_t versions_max) {
  return std::make_shared<MemoryChannel>(versions_max);
}

}  // namespace primerl
