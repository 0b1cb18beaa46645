// Preloaded (LD_PRELOAD) into programs under test: their wall clock is PRIMERL_TEST_DAYS_LATER days
// ahead. The steady clock is as it was.
#include <dlfcn.h>
#include <time.h>

#include <cstdlib>

extern "C" int clock_gettime(clockid_t clock, timespec* time) {
  static const auto next =
      reinterpret_cast<int (*)(clockid_t, timespec*)>(::dlsym(RTLD_NEXT, "clock_gettime"));
  const int status = next(clock, time);
  const char* const days = std::getenv("PRIMERL_TEST_DAYS_LATER");
  if (status == 0 && clock == CLOCK_REALTIME && days != nullptr)
    time->tv_sec += time_t{86400} * std::atoi(days);
  return status;
}
