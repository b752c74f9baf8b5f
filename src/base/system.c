/* SPDX-License-Identifier: Apache-2.0 */
/* Clock, threads, environment, and the folders that follow from it. */
#include "base/base.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#if defined(__linux__)
#include <sys/auxv.h>
#endif
#if defined(__linux__) && defined(__x86_64__)
#include <errno.h>
#include <sys/syscall.h>
#endif

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

clmgk_status mgk_monitor_init(mgk_monitor *monitor, clmgk_error *error)
{
    if (pthread_mutex_init(&monitor->mutex, NULL) != 0)
        return mgk_fail_memory(error, "a mutex");
    if (pthread_cond_init(&monitor->changed, NULL) == 0)
        return CLMGK_OK;
    pthread_mutex_destroy(&monitor->mutex);
    return mgk_fail_memory(error, "a condition variable");
}

void mgk_monitor_destroy(mgk_monitor *monitor)
{
    pthread_cond_destroy(&monitor->changed);
    pthread_mutex_destroy(&monitor->mutex);
}

void mgk_monitor_copy(mgk_monitor *monitor, void *target, const void *source, size_t size)
{
    pthread_mutex_lock(&monitor->mutex);
    memcpy(target, source, size);
    pthread_mutex_unlock(&monitor->mutex);
}

clmgk_status mgk_thread_start(pthread_t *thread, void *(*run)(void *argument), void *argument, clmgk_error *error)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int code = pthread_create(thread, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code == 0 ? CLMGK_OK : mgk_fail_memory(error, "a thread");
}

clmgk_status mgk_permit_tiles(clmgk_error *error)
{
#if defined(__linux__) && defined(__x86_64__)
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0
               ? CLMGK_OK
               : mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "the system refuses its registers to this process: %s",
                          strerror(errno));
#else
    return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "only known on Linux");
#endif
}

/* Linux also tells of rights that are not a user's or a group's, such as a file's capabilities. */
static bool has_other_rights(void)
{
#if defined(__linux__)
    if (getauxval(AT_SECURE) != 0)
        return true;
#endif
    return getuid() != geteuid() || getgid() != getegid();
}

const char *mgk_environment(const char *name)
{
    return has_other_rights() ? NULL : getenv(name);
}

clmgk_status mgk_root_path(const clmgk_allocator *allocator, const mgk_root *root, const char *cache_dir, char **path,
                           clmgk_error *error)
{
    const char *const given = cache_dir != NULL ? cache_dir : mgk_environment("CLMGK_CACHE_DIR");
    const char *const xdg = mgk_environment(root->xdg), *const home = mgk_environment("HOME");
    mgk_text text = {.allocator = allocator};
    if (given != NULL)
        mgk_text_append(&text, given, strlen(given));
    else if (xdg != NULL && xdg[0] == '/') /* the XDG rules: a relative path is ignored */
        mgk_text_printf(&text, "%s/clmgk", xdg);
    else if (home != NULL && home[0] == '/')
        mgk_text_printf(&text, "%s/%s/clmgk", home, root->home);
    if (text.length > 0)
        mgk_text_append(&text, root->folder, strlen(root->folder));

    const bool failed = text.failed;
    *path = text.length > 0 && !failed ? text.data : NULL;
    if (*path == NULL)
        mgk_text_free(&text);
    return failed ? mgk_fail_memory(error, root->name) : CLMGK_OK;
}
