/// The frozen weights that engines and learners of one process share: one copy for each model
/// folder, device and data type.
///
/// It does not own them: a copy exists while an engine or learner uses it. The first to request a
/// missing copy loads it, on its own thread. Others that request it meanwhile wait, and load it
/// themselves if the load failed. A copy never changes. Any thread; the lock is inside, since
/// engines and learners are made and destroyed on separate threads. It belongs to a process's
/// backends (runtime/backends), and may be destroyed before the copies.
#pragma once

#include <compare>
#include <condition_variable>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "graph/base/assert.h"
#include "graph/base/result.h"

namespace primerl {

/// Weights in the layout that the GEMMs of one device kind read. Immutable once shared.
class FrozenBase {
 public:
  FrozenBase() = default;
  FrozenBase(const FrozenBase&) = delete;
  FrozenBase& operator=(const FrozenBase&) = delete;
  virtual ~FrozenBase() = default;
};

class FrozenBases {
 public:
  struct Key {
    std::filesystem::path folder;  // any path to it
    std::string device;            // "cpu", "cuda:0"
    std::string dtype;             // "float32", "bfloat16"

    friend auto operator<=>(const Key&, const Key&) = default;
  };

  /// The copy for `key`, or the result of `load()`, a Result<std::shared_ptr<const Base>>. All
  /// copies of one device and data type have the same class. A load that fails or throws leaves no
  /// entry.
  template <class Base, class Load>
  Result<std::shared_ptr<const Base>> find_or_load(const Key& key, Load&& load) {
    Claim claim{*this, canonical(key), nullptr};
    if (const auto held = find_or_claim(claim.key)) {
      auto base = std::dynamic_pointer_cast<const Base>(held);
      if (base == nullptr)  // not CHECK: torch defines another one
        check_failed("base != nullptr", __FILE__, __LINE__, "frozen weights of two classes");
      return base;
    }
    const Release release{claim};
    Result<std::shared_ptr<const Base>> loaded = load();
    if (loaded.ok()) claim.loaded = *loaded;
    return loaded;
  }

  /// Copies that are in use.
  size_t size();

 private:
  struct Place {
    bool is_loading = false;
    std::weak_ptr<const FrozenBase> base;
  };
  struct Claim {
    FrozenBases& bases;
    const Key key;
    std::shared_ptr<const FrozenBase> loaded;
  };
  struct Release {
    const Claim& claim;
    ~Release() { claim.bases.release(claim); }
  };

  static Key canonical(const Key& key);
  /// Waits while another thread loads it. Null: the caller must load it, and then release the
  /// claim.
  std::shared_ptr<const FrozenBase> find_or_claim(const Key& key);
  void release(const Claim& claim);

  // Guarded by mutex_, which is not locked during a load.
  std::mutex mutex_;
  std::condition_variable released_;
  std::map<Key, Place> places_;
};

}  // namespace primerl
