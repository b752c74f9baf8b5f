/* SPDX-License-Identifier: Apache-2.0 */
/* Until the row kernels are there: layers that need them do without. */
#include "layer/rows.h"

#define STAND_IN __attribute__((weak))

STAND_IN void mgk_rows_norm(const mgk_rows_list *list, const mgk_norm_rows *rows)
{
    (void)list;
    (void)rows;
}

STAND_IN void mgk_rows_norm_backward(const mgk_rows_list *list, const mgk_norm_rows *rows, const mgk_norm_wants *want)
{
    (void)list;
    (void)rows;
    (void)want;
}

STAND_IN void mgk_rows_heads_forward(const mgk_rows_list *list, const mgk_heads_rows *rows)
{
    (void)list;
    (void)rows;
}

STAND_IN void mgk_rows_heads_backward(const mgk_rows_list *list, const mgk_heads_rows *rows,
                                      const mgk_heads_wants *want)
{
    (void)list;
    (void)rows;
    (void)want;
}
