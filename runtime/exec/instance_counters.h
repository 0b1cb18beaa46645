/// InstanceCounters: the values that one instance counted with services().count(), for its saved
/// state and for the monitor.
///
/// The group owns it, so it survives a restart of the actor. Handlers write, any thread reads. At
/// most kNamesMax names of at most kNameBytesMax bytes each; counts with any other name are added
/// to `other`.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

namespace primerl {

class InstanceCounters {
 public:
  using Values = std::map<std::string, int64_t, std::less<>>;
  static constexpr size_t kNamesMax = 64;  // not counting `other`
  static constexpr size_t kNameBytesMax = 64;
  static constexpr std::string_view kOther = "other";

  void add(std::string_view name, int64_t amount) {
    const std::lock_guard lock(mutex_);
    auto found = values_.find(name);
    const bool is_new = found == values_.end();
    if (is_new &&
        (values_.size() >= kNamesMax + values_.count(kOther) || name.size() > kNameBytesMax)) {
      name = kOther;
      found = values_.find(name);
    }
    if (found == values_.end()) found = values_.emplace(std::string(name), 0).first;
    found->second += amount;
  }
  Values values() const {
    const std::lock_guard lock(mutex_);
    return values_;
  }
  void restore(const std::map<std::string, int64_t>& saved) {
    const std::lock_guard lock(mutex_);
    values_ = {saved.begin(), saved.end()};
  }

 private:
  mutable std::mutex mutex_;
  Values values_;
};

}  // namespace primerl
