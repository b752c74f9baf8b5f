/* SPDX-License-Identifier: Apache-2.0 */
/* A layout's strides as a kernel's argument. */
#ifndef MGK_OPERATION_PLACE_H
#define MGK_OPERATION_PLACE_H

#include "clmgk/attention.h"
#include "engine/place_args.clh"

static inline mgk_place mgk_place_of(const clmgk_layout *layout)
{
    return (mgk_place){layout->batch, layout->head, layout->token};
}

static inline mgk_component_place mgk_component_place_of(const clmgk_layout *layout)
{
    return (mgk_component_place){layout->batch, layout->head, layout->component, layout->token};
}

#endif
