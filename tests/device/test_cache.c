/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program cache: its location, refused entries, its limit of size, and that programs from it compute correct
 * results.
 *
 * With arguments this program is one of several processes on one cache (test_processes_share_a_cache): it starts
 * itself anew, because an OpenCL queue must not be used in a forked child.
 */
#include "device/device.h"
#include "device/program_cache.h"
#include "harness/harness.h"
#include "harness/scratch.h"

#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static const char key_text[] = "a key of some length";
static const char binary_text[] = "the bytes of a binary";

/* ---- helpers ------------------------------------------------------------------------------------------------- */

typedef struct fixture {
    char root[SCRATCH_PATH];   /* cache_dir */
    char folder[SCRATCH_PATH]; /* root/programs */
    mgk_cache cache;
} fixture;

static int set_up(void **state)
{
    fixture *const self = calloc(1, sizeof(*self));
    assert_non_null(self);
    scratch_create(self->root);
    scratch_join(self->folder, self->root, "programs");
    self->cache = (mgk_cache){.path = self->folder, .max_bytes = 1 << 20};
    *state = self;
    return 0;
}

#define CACHE_TEST(name) TH_TEST_OF(name, fixture *self, .set_up = set_up, .tear_down = scratch_tear_down)

static void put(const mgk_cache *cache, const char *key)
{
    (void)mgk_cache_put(cache, key, binary_text, sizeof(binary_text), NULL);
}

/* Whether the key's binary is in the cache. If so, it must be the one that was put there. */
static bool hits(const mgk_cache *cache, const char *key)
{
    char *entry = NULL;
    const char *binary = NULL;
    size_t length = 0;
    if (!mgk_cache_get(cache, key, &entry, &binary, &length))
        return false;
    assert_int_equal(length, sizeof(binary_text));
    assert_memory_equal(binary, binary_text, length);
    mgk_free(cache->allocator, entry);
    return true;
}

/* The path of the only entry. */
static void only_entry(const fixture *self, char path[SCRATCH_PATH])
{
    assert_int_equal(scratch_count(self->folder, ".bin", path), 1);
}

static size_t entries(const fixture *self)
{
    return scratch_count(self->folder, ".bin", NULL);
}

static void set_variable(const char *name, const char *value)
{
    assert_int_equal(value != NULL ? setenv(name, value, 1) : unsetenv(name), 0);
}

/* The environment's variables that determine the cache's folder, saved while a test changes them. */
static const char *const place_variables[] = {"CLMGK_CACHE_DIR", "XDG_CACHE_HOME",    "HOME",
                                              "POCL_CACHE_DIR",  "POCL_KERNEL_CACHE", "CLMGK_PROGRAM_DIR"};

typedef struct places {
    char *values[MGK_COUNT(place_variables)];
} places;

static int keep_places(void **state)
{
    places *const kept = calloc(1, sizeof(*kept));
    assert_non_null(kept);
    for (size_t i = 0; i < MGK_COUNT(place_variables); ++i) {
        const char *const value = getenv(place_variables[i]);
        kept->values[i] = value != NULL ? mgk_strdup(NULL, value) : NULL;
    }
    *state = kept;
    return 0;
}

static int restore_places(void **state)
{
    places *const kept = *state;
    for (size_t i = 0; i < MGK_COUNT(place_variables); ++i) {
        set_variable(place_variables[i], kept->values[i]);
        free(kept->values[i]);
    }
    free(kept);
    return 0;
}

#define PLACES_TEST(name) TH_TEST_OF(name, const void *no_state, .set_up = keep_places, .tear_down = restore_places)

/* ---- places -------------------------------------------------------------------------------------------------- */

static void assert_place(const char *cache_dir, const char *expected)
{
    char *path = NULL;
    assert_int_equal(mgk_cache_path(NULL, cache_dir, &path, NULL), CLMGK_OK);
    if (expected == NULL)
        assert_null(path);
    else
        assert_string_equal(path, expected);
    mgk_free(NULL, path);
}

PLACES_TEST(test_places)
{
    static const struct {
        const char *variable, *xdg, *home, *cache_dir, *expected;
    } cases[] = {
        {NULL, "/x", "/h", NULL, "/x/clmgk/programs"},
        {NULL, "x", "/h", NULL, "/h/.cache/clmgk/programs"},
        {NULL, "", "/h", NULL, "/h/.cache/clmgk/programs"},
        {NULL, NULL, "/h", NULL, "/h/.cache/clmgk/programs"},
        {NULL, NULL, "h", NULL, NULL},
        {NULL, NULL, "", NULL, NULL},
        {NULL, NULL, NULL, NULL, NULL},
        {"/c", "/x", "/h", NULL, "/c/programs"},
        {"", "/x", "/h", NULL, NULL},
        {"/c", "/x", "/h", "/o", "/o/programs"},
        {"/c", "/x", "/h", "", NULL},
        {"", NULL, NULL, "/o", "/o/programs"},
    };
    for (size_t i = 0; i < MGK_COUNT(cases); ++i) {
        set_variable("CLMGK_CACHE_DIR", cases[i].variable);
        set_variable("XDG_CACHE_HOME", cases[i].xdg);
        set_variable("HOME", cases[i].home);
        assert_place(cases[i].cache_dir, cases[i].expected);
    }
}

/* Who keeps the programs of a CPU device of this platform. */
static clmgk_program_keeper keeper_of(mgk_runtime runtime, const char *version, const char *cache_path)
{
    mgk_device_facts facts = {.runtime = runtime, .info = {.device_class = CLMGK_DEVICE_CPU}};
    snprintf(facts.platform_version, sizeof(facts.platform_version), "%s", version);
    return mgk_program_keeper(&facts, cache_path);
}

PLACES_TEST(test_keepers)
{
    static const struct {
        mgk_runtime runtime;
        const char *version;
    } others[] = {{MGK_RUNTIME_POCL, "OpenCL 2.0 PoCL 1.8"},    {MGK_RUNTIME_POCL, "OpenCL 3.0"},
                  {MGK_RUNTIME_RUSTICL, "OpenCL 3.0"},          {MGK_RUNTIME_INTEL_CPU, "OpenCL 3.1 LINUX"},
                  {MGK_RUNTIME_NVIDIA, "OpenCL 3.0 CUDA 12.4"}, {MGK_RUNTIME_OTHER, "OpenCL 3.0 PoCL 3.1"}};
    for (size_t i = 0; i < MGK_COUNT(others); ++i) {
        assert_int_equal(keeper_of(others[i].runtime, others[i].version, "/c"), CLMGK_KEEPER_LIBRARY);
        assert_int_equal(keeper_of(others[i].runtime, others[i].version, NULL), CLMGK_KEEPER_NOBODY);
    }
    assert_string_equal(clmgk_program_keeper_name(CLMGK_KEEPER_NOBODY), "nobody");
    assert_string_equal(clmgk_program_keeper_name(CLMGK_KEEPER_LIBRARY), "library");
    assert_string_equal(clmgk_program_keeper_name(CLMGK_KEEPER_DRIVER), "driver");
    assert_null(clmgk_program_keeper_name((clmgk_program_keeper)7));
    assert_string_equal(clmgk_program_origin_name(CLMGK_PROGRAM_MEMORY), "memory");
    assert_string_equal(clmgk_program_origin_name(CLMGK_PROGRAM_SHIPPED), "shipped");
    assert_string_equal(clmgk_program_origin_name(CLMGK_PROGRAM_DISK), "disk");
    assert_string_equal(clmgk_program_origin_name(CLMGK_PROGRAM_BUILT), "built");
    assert_null(clmgk_program_origin_name((clmgk_program_origin)7));
}

