/// The CUDA devices of this machine, as the driver describes them. Plain functions, any thread;
/// torch-free to include.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/torch/cards.h"

namespace primerl {

/// why_not_on_card() of this machine. Makes this process known to the device, which costs some of
/// its memory.
std::string why_no_card(std::string_view device);

/// Of a card that why_no_card() has nothing against.
Result<CardFacts> card_facts(int32_t card);

}  // namespace primerl
