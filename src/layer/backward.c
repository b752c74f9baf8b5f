/* SPDX-License-Identifier: Apache-2.0 */
/* The backward pass's operations. */
#include "layer/forward.h"

void mgk_layer_make_backward(mgk_layer_builder *b)
{
    b->status = mgk_fail(b->error, CLMGK_ERROR_UNSUPPORTED, "gradients: expected 0: not yet");
}
