/// What holds for every picture of a plan.
#pragma once

#include <string>

#include "graph/render_drawing.h"

namespace primerl::testing {

/// One line for each broken rule; empty: all hold. No two labels overlap, and none overlaps a node;
/// no line crosses a node; a line begins and ends at its own nodes; no two lines lie on each other;
/// each node is in the box of its place, which meets no other place's; nothing leaves the picture.
std::string drawing_faults(const Plan& plan, const Drawing& drawing);

/// How many labels have a line through them.
size_t num_crossed_labels(const Drawing& drawing);

}  // namespace primerl::testing