/* PoCL's folder by its own variables. Nobody, not even root, can write below a device file. */
PLACES_TEST(test_pocl_keeps)
{
    char root[SCRATCH_PATH];
    char folder[SCRATCH_PATH];
    scratch_create(root);
    scratch_join(folder, root, "pocl");
    assert_int_equal(mkdir(folder, 0700), 0);
    scratch_join(folder, root, "pocl/kcache");
    assert_int_equal(mkdir(folder, 0700), 0);
    const struct {
        const char *off, *own, *xdg, *home;
        clmgk_program_keeper expected;
    } cases[] = {
        {NULL, folder, NULL, "/dev/null", CLMGK_KEEPER_DRIVER}, {"1", folder, NULL, "/dev/null", CLMGK_KEEPER_DRIVER},
        {"0", folder, NULL, "/dev/null", CLMGK_KEEPER_LIBRARY}, {"", folder, NULL, "/dev/null", CLMGK_KEEPER_LIBRARY},
        {NULL, NULL, root, "/dev/null", CLMGK_KEEPER_DRIVER},   {NULL, NULL, "/dev/null", root, CLMGK_KEEPER_LIBRARY},
        {NULL, NULL, "", "/dev/null", CLMGK_KEEPER_LIBRARY},    {NULL, "/dev/null/x", root, root, CLMGK_KEEPER_LIBRARY},
    };
    for (size_t i = 0; i < MGK_COUNT(cases); ++i) {
        set_variable("POCL_KERNEL_CACHE", cases[i].off);
        set_variable("POCL_CACHE_DIR", cases[i].own);
        set_variable("XDG_CACHE_HOME", cases[i].xdg);
        set_variable("HOME", cases[i].home);
        assert_int_equal(keeper_of(MGK_RUNTIME_POCL, "OpenCL 3.0 PoCL 3.1+debian", "/c"), cases[i].expected);
    }
    scratch_remove(root);
}

/* ---- entries ------------------------------------------------------------------------------------------------- */

/* Puts the key's binary, which must be the only one. Its entry's path into `path`, its bytes (free). */
static char *put_entry(const fixture *self, char path[SCRATCH_PATH], size_t *length)
{
    put(&self->cache, key_text);
    only_entry(self, path);
    return scratch_read(path, length);
}

CACHE_TEST(test_put_and_get)
{
    assert_false(hits(&self->cache, key_text));
    put(&self->cache, key_text);
    assert_true(hits(&self->cache, key_text));
    assert_false(hits(&self->cache, "another key"));
    put(&self->cache, "another key");
    assert_true(hits(&self->cache, "another key"));
    mgk_cache_drop(&self->cache, key_text);
    assert_false(hits(&self->cache, key_text));
    assert_int_equal(entries(self), 1);
    assert_int_equal(scratch_count(self->folder, ".clmgk-tmp-", NULL), 0);

    struct stat facts;
    char path[SCRATCH_PATH];
    only_entry(self, path);
    assert_int_equal(stat(path, &facts), 0);
    assert_int_equal(facts.st_mode & 07777, 0600);

    const mgk_cache none = {.max_bytes = 1 << 20};
    put(&none, key_text);
    assert_false(hits(&none, key_text));
}

CACHE_TEST(test_every_damaged_byte_is_a_miss)
{
    char path[SCRATCH_PATH];
    size_t length = 0;
    char *const entry = put_entry(self, path, &length);
    assert_in_range(length, sizeof(binary_text) + sizeof(key_text), 200);
    for (size_t at = 0; at < length; ++at) {
        for (int bit = 0; bit < 8; ++bit) {
            entry[at] = (char)(entry[at] ^ (1 << bit));
            scratch_write(path, entry, length);
            entry[at] = (char)(entry[at] ^ (1 << bit));
            if (hits(&self->cache, key_text))
                fail_msg("bit %d of byte %zu was changed, and the entry accepted", bit, at);
            assert_int_equal(entries(self), 0);
        }
    }
    scratch_write(path, entry, length);
    assert_true(hits(&self->cache, key_text));
    free(entry);
}

CACHE_TEST(test_every_other_length_is_a_miss)
{
    char path[SCRATCH_PATH];
    size_t length = 0;
    char *const entry = put_entry(self, path, &length);
    char longer[512] = {0};
    assert_in_range(length, 1, 400);
    memcpy(longer, entry, length);
    for (size_t size = 0; size < length + 100; ++size) {
        scratch_write(path, longer, size);
        assert_true(hits(&self->cache, key_text) == (size == length));
    }
    free(entry);
}

/* An undamaged entry of another key in the place of this one: the file's name alone is not trusted. */
CACHE_TEST(test_foreign_entries_are_misses)
{
    char path[SCRATCH_PATH];
    char other[SCRATCH_PATH];
    static const char *const keys[] = {"a key of some lengtH", "a key of some", "a key of some length and more", ""};
    put(&self->cache, key_text);
    only_entry(self, path);
    mgk_cache_drop(&self->cache, key_text);
    for (size_t i = 0; i < MGK_COUNT(keys); ++i) {
        put(&self->cache, keys[i]);
        only_entry(self, other);
        assert_int_equal(rename(other, path), 0);
        assert_false(hits(&self->cache, key_text));
        assert_int_equal(entries(self), 0);
    }
}

