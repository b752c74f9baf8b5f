/* SPDX-License-Identifier: Apache-2.0 */
/* Clock and environment. */
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

double mgk_now_ms(void)
{
    struct timespec now = {0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

void mgk_utc_date(char *text, size_t size)
{
    struct timespec now = {0};
    struct tm day = {0};
    clock_gettime(CLOCK_REALTIME, &now);
    if (gmtime_r(&now.tv_sec, &day) == NULL || strftime(text, size, "%Y-%m-%dT%H:%M:%SZ", &day) == 0)
        snprintf(text, size, "1970-01-01T00:00:00Z");
}

const char *mgk_environment(const char *name)
{
    if (getuid() != geteuid() || getgid() != getegid())
        return NULL;
    return getenv(name);
}
