/* SPDX-License-Identifier: Apache-2.0 */
/* The form of kernels over rows (cl/engine/rows.clh) on a device. */
#ifndef MGK_OPERATION_ROWS_H
#define MGK_OPERATION_ROWS_H

#include "device/device.h"

/* Lanes of a vector, work-items of a work-group, and work-items of a team. On a CPU a work-group is one work-item. */
typedef struct mgk_row_form {
    int lanes, group, team;
} mgk_row_form;

mgk_row_form mgk_rows_form(const mgk_device_facts *facts);

/* Appends the form's compiler options. */
void mgk_rows_options(const mgk_device_facts *facts, clmgk_dtype dtype, mgk_text *options);

/* The same for kernels that need more registers than a work-item usually has. */
void mgk_rows_most_registers(const mgk_device_facts *facts, mgk_text *options);

#endif
