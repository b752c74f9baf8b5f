/* SPDX-License-Identifier: Apache-2.0 */
/* The layout that a unit of the matrix engine states (cl/engine/matrix/units/), compiled as C: UNIT_NAME_layout. Define
 * UNIT and UNIT_NAME first; each inclusion is of one unit. */
#define UNIT_FUNCTION(name) UNIT_JOINED(UNIT_NAME, name)
#define UNIT_JOINED(a, b)   UNIT_PASTED(a, b)
#define UNIT_PASTED(a, b)   a##_##b

#include "engine/matrix/units/dpas.clh"
#include "engine/matrix/units/mfma.clh"
#include "engine/matrix/units/wmma.clh"
#include "engine/matrix/units/wmma12.clh"

#define PLACE(name, MACRO)                                                                                             \
    static int UNIT_FUNCTION(name)(int lane, int i)                                                                    \
    {                                                                                                                  \
        (void)lane, (void)i;                                                                                           \
        return MACRO(lane, i);                                                                                         \
    }
PLACE(sum_row, SUM_ROW)
PLACE(sum_column, SUM_COLUMN)
PLACE(word_row, WORD_ROW)
PLACE(word_depth, WORD_DEPTH)
PLACE(tile_row, UNIT_TILE_ROW)
PLACE(tile_depth, UNIT_TILE_DEPTH)

static int UNIT_FUNCTION(packed_column)(int i)
{
    return PACKED_COLUMN(i);
}

static int UNIT_FUNCTION(tile_numbers)(void)
{
    return UNIT_TILE_NUMBERS;
}

static const unit_layout UNIT_FUNCTION(layout) = {
    .sizes = &unit_sizes[UNIT],
    .first_lane = ROW_LANES_FIRST,
    .neighbours = NEIGHBOUR_KEYS,
    .tile_numbers = UNIT_FUNCTION(tile_numbers),
    .alternate = KEYS_ALTERNATE,
    .sum_row = UNIT_FUNCTION(sum_row),
    .sum_column = UNIT_FUNCTION(sum_column),
    .word_row = UNIT_FUNCTION(word_row),
    .word_depth = UNIT_FUNCTION(word_depth),
    .tile_row = UNIT_FUNCTION(tile_row),
    .tile_depth = UNIT_FUNCTION(tile_depth),
    .packed_column = UNIT_FUNCTION(packed_column),
};

#undef UNIT_FUNCTION
#undef UNIT_JOINED
#undef UNIT_PASTED
#undef PRODUCTS_ASYNC
#undef TILE_PARTS
#undef VOTES_IN_WARP
#undef KEYS_ALTERNATE
#undef ROW_LANES_FIRST
#undef NEIGHBOUR_KEYS
#undef ROW_LANE_STRIDE
#undef MOST_BACKWARD
#undef UNIT_TILE_NUMBERS
#undef LANE_DEPTH
#undef PLACE
#undef PACKED_ROW
#undef PACKED_COLUMN
#undef SUM_ROW
#undef SUM_COLUMN
#undef WORD_ROW
#undef WORD_DEPTH
#undef UNIT_TILE_ROW
#undef UNIT_TILE_DEPTH
#undef UNIT
#undef UNIT_NAME
