/* SPDX-License-Identifier: Apache-2.0 */
/* CLBlast's parameters, which belong to the process: what a plan wants, what is set, and the lock between them. */
#ifndef MGK_CLBLAST_PARAMETERS_H
#define MGK_CLBLAST_PARAMETERS_H

#include "gemm/gemm.h"

#include <clblast_c.h>

/* Values of whole tables: xgemm, xgemmdirect, routine. */
typedef struct mgk_clblast_values {
    bool given[MGK_CLBLAST_TABLES];
    mgk_tunables tunables[MGK_CLBLAST_TABLES];
} mgk_clblast_values;

/* Reads "name=value,...". INVALID_VALUE: unknown names, values or combinations, a table that is named in part. */
clmgk_status mgk_clblast_read(const char *text, mgk_clblast_values *values, clmgk_error *error);

/*
 * Begins CLBlast calls with these values in force, ends them. Between the two no other thread changes the process's
 * values for this device and precision; `foreign`: some table that `values` leaves to CLBlast has been set by others,
 * and there is no way back. Then, and after a change, no other thread is in CLBlast at all.
 */
clmgk_status mgk_clblast_enter(cl_device_id device, CLBlastPrecision precision, const mgk_clblast_values *values,
                               bool *foreign, clmgk_error *error);
void mgk_clblast_leave(void);

/* Calls that may compile take turns: CLBlast fails where two threads make the same program. To be held around
 * mgk_clblast_enter. */
void mgk_clblast_begin_compile(void);
void mgk_clblast_end_compile(void);

/* A status of CLBlast's in our words. */
clmgk_status mgk_clblast_fail(CLBlastStatusCode code, const char *call, clmgk_error *error);

#endif