/* Entries with a changed byte and a matching checksum: each field before the binary is checked by itself. */
CACHE_TEST(test_every_field_is_checked)
{
    char path[SCRATCH_PATH];
    size_t length = 0;
    char *const entry = put_entry(self, path, &length);
    const size_t checked = length - sizeof(binary_text) - 16;
    for (size_t at = 0; at < checked; ++at) {
        entry[at] = (char)(entry[at] ^ 1);
        const mgk_hash hash = mgk_hash_bytes(entry, length - 16);
        for (size_t i = 0; i < 8; ++i) {
            entry[length - 16 + i] = (char)(unsigned char)(hash.low >> (8 * i));
            entry[length - 8 + i] = (char)(unsigned char)(hash.high >> (8 * i));
        }
        scratch_write(path, entry, length);
        entry[at] = (char)(entry[at] ^ 1);
        if (hits(&self->cache, key_text))
            fail_msg("byte %zu was changed, and the entry accepted", at);
    }
    free(entry);
}

/* ---- trust --------------------------------------------------------------------------------------------------- */

static void assert_refused(const fixture *self, const char *reason)
{
    clmgk_cache_info info = CLMGK_CACHE_INFO_INIT;
    clmgk_error error = {0};
    assert_false(hits(&self->cache, key_text));
    assert_int_equal(clmgk_cache_get_info(self->root, &info, &error), CLMGK_ERROR_IO);
    assert_non_null(strstr(error.message, self->folder));
    assert_non_null(strstr(error.message, reason));
    assert_int_equal(clmgk_cache_clear(self->root, &error), CLMGK_ERROR_IO);
}

CACHE_TEST(test_folders_open_to_others_are_refused)
{
    static const mode_t modes[] = {0701, 0710, 0720, 0702, 0755, 0777};
    put(&self->cache, key_text);
    for (size_t i = 0; i < MGK_COUNT(modes); ++i) {
        assert_int_equal(chmod(self->folder, modes[i]), 0);
        assert_refused(self, "expected 0700");
        put(&self->cache, "another key");
        assert_int_equal(entries(self), 1);
    }
    assert_int_equal(chmod(self->folder, 0700), 0);
    assert_true(hits(&self->cache, key_text));
}

CACHE_TEST(test_linked_folders_are_refused)
{
    char elsewhere[SCRATCH_PATH];
    put(&self->cache, key_text);
    scratch_join(elsewhere, self->root, "elsewhere");
    assert_int_equal(rename(self->folder, elsewhere), 0);
    assert_int_equal(symlink(elsewhere, self->folder), 0);
    assert_refused(self, "");
    put(&self->cache, "another key");
    assert_int_equal(scratch_count(elsewhere, ".bin", NULL), 1);
    assert_int_equal(unlink(self->folder), 0);
    assert_int_equal(rename(elsewhere, self->folder), 0);
    assert_true(hits(&self->cache, key_text));
}

/* The root may be a link: people move ~/.cache to another disk. */
CACHE_TEST(test_linked_root_is_followed)
{
    char link[SCRATCH_PATH];
    clmgk_cache_info info = CLMGK_CACHE_INFO_INIT;
    put(&self->cache, key_text);
    scratch_join(link, self->root, "link");
    assert_int_equal(symlink(".", link), 0);
    assert_int_equal(clmgk_cache_get_info(link, &info, NULL), CLMGK_OK);
    assert_int_equal(info.entries, 1);
}

CACHE_TEST(test_files_in_the_folders_place_are_refused)
{
    scratch_write(self->folder, "x", 1);
    put(&self->cache, key_text);
    assert_refused(self, "");
    scratch_remove(self->folder);
    assert_int_equal(mkfifo(self->folder, 0600), 0);
    put(&self->cache, key_text);
    assert_refused(self, "");
}

