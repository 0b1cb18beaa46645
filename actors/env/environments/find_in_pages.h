/// Read pages until one has the number that the task asks for: contexts as long as the pages.
///
///   prompt       f:kqzt>
///   action 1     n                  anything but an answer turns the page
///   observation  ghe kqpl xzt ...>  `page_bytes` letters; one page has ` kqzt=4711 ` in it
///   action 2     a:4711             ends the trajectory
///
/// The trajectory also ends with the action after the last page. Reward: 1 for the right answer,
/// else `kNearReward` times the share of positions (bytes) that are right. A page follows from the
/// task and the page number, so nothing is kept between turns.
#pragma once

#include <cstdint>
#include <memory>

#include "actors/env/environment.h"

namespace primerl {

struct FindInPagesOptions {
  int32_t pages = 8;         // pages of one task
  int32_t page_bytes = 256;  // bytes of each page, with the `>` at its end
};

inline constexpr double kNearReward = 0.2;
inline constexpr int32_t kPagesMax = 10'000;
inline constexpr int32_t kPageBytesMin = 32;
inline constexpr int32_t kPageBytesMax = 16 << 20;

Result<std::unique_ptr<Environment>> make_find_in_pages(const FindInPagesOptions& options);

}  // namespace primerl
