/// Rules that every picture of a plan must follow.
#pragma once

#include <string>

#include "graph/render_drawing.h"

namespace primerl::testing {

/// One line for each broken rule; empty if all hold. The rules: no two labels overlap, and no label
/// overlaps a node; no line crosses a node; a line begins and ends at its own nodes; no line covers
/// another; each node is in the box of its place, which overlaps no other place's box; nothing is
/// outside the picture.
std::string drawing_faults(const Plan& plan, const Drawing& drawing);

/// The number of labels that a line crosses.
size_t num_crossed_labels(const Drawing& drawing);

}  // namespace primerl::testing
