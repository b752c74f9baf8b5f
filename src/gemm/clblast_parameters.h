/* SPDX-License-Identifier: Apache-2.0 */
/* CLBlast's parameters, which belong to the process: a plan's values, the values in force, and their lock. */
#ifndef MGK_CLBLAST_PARAMETERS_H
#define MGK_CLBLAST_PARAMETERS_H

#include "gemm/gemm.h"

#include <clblast_c.h>

/* CLBlast's functions in use. */
#define MGK_CLBLAST_FUNCTIONS(X)                                                                                       \
    X(Sgemm)                                                                                                           \
    X(Hgemm)                                                                                                           \
    X(SgemmWithTempBuffer)                                                                                             \
    X(HgemmWithTempBuffer)                                                                                             \
    X(SgemmStridedBatched)                                                                                             \
    X(HgemmStridedBatched)                                                                                             \
    X(SGemmTempBufferSize)                                                                                             \
    X(HGemmTempBufferSize)                                                                                             \
    X(OverrideParameters)

typedef struct mgk_clblast {
#define MGK_CLBLAST_POINTER(name) __typeof__(CLBlast##name) *(name);
    MGK_CLBLAST_FUNCTIONS(MGK_CLBLAST_POINTER)
#undef MGK_CLBLAST_POINTER
} mgk_clblast;

/* Values of whole tables: xgemm, xgemmdirect, routine. */
typedef struct mgk_clblast_values {
    bool given[MGK_CLBLAST_TABLES];
    mgk_tunables tunables[MGK_CLBLAST_TABLES];
} mgk_clblast_values;

/* Reads "name=value,...". INVALID_VALUE: unknown names, values or combinations, or only a part of a table. */
clmgk_status mgk_clblast_read(const char *text, mgk_clblast_values *values, clmgk_error *error);

/*
 * Begin and end CLBlast calls with these values in force. In between, no other thread changes the process's values for
 * this device and precision. `foreign`: somebody else has set a table that `values` leaves to CLBlast's defaults, which
 * can't be restored. If so, and after a change, no other thread is inside CLBlast.
 */
clmgk_status mgk_clblast_enter(const mgk_clblast *blas, cl_device_id device, CLBlastPrecision precision,
                               const mgk_clblast_values *values, bool *foreign, clmgk_error *error);
void mgk_clblast_leave(void);

/* Serialises calls that may compile: CLBlast fails if two threads make the same program. Held around
 * mgk_clblast_enter. */
void mgk_clblast_begin_compile(void);
void mgk_clblast_end_compile(void);

/* Records a failure with CLBlast's status and returns ours. */
clmgk_status mgk_clblast_fail(CLBlastStatusCode code, const char *call, clmgk_error *error);

#endif