CACHE_TEST(test_untrusted_files_are_misses)
{
    char path[SCRATCH_PATH];
    char elsewhere[SCRATCH_PATH];
    put(&self->cache, key_text);
    only_entry(self, path);

    assert_int_equal(chmod(path, 0620), 0);
    assert_false(hits(&self->cache, key_text));
    assert_int_equal(chmod(path, 0602), 0);
    assert_false(hits(&self->cache, key_text));
    assert_int_equal(chmod(path, 0600), 0);
    assert_true(hits(&self->cache, key_text));

    scratch_join(elsewhere, self->root, "elsewhere");
    assert_int_equal(rename(path, elsewhere), 0);
    assert_int_equal(symlink(elsewhere, path), 0);
    assert_false(hits(&self->cache, key_text));
    put(&self->cache, key_text);
    assert_true(hits(&self->cache, key_text));

    scratch_remove(path);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_false(hits(&self->cache, key_text));
    put(&self->cache, key_text);
    assert_false(hits(&self->cache, key_text));
    assert_int_equal(scratch_count(self->folder, ".clmgk-tmp-", NULL), 0);
    scratch_remove(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_false(hits(&self->cache, key_text));
}

/* Only root can give a folder or file to somebody else. */
CACHE_TEST(test_other_owners_are_refused)
{
    enum { SOMEBODY = 65534 };
    char path[SCRATCH_PATH];
    if (geteuid() != 0)
        skip();
    put(&self->cache, key_text);
    only_entry(self, path);
    assert_int_equal(chown(path, SOMEBODY, SOMEBODY), 0);
    assert_false(hits(&self->cache, key_text));
    assert_int_equal(chown(path, 0, 0), 0);
    assert_true(hits(&self->cache, key_text));
    assert_int_equal(chown(self->folder, SOMEBODY, SOMEBODY), 0);
    assert_refused(self, "belongs to user 65534");
}

/* A folder that nobody can make, not even root: below a device file. */
PLACES_TEST(test_unwritable_home)
{
    char *path = NULL;
    clmgk_cache_info info = CLMGK_CACHE_INFO_INIT;
    set_variable("CLMGK_CACHE_DIR", NULL);
    set_variable("XDG_CACHE_HOME", NULL);
    set_variable("HOME", "/dev/null");
    assert_int_equal(mgk_cache_path(NULL, NULL, &path, NULL), CLMGK_OK);
    const mgk_cache cache = {.path = path, .max_bytes = 1 << 20};
    put(&cache, key_text);
    assert_false(hits(&cache, key_text));
    assert_int_equal(clmgk_cache_get_info(NULL, &info, NULL), CLMGK_ERROR_IO);
    assert_int_equal(clmgk_cache_get_info("/dev", &info, NULL), CLMGK_OK); /* missing, and could be made by root */
    assert_true((info.note[0] == '\0') == (geteuid() == 0));
    assert_int_equal(clmgk_cache_get_info("", &info, NULL), CLMGK_OK);
    assert_string_equal(info.note, "");
    mgk_free(NULL, path);
}

CACHE_TEST(test_read_only_folder)
{
    put(&self->cache, key_text);
    assert_int_equal(chmod(self->folder, 0500), 0);
    assert_true(hits(&self->cache, key_text));
    put(&self->cache, "another key");
    assert_true(hits(&self->cache, "another key") == (geteuid() == 0));
    assert_int_equal(scratch_count(self->folder, ".clmgk-tmp-", NULL), 0);
}

/* ---- size ---------------------------------------------------------------------------------------------------- */

static uint64_t size_of_entry(const fixture *self)
{
    uint64_t bytes = 0;
    uint64_t count = 0;
    put(&self->cache, "key 0");
    assert_int_equal(mgk_cache_measure(&self->cache, &bytes, &count, NULL), CLMGK_OK);
    assert_int_equal(count, 1);
    return bytes;
}

/* Gives the newest entry of the folder a time, `age` seconds ago. */
static void set_age(const char *path, time_t age)
{
    const struct timespec then = {.tv_sec = time(NULL) - age};
    const struct timespec times[] = {then, then};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static void put_aged(const mgk_cache *cache, int number, time_t age)
{
    char key[16];
    char path[SCRATCH_PATH];
    mgk_hash hash;
    snprintf(key, sizeof(key), "key %d", number);
    put(cache, key);
    hash = mgk_hash_bytes(key, strlen(key));
    snprintf(path, sizeof(path), "%s/%016llx%016llx.bin", cache->path, (unsigned long long)hash.high,
             (unsigned long long)hash.low);
    set_age(path, age);
}

CACHE_TEST(test_oldest_entries_go_first)
{
    const uint64_t size = size_of_entry(self);
    self->cache.max_bytes = 4 * size;
    put_aged(&self->cache, 0, 3000);
    put_aged(&self->cache, 1, 4000);
    put_aged(&self->cache, 2, 2000);
    put_aged(&self->cache, 3, 1000);
    assert_int_equal(entries(self), 4);
    put(&self->cache, "key 4");
    assert_int_equal(entries(self), 4);
    assert_false(hits(&self->cache, "key 1"));

    assert_true(hits(&self->cache, "key 0")); /* being used makes it young */
    put(&self->cache, "key 5");
    assert_false(hits(&self->cache, "key 2"));
    assert_true(hits(&self->cache, "key 0"));

    self->cache.max_bytes = 2 * size;
    put(&self->cache, "key 6");
    assert_int_equal(entries(self), 2);
    assert_true(hits(&self->cache, "key 6"));
    self->cache.max_bytes = size - 1;
    put(&self->cache, "key 7");
    assert_false(hits(&self->cache, "key 7"));
    assert_int_equal(entries(self), 2); /* what cannot be kept drives nothing out */
}

/* While another process tidies, this one writes and does not wait for it. */
CACHE_TEST(test_a_held_lock_does_not_stop_writers)
{
    const uint64_t size = size_of_entry(self);
    mgk_folder folder;
    self->cache.max_bytes = size;
    assert_int_equal(mgk_folder_open(self->folder, false, &folder, NULL), CLMGK_OK);
    const int lock = mgk_folder_lock(&folder, 1, &th_error);
    assert_true(lock >= 0);
    const double start = mgk_now_ms();
    put(&self->cache, "key 1");
    assert_true(mgk_now_ms() - start < 5000.0);
    assert_int_equal(entries(self), 2);
    mgk_folder_unlock(lock);
    put(&self->cache, "key 2");
    assert_int_equal(entries(self), 1);
    mgk_folder_close(&folder);
}

/* A folder may hold other programs' files. */
CACHE_TEST(test_left_over_temporary_files_go)
{
    static const char *const others[] = {"tmp-thesis.txt", ".clmgk-tmp-mine", ".clmgk-tmp-1-2-3-4", ".clmgk-tmp-1-2"};
    char old[SCRATCH_PATH];
    char young[SCRATCH_PATH];
    put(&self->cache, "key 0");
    scratch_join(old, self->folder, ".clmgk-tmp-1-2-000000003");
    scratch_join(young, self->folder, ".clmgk-tmp-1-2-000000004");
    scratch_write(old, "x", 1);
    scratch_write(young, "x", 1);
    set_age(old, 3600);
    for (size_t n = 0; n < TH_COUNT(others); n++) {
        char other[SCRATCH_PATH];
        scratch_join(other, self->folder, others[n]);
        scratch_write(other, "mine", 4);
        set_age(other, 3600);
    }
    put(&self->cache, "key 1");
    assert_int_not_equal(access(old, F_OK), 0);
    assert_int_equal(access(young, F_OK), 0);
    for (size_t n = 0; n < TH_COUNT(others); n++) {
        char other[SCRATCH_PATH];
        scratch_join(other, self->folder, others[n]);
        assert_int_equal(access(other, F_OK), 0);
    }
}

CACHE_TEST(test_info_and_clear)
{
    clmgk_cache_info info = CLMGK_CACHE_INFO_INIT;
    char foreign[SCRATCH_PATH];
    assert_int_equal(clmgk_cache_get_info(self->root, &info, NULL), CLMGK_OK);
    assert_string_equal(info.path, self->folder);
    assert_int_equal(info.entries, 0);
    assert_int_equal(clmgk_cache_clear(self->root, NULL), CLMGK_OK);
    assert_int_not_equal(access(self->folder, F_OK), 0);

    const uint64_t size = size_of_entry(self);
    put(&self->cache, "key 1");
    scratch_join(foreign, self->folder, "notes.bin");
    scratch_write(foreign, "mine", 4);
    assert_int_equal(clmgk_cache_get_info(self->root, &info, NULL), CLMGK_OK);
    assert_int_equal(info.entries, 2);
    assert_true(info.bytes == 2 * size);
    assert_int_equal(clmgk_cache_clear(self->root, NULL), CLMGK_OK);
    assert_int_equal(entries(self), 1);
    assert_int_equal(access(foreign, F_OK), 0);

    assert_int_equal(clmgk_cache_get_info("", &info, NULL), CLMGK_OK);
    assert_string_equal(info.path, "");
    assert_int_equal(clmgk_cache_clear("", NULL), CLMGK_OK);

    char text[2000];
    clmgk_error error = {0};
    memset(text, 'x', sizeof(text) - 1);
    text[0] = '/';
    text[sizeof(text) - 1] = '\0';
    assert_int_equal(clmgk_cache_get_info(text, &info, &error), CLMGK_ERROR_INVALID_VALUE);
    assert_non_null(strstr(error.message, "cache_dir"));
}

/* ---- programs on the device ---------------------------------------------------------------------------------- */

typedef struct device {
    cl_device_id id;
    cl_context context;
    cl_command_queue queue;
    cl_mem buffer;
} device;

static device open_device(void)
{
    clmgk_device_info info = CLMGK_DEVICE_INFO_INIT;
    cl_int code = CL_SUCCESS;
    device self = {0};
    th_expect_ok(clmgk_select_device(NULL, &info, &th_error));
    const cl_context_properties properties[] = {CL_CONTEXT_PLATFORM, (cl_context_properties)info.platform_id, 0};
    self.id = info.device_id;
    self.context = clCreateContext(properties, 1, &self.id, NULL, NULL, &code);
    assert_int_equal(code, CL_SUCCESS);
    self.queue = clCreateCommandQueue(self.context, self.id, 0, &code);
    assert_int_equal(code, CL_SUCCESS);
    self.buffer = clCreateBuffer(self.context, CL_MEM_WRITE_ONLY, 4 * sizeof(cl_int), NULL, &code);
    assert_int_equal(code, CL_SUCCESS);
    return self;
}

static void close_device(const device *self)
{
    assert_int_equal(clReleaseMemObject(self->buffer), CL_SUCCESS);
    assert_int_equal(clReleaseCommandQueue(self->queue), CL_SUCCESS);
    assert_int_equal(clReleaseContext(self->context), CL_SUCCESS);
}

static void write_kernels(const char *root)
{
    static const char kernel[] = "#include \"scale.clh\"\n"
                                 "__kernel void fill(__global int *out, int start)\n"
                                 "{\n"
                                 "    out[get_global_id(0)] = scale(start + (int)get_global_id(0));\n"
                                 "}\n";
    static const char header[] = "#ifndef FACTOR\n#define FACTOR 3\n#endif\n"
                                 "int scale(int x) { return FACTOR * x; }\n";
    static const char broken[] =
        "int before(void) { return 1; }\n__kernel void fill(__global int *out) { nonsense; }\n";
    char path[SCRATCH_PATH];
    scratch_join(path, root, "fill.cl");
    scratch_write(path, kernel, strlen(kernel));
    scratch_join(path, root, "scale.clh");
    scratch_write(path, header, strlen(header));
    scratch_join(path, root, "broken.cl");
    scratch_write(path, broken, strlen(broken));
}

static clmgk_context *make_context_with(const device *self, const char *root, const char *program_dir)
{
    clmgk_context_options options = CLMGK_CONTEXT_OPTIONS_INIT;
    clmgk_context *context = NULL;
    options.cache_dir = root;
    options.kernel_dir = root;
    options.program_dir = program_dir;
    assert_int_equal(clmgk_context_create(self->context, self->id, &options, &context, NULL), CLMGK_OK);
    return context;
}

static clmgk_context *make_context(const device *self, const char *root)
{
    return make_context_with(self, root, NULL);
}

static void launch_and_check(const device *self, const mgk_program *program, int factor)
{
    const cl_int start = 7;
    const mgk_kernel_arg args[] = {{sizeof(cl_mem), &self->buffer}, {sizeof(start), &start}};
    const mgk_launch launch = {.dimensions = 1, .global = {4}, .local = {2}};
    cl_int code = CL_SUCCESS;
    cl_int out[4] = {0};
    cl_kernel kernel = clCreateKernel(program->program, "fill", &code);
    assert_int_equal(code, CL_SUCCESS);
    assert_int_equal(mgk_launch_kernel(self->queue, kernel, &launch, 2, args, 0, NULL, NULL, NULL), CLMGK_OK);
    assert_int_equal(clEnqueueReadBuffer(self->queue, self->buffer, CL_TRUE, 0, sizeof(out), out, 0, NULL, NULL),
                     CL_SUCCESS);
    for (int i = 0; i < 4; ++i)
        assert_int_equal(out[i], factor * (start + i));
    assert_int_equal(clReleaseKernel(kernel), CL_SUCCESS);
}

/* Gets the program of fill.cl, which the caller releases, and tells where it came from. */
static clmgk_program_origin get_fill(clmgk_context *context, const char *options, mgk_program **program)
{
    clmgk_program_origin origin = CLMGK_PROGRAM_MEMORY;
    double compile_ms = -1.0;
    th_expect_ok(mgk_program_get(context, "fill.cl", options, NULL, program, &origin, &compile_ms, &th_error));
    assert_true(compile_ms >= 0.0);
    return origin;
}

/* Gets the program, checks what it computes, saves it, in the cache and, unless NULL, in `target`; releases the
 * context; tells where the program came from. */
static clmgk_program_origin run_in(const device *self, clmgk_context *context, const char *options, int factor,
                                   const char *target)
{
    mgk_program *program = NULL;
    const clmgk_program_origin origin = get_fill(context, options, &program);
    assert_string_equal(program->options, options);
    launch_and_check(self, program, factor);
    mgk_program_save(program);
    mgk_program_save(program);
    assert_string_equal(program->unsaved.message, "");
    size_t count = 0;
    if (target != NULL)
        th_expect_ok(clmgk_context_save_programs(context, target, &count, &th_error));
    assert_int_equal(count, target != NULL ? 1 : 0);
    mgk_program_release(program);
    mgk_program_release(NULL);
    clmgk_context_release(context);
    return origin;
}

static clmgk_program_origin run_once(const device *self, const char *root, const char *options, int factor)
{
    return run_in(self, make_context(self, root), options, factor, NULL);
}

CACHE_TEST(test_programs_come_from_disk)
{
    const device machine = open_device();
    char header[SCRATCH_PATH];
    static const char changed[] = "int scale(int x) { return 11 * x; }\n";
    write_kernels(self->root);

    assert_int_equal(run_once(&machine, self->root, "-DFACTOR=5", 5), CLMGK_PROGRAM_BUILT);
    assert_int_equal(run_once(&machine, self->root, "-DFACTOR=5", 5), CLMGK_PROGRAM_DISK);
    assert_int_equal(run_once(&machine, self->root, "-DFACTOR=6", 6), CLMGK_PROGRAM_BUILT);
    assert_int_equal(run_once(&machine, self->root, "-DFACTOR=5", 5), CLMGK_PROGRAM_DISK);
    assert_int_equal(entries(self), 2);

    scratch_join(header, self->root, "scale.clh");
    scratch_write(header, changed, strlen(changed));
    assert_int_equal(run_once(&machine, self->root, "-DFACTOR=5", 11), CLMGK_PROGRAM_BUILT);
    assert_int_equal(entries(self), 3);
    close_device(&machine);
}

/* The same source and options on a device, driver or platform with another name. */
CACHE_TEST(test_other_devices_programs_are_not_used)
{
    const device machine = open_device();
    write_kernels(self->root);
    assert_int_equal(run_once(&machine, self->root, "", 3), CLMGK_PROGRAM_BUILT);
    clmgk_context *const context = make_context(&machine, self->root);
    mgk_device_facts *const facts = &context->facts;
    char *const texts[] = {facts->info.platform, facts->platform_version, facts->info.vendor,      facts->info.name,
                           facts->info.driver,   facts->opencl_version,   facts->info.architecture};
    for (size_t i = 0; i < MGK_COUNT(texts); ++i) {
        mgk_program *program = NULL;
        const char first = texts[i][0];
        texts[i][0] = (char)(first + 1);
        assert_int_equal(get_fill(context, "", &program), CLMGK_PROGRAM_BUILT);
        mgk_program_release(program);
        texts[i][0] = first;
    }
    clmgk_context_release(context);
    assert_int_equal(run_once(&machine, self->root, "", 3), CLMGK_PROGRAM_DISK);
    close_device(&machine);
}

/* A valid file under the key that version 0.1.0 gave this program. Those keys lack the architecture, so the file must
 * never reach the driver. */
CACHE_TEST(test_programs_of_0_1_0_are_passed_over)
{
    const device machine = open_device();
    mgk_program *program = NULL;
    mgk_text key = {0};
    write_kernels(self->root);
    clmgk_context *const context = make_context(&machine, self->root);
    const mgk_device_facts *const facts = &context->facts;
    assert_int_equal(get_fill(context, "", &program), CLMGK_PROGRAM_BUILT);
    const char *const parts[] = {"0.1.0",          facts->info.platform, facts->platform_version, facts->info.vendor,
                                 facts->info.name, facts->info.driver,   facts->opencl_version,   ""};
    for (size_t i = 0; i < MGK_COUNT(parts); ++i)
        mgk_text_printf(&key, "%zu:%s\n", strlen(parts[i]), parts[i]);
    mgk_text_printf(&key, "%s", strstr(program->key, "source "));
    mgk_program_release(program);
    const mgk_cache cache = {.path = context->cache_path, .max_bytes = context->cache_max_bytes};
    th_expect_ok(mgk_cache_put(&cache, key.data, "no program", 10, &th_error));
    mgk_text_free(&key);
    clmgk_context_release(context);
    assert_int_equal(entries(self), 1);
    assert_int_equal(run_once(&machine, self->root, "", 3), CLMGK_PROGRAM_BUILT);
    assert_int_equal(entries(self), 2);
    assert_int_equal(run_once(&machine, self->root, "", 3), CLMGK_PROGRAM_DISK);
    close_device(&machine);
}

CACHE_TEST(test_damaged_programs_are_built_anew)
{
    const device machine = open_device();
    char path[SCRATCH_PATH];
    size_t length = 0;
    write_kernels(self->root);
    assert_int_equal(run_once(&machine, self->root, "", 3), CLMGK_PROGRAM_BUILT);
    only_entry(self, path);
    char *const entry = scratch_read(path, &length);
    for (size_t i = 0; i < 8; ++i) {
        const size_t at = i * (length - 1) / 7;
        entry[at] = (char)~entry[at];
        scratch_write(path, entry, length);
        entry[at] = (char)~entry[at];
        assert_int_equal(run_once(&machine, self->root, "", 3), CLMGK_PROGRAM_BUILT);
        scratch_write(path, entry, at);
        assert_int_equal(run_once(&machine, self->root, "", 3), CLMGK_PROGRAM_BUILT);
        assert_int_equal(run_once(&machine, self->root, "", 3), CLMGK_PROGRAM_DISK);
    }
    free(entry);
    close_device(&machine);
}

/* The entry is valid, but the driver refuses its binary. */
CACHE_TEST(test_binaries_that_do_not_build_are_dropped)
{
    const device machine = open_device();
    mgk_program *program = NULL;
    write_kernels(self->root);
    clmgk_context *const context = make_context(&machine, self->root);
    if (context->facts.runtime == MGK_RUNTIME_RUSTICL) {
        clmgk_context_release(context);
        close_device(&machine);
        skip(); /* it aborts on a binary that is not its own */
    }
    assert_int_equal(get_fill(context, "", &program), CLMGK_PROGRAM_BUILT);
    th_expect_ok(mgk_cache_put(&self->cache, program->key, binary_text, sizeof(binary_text), &th_error));
    mgk_program_release(program);
    mgk_programs_clear(context);

    assert_int_equal(get_fill(context, "", &program), CLMGK_PROGRAM_BUILT);
    assert_int_equal(entries(self), 0);
    launch_and_check(&machine, program, 3);
    mgk_program_release(program);
    clmgk_context_release(context);
    close_device(&machine);
}

CACHE_TEST(test_contexts_share_programs_in_memory)
{
    const device machine = open_device();
    mgk_program *first = NULL;
    mgk_program *second = NULL;
    mgk_program *other = NULL;
    write_kernels(self->root);
    clmgk_context *const context = make_context(&machine, self->root);
    assert_int_equal(get_fill(context, "", &first), CLMGK_PROGRAM_BUILT);
    assert_int_equal(get_fill(context, "-DFACTOR=2", &other), CLMGK_PROGRAM_BUILT);
    assert_int_equal(get_fill(context, "", &second), CLMGK_PROGRAM_MEMORY);
    assert_ptr_equal(first, second);
    mgk_program_release(first);
    launch_and_check(&machine, second, 3);
    mgk_program_release(second);
    mgk_program_release(other);
    assert_int_equal(get_fill(context, "", &second), CLMGK_PROGRAM_MEMORY); /* the context keeps it */
    assert_ptr_equal(first, second);
    mgk_programs_clear(context);
    assert_ptr_equal(context->programs, second);
    assert_null(second->next);
    mgk_program_release(second);
    mgk_programs_clear(context);
    assert_null(context->programs);
    clmgk_context_release(context);
    close_device(&machine);
}

/* A context keeps the programs that were released last. */
CACHE_TEST(test_contexts_keep_some_programs)
{
    static const struct {
        const char *options;
        clmgk_program_origin origin;
    } gets[] = {{"", CLMGK_PROGRAM_BUILT},  {"-DFACTOR=2", CLMGK_PROGRAM_BUILT},
                {"", CLMGK_PROGRAM_MEMORY}, {"-DFACTOR=4", CLMGK_PROGRAM_BUILT}, /* in the place of FACTOR=2 */
                {"", CLMGK_PROGRAM_MEMORY}, {"-DFACTOR=2", CLMGK_PROGRAM_BUILT}};
    const device machine = open_device();
    write_kernels(self->root);
    clmgk_context *const context = make_context(&machine, self->root);
    assert_int_equal(context->most_idle, 64);
    context->most_idle = 2;
    for (size_t i = 0; i < TH_COUNT(gets); ++i) {
        mgk_program *program = NULL;
        assert_int_equal(get_fill(context, gets[i].options, &program), gets[i].origin);
        mgk_program_release(program);
    }
    clmgk_context_release(context);
    close_device(&machine);
}

CACHE_TEST(test_compile_errors_quote_the_log)
{
    const device machine = open_device();
    mgk_program *program = NULL;
    clmgk_program_origin origin;
    double compile_ms = 0.0;
    clmgk_error error = {0};
    write_kernels(self->root);
    clmgk_context *const context = make_context(&machine, self->root);
    assert_int_equal(mgk_program_get(context, "broken.cl", "", NULL, &program, &origin, &compile_ms, &error),
                     CLMGK_ERROR_COMPILE);
    assert_int_equal(error.opencl_code, CL_BUILD_PROGRAM_FAILURE);
    assert_non_null(strstr(error.message, "\"broken.cl\""));
    assert_non_null(strstr(error.message, "nonsense"));
    assert_null(strchr(error.message, '\n'));
    assert_null(program);
    assert_null(context->programs);
    clmgk_context_release(context);
    close_device(&machine);
}

enum { THREADS = 4 };

typedef struct worker {
    clmgk_context *context;
    mgk_program *program;
    clmgk_program_origin origin;
    clmgk_status status;
} worker;

static void *get_program(void *user)
{
    worker *const self = user;
    double compile_ms;
    self->status =
        mgk_program_get(self->context, "fill.cl", "", NULL, &self->program, &self->origin, &compile_ms, NULL);
    return NULL;
}

CACHE_TEST(test_threads_build_a_program_once)
{
    const device machine = open_device();
    worker workers[THREADS] = {{0}};
    int built = 0;
    write_kernels(self->root);
    clmgk_context *const context = make_context(&machine, self->root);
    for (int i = 0; i < THREADS; ++i)
        workers[i].context = context;
    th_run_threads(get_program, workers, sizeof(workers[0]), THREADS);
    for (int i = 0; i < THREADS; ++i) {
        assert_int_equal(workers[i].status, CLMGK_OK);
        assert_ptr_equal(workers[i].program, workers[0].program);
        built += workers[i].origin == CLMGK_PROGRAM_BUILT;
        mgk_program_release(workers[i].program);
    }
    assert_int_equal(built, 1);
    mgk_programs_clear(context);
    assert_null(context->programs);
    clmgk_context_release(context);
    close_device(&machine);
}

/* ---- programs made ahead ------------------------------------------------------------------------------------- */

static mgk_cache shipped_cache(const char *folder)
{
    return (mgk_cache){.path = folder, .max_bytes = UINT64_MAX, .shipped = true};
}

static void ship(const mgk_cache *folder, const char *key)
{
    th_expect_ok(mgk_cache_put(folder, key, binary_text, sizeof(binary_text), &th_error));
}

/* Installed files may be everybody's to read, and the folder a link. Reading changes nothing. */
CACHE_TEST(test_shipped_folders)
{
    char folder[SCRATCH_PATH], link[SCRATCH_PATH], path[SCRATCH_PATH];
    struct stat before, after;
    scratch_join(folder, self->root, "a/b");
    const mgk_cache cache = shipped_cache(folder);
    assert_false(hits(&cache, key_text));
    ship(&cache, key_text);
    ship(&cache, "another key");
    ship(&cache, key_text);
    assert_int_equal(scratch_count(folder, "", NULL), 2);
    mgk_cache_drop(&cache, "another key");
    assert_true(hits(&cache, "another key"));
    assert_int_equal(stat(folder, &after), 0);
    assert_int_equal(after.st_mode & 07055, 0055);

    scratch_join(link, self->root, "link");
    assert_int_equal(symlink(folder, link), 0);
    const mgk_cache linked = shipped_cache(link);
    assert_true(hits(&linked, key_text));

    assert_int_equal(scratch_count(folder, ".bin", path), 2);
    set_age(path, 1000);
    assert_int_equal(chmod(path, 0444), 0);
    assert_int_equal(chmod(folder, 0555), 0);
    assert_int_equal(stat(path, &before), 0);
    assert_true(hits(&cache, key_text) && hits(&cache, "another key"));
    assert_int_equal(stat(path, &after), 0);
    assert_int_equal(after.st_mtime, before.st_mtime);
    assert_int_equal(chmod(folder, 0755), 0);
}

static void expect_shipped_refused(const char *folder, const char *reason)
{
    const mgk_cache cache = shipped_cache(folder);
    clmgk_cache_info info = CLMGK_CACHE_INFO_INIT;
    assert_false(hits(&cache, key_text));
    th_expect_error(clmgk_program_dir_get_info(folder, &info, &th_error), CLMGK_ERROR_IO, reason);
    th_expect_error(mgk_cache_put(&cache, key_text, "x", 1, &th_error), CLMGK_ERROR_IO, reason);
}

CACHE_TEST(test_untrusted_shipped_folders)
{
    enum { SOMEBODY = 65534 };
    char path[SCRATCH_PATH];
    const mgk_cache cache = shipped_cache(self->folder);
    ship(&cache, key_text);
    only_entry(self, path);
    assert_int_equal(chmod(self->folder, 0775), 0);
    expect_shipped_refused(self->folder, "0775");
    assert_int_equal(chmod(self->folder, 0757), 0);
    expect_shipped_refused(self->folder, "0757");
    assert_int_equal(chmod(self->folder, 0755), 0);
    assert_true(hits(&cache, key_text));
    assert_int_equal(chmod(path, 0664), 0);
    assert_false(hits(&cache, key_text));
    assert_int_equal(chmod(path, 0644), 0);
    assert_true(hits(&cache, key_text));
    if (geteuid() != 0)
        return;
    assert_int_equal(chown(path, SOMEBODY, SOMEBODY), 0);
    assert_false(hits(&cache, key_text));
    assert_int_equal(chown(path, 0, 0), 0);
    assert_int_equal(chown(self->folder, SOMEBODY, SOMEBODY), 0);
    expect_shipped_refused(self->folder, "belongs to user 65534");
    assert_int_equal(chown(self->folder, 0, 0), 0);
    assert_int_equal(chmod(self->root, 0755), 0);
    assert_int_equal(seteuid(SOMEBODY), 0);
    const int handle = open(self->folder, O_RDONLY); /* a folder above may be closed to others */
    const bool serves = hits(&cache, key_text);
    assert_int_equal(seteuid(0), 0);
    assert_true(serves == (handle >= 0)); /* root's files serve others */
    if (handle >= 0)
        close(handle);
}

CACHE_TEST(test_shipped_programs)
{
    const device machine = open_device();
    char folder[SCRATCH_PATH], path[SCRATCH_PATH];
    size_t length = 0, length_after = 0;
    clmgk_cache_info info = CLMGK_CACHE_INFO_INIT;
    write_kernels(self->root);
    scratch_join(folder, self->root, "shipped");
    assert_int_equal(run_in(&machine, make_context_with(&machine, self->root, folder), "", 3, folder),
                     CLMGK_PROGRAM_BUILT);
    th_expect_ok(clmgk_program_dir_get_info(folder, &info, &th_error));
    assert_string_equal(info.path, folder);
    assert_int_equal(info.entries, 1);

    /* before the cache's */
    assert_int_equal(run_once(&machine, self->root, "", 3), CLMGK_PROGRAM_DISK);
    assert_int_equal(run_in(&machine, make_context_with(&machine, self->root, folder), "", 3, NULL),
                     CLMGK_PROGRAM_SHIPPED);
    assert_int_equal(run_in(&machine, make_context_with(&machine, self->root, folder), "-DFACTOR=5", 5, NULL),
                     CLMGK_PROGRAM_BUILT);
    assert_int_equal(entries(self), 2);

    /* a damaged file stays */
    assert_int_equal(scratch_count(folder, ".bin", path), 1);
    char *const entry = scratch_read(path, &length);
    scratch_write(path, entry, length - 1);
    assert_int_equal(run_in(&machine, make_context_with(&machine, self->root, folder), "", 3, NULL),
                     CLMGK_PROGRAM_DISK);
    free(entry);
    free(scratch_read(path, &length_after));
    assert_int_equal(length_after, length - 1);
    close_device(&machine);
}

PLACES_TEST(test_place_of_shipped_programs)
{
    const device machine = open_device();
    clmgk_cache_info info = CLMGK_CACHE_INFO_INIT;
    set_variable("CLMGK_PROGRAM_DIR", "/v");
    static const struct {
        const char *option, *expected;
    } cases[] = {{NULL, "/v"}, {"/o", "/o"}, {"", NULL}};
    for (size_t i = 0; i < MGK_COUNT(cases); ++i) {
        clmgk_context *const context = make_context_with(&machine, "", cases[i].option);
        th_expect_ok(clmgk_program_dir_get_info(cases[i].option, &info, &th_error));
        assert_string_equal(info.path, cases[i].expected != NULL ? cases[i].expected : "");
        assert_int_equal(info.entries, 0);
        if (cases[i].expected == NULL)
            assert_null(context->program_dir);
        else
            assert_string_equal(context->program_dir, cases[i].expected);
        clmgk_context_release(context);
    }
    close_device(&machine);
}

CACHE_TEST(test_saving_programs_fails)
{
    const device machine = open_device();
    clmgk_context *const context = make_context(&machine, self->root);
    clmgk_cache_info info = CLMGK_CACHE_INFO_INIT;
    char path[SCRATCH_PATH];
    mgk_program *program = NULL;
    clmgk_program_origin origin;
    double compile_ms = 0.0;
    size_t count = 7;
    th_expect_error(clmgk_context_save_programs(NULL, "x", &count, &th_error), CLMGK_ERROR_INVALID_VALUE, "context");
    th_expect_error(clmgk_context_save_programs(context, NULL, &count, &th_error), CLMGK_ERROR_INVALID_VALUE, "folder");
    th_expect_error(clmgk_context_save_programs(context, "", &count, &th_error), CLMGK_ERROR_INVALID_VALUE, "folder");
    th_expect_error(clmgk_program_dir_get_info("x", NULL, &th_error), CLMGK_ERROR_INVALID_VALUE, "info");
    memset(info.path, 'x', sizeof(info.path) - 1);
    info.path[sizeof(info.path) - 1] = '\0';
    char longer[2 * sizeof(info.path)];
    snprintf(longer, sizeof(longer), "/%s", info.path);
    th_expect_error(clmgk_program_dir_get_info(longer, &info, &th_error), CLMGK_ERROR_INVALID_VALUE, "program_dir");

    write_kernels(self->root);
    th_expect_ok(mgk_program_get(context, "fill.cl", "", NULL, &program, &origin, &compile_ms, &th_error));
    scratch_join(path, self->root, "fill.cl");
    th_expect_error(clmgk_context_save_programs(context, path, &count, &th_error), CLMGK_ERROR_IO, path);
    assert_int_equal(count, 0);
    mgk_program_release(program);
    th_expect_ok(clmgk_context_save_programs(context, self->folder, NULL, &th_error));
    assert_int_equal(scratch_count(self->folder, "", NULL), 0);
    clmgk_context_release(context);
    close_device(&machine);
}

/* ---- several processes --------------------------------------------------------------------------------------- */

enum { PROCESSES = 4, ROUNDS = 40, KEYS = 6 };

/* A child's part: entries written and read while others write, remove and clear them; then a program. */
static int run_child(const char *root, const char *seed_text)
{
    char folder[SCRATCH_PATH];
    unsigned seed = (unsigned)strtoul(seed_text, NULL, 10);
    scratch_join(folder, root, "programs");
    const mgk_cache cache = {.path = folder, .max_bytes = 300};
    for (int round = 0; round < ROUNDS; ++round) {
        char key[16];
        seed = seed * 1664525U + 1013904223U;
        snprintf(key, sizeof(key), "key %u", (seed >> 16) % KEYS);
        if (!hits(&cache, key))
            put(&cache, key);
        if (round % 16 == 15)
            (void)clmgk_cache_clear(root, NULL);
    }
    const device machine = open_device();
    (void)run_once(&machine, root, "", 3);
    close_device(&machine);
    return 0;
}

static const char *self_path; /* set once, before any test runs */

CACHE_TEST(test_processes_share_a_cache)
{
    pid_t processes[PROCESSES];
    const device machine = open_device();
    write_kernels(self->root);
    for (int i = 0; i < PROCESSES; ++i) {
        char seed[16];
        snprintf(seed, sizeof(seed), "%d", i + 1);
        char *const arguments[] = {(char *)(uintptr_t)self_path, (char *)(uintptr_t) "child",
                                   (char *)(uintptr_t)self->root, seed, NULL};
        assert_int_equal(posix_spawn(&processes[i], self_path, NULL, NULL, arguments, environ), 0);
    }
    for (int i = 0; i < PROCESSES; ++i) {
        int status = -1;
        assert_int_equal(waitpid(processes[i], &status, 0), processes[i]);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
    assert_int_equal(scratch_count(self->folder, ".clmgk-tmp-", NULL), 0);
    (void)run_once(&machine, self->root, "", 3);
    assert_int_equal(run_once(&machine, self->root, "", 3), CLMGK_PROGRAM_DISK);
    close_device(&machine);
}

int main(int count, char **arguments)
{
    if (count == 4 && strcmp(arguments[1], "child") == 0)
        return run_child(arguments[2], arguments[3]);
    self_path = arguments[0];
    /* Otherwise PoCL caches programs itself. It reads this variable in the first OpenCL call; child processes inherit
     * it. */
    set_variable("POCL_KERNEL_CACHE", "0");
    return th_run_tests();
}
