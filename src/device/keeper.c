/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keeper of compiled programs between processes.
 *
 * PoCL stores compiled kernels in its own cache; a second process starts as fast from it as from a binary. Asked for a
 * program's binary, PoCL compiles every kernel again, in a form for all local sizes, which takes as long as before. So
 * the library relies on PoCL's cache, unless POCL_KERNEL_CACHE=0 turns it off or its folder can't be written. Other
 * drivers' caches were not measured, and their binaries cost nothing.
 */
#include "device/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first version that was measured; earlier versions may differ. */
#define POCL_LEAST_MAJOR 3

/* Bytes of a program: the largest, with all its kernels, takes a third of it. */
#define PROGRAM_BYTES ((uint64_t)4 << 20)

/* "OpenCL 3.0 PoCL 3.1+debian ..." */
static bool is_known_pocl(const mgk_device_facts *facts)
{
    static const char word[] = "PoCL ";
    const char *const found = strstr(facts->platform_version, word);
    return facts->runtime == MGK_RUNTIME_POCL && facts->info.device_class == CLMGK_DEVICE_CPU && found != NULL &&
           strtol(found + strlen(word), NULL, 10) >= POCL_LEAST_MAJOR;
}

/* PoCL's own rule: on by default and for any value that begins with 1. */
static bool pocl_cache_is_on(void)
{
    const char *const value = mgk_environment("POCL_KERNEL_CACHE");
    return value == NULL || value[0] == '1';
}

/* PoCL's folder for compiled kernels, whether its cache is on or off. False: the path does not fit. */
static bool pocl_folder(char *path, size_t size)
{
    const char *const own = mgk_environment("POCL_CACHE_DIR");
    const char *const xdg = mgk_environment("XDG_CACHE_HOME");
    const char *const home = mgk_environment("HOME");
    const char *const name = pocl_cache_is_on() ? "kcache" : "uncached";
    int length;
    if (own != NULL)
        length = snprintf(path, size, "%s", own);
    else if (xdg != NULL && xdg[0] != '\0')
        length = snprintf(path, size, "%s/pocl/%s", xdg, name);
    else if (home != NULL)
        length = snprintf(path, size, "%s/.cache/pocl/%s", home, name);
    else
        length = snprintf(path, size, "/tmp/pocl/%s", name);
    return length > 0 && (size_t)length < size;
}

clmgk_status mgk_driver_check_folder(mgk_runtime runtime, clmgk_error *error)
{
    char path[4096];
    clmgk_error cause = {.message = "its path is too long"};
    if (runtime != MGK_RUNTIME_POCL ||
        (pocl_folder(path, sizeof(path)) && mgk_folder_check_writable(path, false, &cause) == CLMGK_OK))
        return CLMGK_OK;
    return mgk_fail(error, CLMGK_ERROR_IO, "PoCL can't write to its folder: %s (POCL_CACHE_DIR or HOME names another)",
                    cause.message);
}

clmgk_status mgk_driver_check_room(mgk_runtime runtime, clmgk_error *error)
{
    char path[4096];
    clmgk_error cause;
    if (runtime != MGK_RUNTIME_POCL || !pocl_folder(path, sizeof(path)) ||
        mgk_folder_check_room(path, PROGRAM_BYTES, &cause) == CLMGK_OK)
        return CLMGK_OK;
    return mgk_fail(error, CLMGK_ERROR_IO,
                    "PoCL has no space for a program in its folder: %s (POCL_CACHE_DIR or HOME names another)",
                    cause.message);
}

bool mgk_driver_keeps_programs(const mgk_device_facts *facts)
{
    return is_known_pocl(facts) && pocl_cache_is_on() && mgk_driver_check_folder(facts->runtime, NULL) == CLMGK_OK;
}

clmgk_program_keeper mgk_program_keeper(const mgk_device_facts *facts, const char *cache_path)
{
    if (mgk_driver_keeps_programs(facts))
        return CLMGK_KEEPER_DRIVER;
    return cache_path != NULL ? CLMGK_KEEPER_LIBRARY : CLMGK_KEEPER_NOBODY;
}
