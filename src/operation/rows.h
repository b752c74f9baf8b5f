/* SPDX-License-Identifier: Apache-2.0 */
/* The form of kernels over rows (cl/engine/rows.clh) on a device, and their rotary positions. */
#ifndef MGK_OPERATION_ROWS_H
#define MGK_OPERATION_ROWS_H

#include "clmgk/variants.h"
#include "device/device.h"
#include "device/flags.h"
#include "engine/rotary_args.clh"

/* Lanes of a vector, work-items of a work-group, and work-items of a team. On a CPU a work-group is one work-item. */
typedef struct mgk_row_form {
    int lanes, group, team;
} mgk_row_form;

mgk_row_form mgk_rows_form(const mgk_device_facts *facts);

/* Adds the form's flags; appends its compiler options, with other flags of the kernel. */
mgk_flags mgk_rows_flags(const mgk_device_facts *facts, mgk_flags flags);
void mgk_rows_options(const mgk_device_facts *facts, mgk_flags flags, mgk_text *options);

/* The same for kernels that need more registers than a work-item usually has. */
void mgk_rows_most_registers(const mgk_device_facts *facts, mgk_text *options);

/* The rotary positions of a descriptor: its fields, whose names begin with `prefix`, and the text of its head size. */
typedef struct mgk_rotary_fields {
    const char *prefix, *head;
    clmgk_rotary rotary;
    int64_t head_size;
    int64_t *size;
    double *base;
} mgk_rotary_fields;

/* Checks the fields, and sets the defaults. */
clmgk_status mgk_resolve_rotary(const mgk_rotary_fields *fields, clmgk_error *error);

/* A kernel's arguments of such positions. */
mgk_rotary_args mgk_rotary_of(clmgk_rotary rotary, int64_t size, double base);

#endif
