/* SPDX-License-Identifier: Apache-2.0 */
/* Clock and environment. */
#include "base/base.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

double mgk_now_ms(void)
{
    struct timespec now = {0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

const char *mgk_environment(const char *name)
{
    if (getuid() != geteuid() || getgid() != getegid())
        return NULL;
    return getenv(name);
}
