// WeightChannel over shared memory: the publisher writes each version into a slot, receivers map
// it.
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "kernels/weights/channel.h"
#include "kernels/weights/shm_publisher.h"
#include "kernels/weights/shm_receiver.h"

namespace primerl {
namespace {

/// Poll interval for these: reuse device buffers that receivers released, close buffers that were
/// withdrawn, and send bytes to a receiver that cannot read a device.
constexpr auto kAttendEvery = std::chrono::milliseconds(20);

Status check_setup(const ChannelSetup& setup) {
  if (setup.versions_max >= 1 && setup.versions_max <= kShmVersionsMax) return ok();
  return error(Code::kInvalid, "weight channel '{}' cannot keep {} versions", setup.resource,
               setup.versions_max)
      .note(fmt::format("shm keeps 1 to {}", kShmVersionsMax));
}

class ShmChannel final : public WeightChannel {
 public:
  explicit ShmChannel(ChannelSetup setup) : setup_(std::move(setup)), receiver_(setup_, here_) {}
  ~ShmChannel() override {
    for (std::jthread* thread : {&watch_, &places_}) {
      thread->request_stop();
      if (thread->joinable()) thread->join();
    }
  }

  Status publish(std::shared_ptr<const WeightSnapshot> snapshot) override {
    if (snapshot == nullptr) return error(Code::kInvalid, "published weights are missing");
    const std::lock_guard lock(publish_mutex_);
    if (publisher_ == nullptr) {
      ASSIGN_OR_RETURN(publisher_, ShmPublisher::make(setup_, here_));
    }
    RETURN_IF_ERROR(publisher_->publish(snapshot, offered_));
    if (!is_watching_ && publisher_->has_device_versions()) {
      is_watching_ = true;
      watch_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
    }
    return ok();
  }
  Result<std::shared_ptr<const WeightSnapshot>> fetch(WeightsKey key,
                                                      PolicyVersion version) override {
    const std::lock_guard lock(fetch_mutex_);
    auto fetched = receiver_.fetch({key, version}, wanted_);
    if (receiver_.places().has_wanted()) looked_.notify_all();
    if (!is_attending_ && !receiver_.places().empty()) {
      is_attending_ = true;
      places_ = std::jthread([this](const std::stop_token& stop) { open_and_close_places(stop); });
    }
    return fetched;
  }
  PolicyVersion newest(WeightsKey key) const override {
    const std::lock_guard lock(fetch_mutex_);
    return receiver_.newest(key);
  }
  void drop(WeightsKey key) override {
    {
      const std::lock_guard lock(publish_mutex_);
      offered_.forget(key);
      if (publisher_ != nullptr) publisher_->drop(key);
    }
    const std::lock_guard lock(fetch_mutex_);
    receiver_.unmap_given_up();
  }
  Status expect(const WeightManifest& wanted) override {
    const std::lock_guard lock(fetch_mutex_);
    return wanted_.expect(wanted);
  }
  std::string describe() const override {
    const std::lock_guard lock(fetch_mutex_);
    return fmt::format("shared memory, {}", describe_newest(receiver_.newest_by_key()));
  }

 private:
  /// Runs while versions are on a device. Receivers release buffers that the next version needs. A
  /// receiver may also need bytes; without a poll it would wait for the next version.
  void watch(const std::stop_token& stop) {
    std::unique_lock lock(publish_mutex_);
    do {
      stopped_.wait_for(lock, stop, kAttendEvery, [] { return false; });
    } while (!stop.stop_requested() && publisher_->attend());
    is_watching_ = false;
  }

  /// Opens device buffers that contain versions, and closes them when this publisher or its
  /// successor may need the memory. Each takes milliseconds, and fetch() must not wait for it.
  void open_and_close_places(const std::stop_token& stop) {
    std::unique_lock lock(fetch_mutex_);
    while (!stop.stop_requested() && !receiver_.places().empty()) {
      auto wanted = receiver_.places().remove_wanted();
      auto withdrawn = receiver_.places().remove_withdrawn();
      lock.unlock();
      withdrawn.clear();
      for (WantedPlace& each : wanted) each.opened = opened(each.handle);
      lock.lock();
      receiver_.keep(std::move(wanted));
      looked_.wait_for(lock, stop, kAttendEvery,
                       [this] { return receiver_.places().has_wanted(); });
    }
    is_attending_ = false;
  }

  Result<std::shared_ptr<const DeviceBuffer>> opened(const DeviceHandle& handle) const {
    ASSIGN_OR_RETURN(std::shared_ptr<const DeviceBuffer> buffer, setup_.devices->open(handle));
    return buffer;
  }

  const ChannelSetup setup_;
  PublishedHere here_;
  // Guarded by publish_mutex_.
  std::mutex publish_mutex_;
  Handshake offered_;
  std::unique_ptr<ShmPublisher> publisher_;  // null until the first publish
  bool is_watching_ = false;
  std::condition_variable_any stopped_;
  // Guarded by fetch_mutex_.
  mutable std::mutex fetch_mutex_;
  Handshake wanted_;
  mutable ShmReceiver receiver_;
  bool is_attending_ = false;
  std::condition_variable_any looked_;
  std::jthread watch_, places_;  // last: they use the members above
};

}  // namespace

Result<std::shared_ptr<WeightChannel>> make_shm_channel(ChannelSetup setup) {
  RETURN_IF_ERROR(check_setup(setup));
  return std::shared_ptr<WeightChannel>(std::make_shared<ShmChannel>(std::move(setup)));
}

}  // namespace primerl
