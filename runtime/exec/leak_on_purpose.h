/// Leaks on purpose an object that a lost thread may still use: it stays until the process ends.
#pragma once

#include <memory>

#ifdef __SANITIZE_ADDRESS__
extern "C" void __lsan_ignore_object(const void* object);
#endif

namespace primerl {

/// Leak checkers ignore it, and everything that only it references.
template <class T>
void leak_on_purpose(std::unique_ptr<T>& owner) {
  [[maybe_unused]] const T* kept = owner.release();
#ifdef __SANITIZE_ADDRESS__
  __lsan_ignore_object(kept);
#endif
}

}  // namespace primerl
