/// The keys of config.json that every family shares and that no size depends on: those that change
/// nothing are passed over, those that change what a model computes are refused.
#pragma once

#include "graph/base/result.h"
#include "kernels/models/config_reader.h"

namespace primerl {

/// Passes over descriptions, defaults of generate() and the notes of tools.
void ignore_descriptions(ConfigReader& reader);

/// The first key that would change the arithmetic in a way that no family here computes. The keys
/// may be present with a value that changes nothing.
Status check_arithmetic(ConfigReader& reader);

}  // namespace primerl
