/* SPDX-License-Identifier: Apache-2.0 */
/* Common to the files of libclmgk-dist, a client of libclmgk's public headers alone. Internal names begin with
 * mgk_dist_.
 */
#ifndef DIST_H
#define DIST_H

#include "clmgk/dist.h"

#include <stdbool.h>

#define DIST_COUNT(array) (sizeof(array) / sizeof((array)[0]))

#define DIST_TRY(call)                                                                                                 \
    do {                                                                                                               \
        const clmgk_status try_status_ = (call);                                                                       \
        if (try_status_ != CLMGK_OK)                                                                                   \
            return try_status_;                                                                                        \
    } while (0)

/* Records a failure in `error` (may be NULL) and returns `status`. */
clmgk_status mgk_dist_fail(clmgk_error *error, clmgk_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same for a failed OpenCL call; OK for CL_SUCCESS. */
clmgk_status mgk_dist_check_cl(clmgk_error *error, cl_int code, const char *call);

/* Memory of `bytes` bytes, which may be 0. */
clmgk_status mgk_dist_alloc(int64_t bytes, void **memory, clmgk_error *error);

#endif
