/// The frozen weights that engines and learners of one process hold together: of each model folder,
/// device and type of numbers there is one set, however many use it.
///
/// Owns none of them: a set lives as long as somebody holds it. Who asks for one that nobody holds
/// loads it, on its own thread; who asks for the same meanwhile waits for that, and loads it itself
/// if it failed. What it gives out never changes. Any thread: the lock is inside, since engines and
/// learners are made and dropped each on a thread of its own. It belongs to a process' backends
/// (runtime/backends), and may end before what it gave out.
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

/// Weights as the products of one kind of device read them. Immutable once they are shared.
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
    std::filesystem::path folder;  // any spelling of it
    std::string device;            // "cpu", "cuda:0"
    std::string dtype;             // "float32", "bfloat16"

    friend auto operator<=>(const Key&, const Key&) = default;
  };

  /// The set of `key`, or what `load()` gives, a Result<std::shared_ptr<const Base>>. All of one
  /// device and type of numbers are of one class. A load that fails or throws leaves nothing.
  template <class Base, class Load>
  Result<std::shared_ptr<const Base>> find_or_load(const Key& key, Load&& load) {
    Claim claim{*this, canonical(key), nullptr};
    if (const auto held = find_or_claim(claim.key)) {
      auto base = std::dynamic_pointer_cast<const Base>(held);
      if (base == nullptr)  // no CHECK: torch has another one
        check_failed("base != nullptr", __FILE__, __LINE__, "frozen weights of two classes");
      return base;
    }
    const Release release{claim};
    Result<std::shared_ptr<const Base>> loaded = load();
    if (loaded.ok()) claim.loaded = *loaded;
    return loaded;
  }

  /// Sets that somebody holds.
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
  /// Waits while somebody loads it. Null: the caller loads it, and then releases the claim.
  std::shared_ptr<const FrozenBase> find_or_claim(const Key& key);
  void release(const Claim& claim);

  // Guarded by mutex_, which is never held while something is loaded.
  std::mutex mutex_;
  std::condition_variable released_;
  std::map<Key, Place> places_;
};

}  // namespace primerl
