/// A CUDA device as engines name it: whether it is there and can be used, and what it has. Plain
/// functions, any thread; torch-free to include.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "graph/base/result.h"

namespace primerl {

/// Why engines cannot compute on `device` ("cuda:0"), as what follows "which ..."; "" where they
/// can. Makes this process known to the device, which costs some of its memory.
std::string why_no_card(std::string_view device);

/// N of "cuda:N"; -1 of anything else.
int32_t card_index(std::string_view device);

struct CardFacts {
  double free_bytes = 0;   // now; others may take them
  double total_bytes = 0;  // of the device, or of its MIG part
  int32_t num_processors = 0;
  int32_t capability_major = 0;
};

/// Of a card that why_no_card() has nothing against.
Result<CardFacts> card_facts(int32_t card);

}  // namespace primerl
