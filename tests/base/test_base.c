/* SPDX-License-Identifier: Apache-2.0 */
/* Failures, memory, text, arithmetic, hashes, files, private folders, kernel sources and names. */
#include "base/base.h"
#include "clmgk/version.h"
#include "device/device.h"
#include "harness/harness.h"
#include "harness/scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- failures and names ------------------------------------------------------------------------------------ */

TH_HOST_TEST(test_failure_records)
{
    clmgk_error error = {0};
    assert_int_equal(mgk_fail(&error, CLMGK_ERROR_INVALID_SHAPE, "heads is %d\nexpected\t%s", 3, "4"),
                     CLMGK_ERROR_INVALID_SHAPE);
    assert_int_equal(error.status, CLMGK_ERROR_INVALID_SHAPE);
    assert_int_equal(error.opencl_code, 0);
    assert_string_equal(error.message, "heads is 3 expected 4");

    char text[2 * CLMGK_ERROR_MESSAGE_SIZE];
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    mgk_fail(&error, CLMGK_ERROR_INTERNAL, "%s", text);
    assert_int_equal(strlen(error.message), CLMGK_ERROR_MESSAGE_SIZE - 1);

    assert_int_equal(mgk_fail(NULL, CLMGK_ERROR_IO, "nobody listens"), CLMGK_ERROR_IO);
}

TH_HOST_TEST(test_opencl_failures)
{
    static const struct {
        cl_int code;
        clmgk_status status;
        const char *message;
    } cases[] = {
        {CL_OUT_OF_HOST_MEMORY, CLMGK_ERROR_OUT_OF_HOST_MEMORY, "clTest: CL_OUT_OF_HOST_MEMORY (-6)"},
        {CL_OUT_OF_RESOURCES, CLMGK_ERROR_OUT_OF_DEVICE_MEMORY, "clTest: CL_OUT_OF_RESOURCES (-5)"},
        {CL_MEM_OBJECT_ALLOCATION_FAILURE, CLMGK_ERROR_OUT_OF_DEVICE_MEMORY,
         "clTest: CL_MEM_OBJECT_ALLOCATION_FAILURE (-4)"},
        {CL_INVALID_VALUE, CLMGK_ERROR_OPENCL, "clTest: CL_INVALID_VALUE (-30)"},
        {-9999, CLMGK_ERROR_OPENCL, "clTest: unknown OpenCL error (-9999)"},
    };
    for (size_t i = 0; i < MGK_COUNT(cases); ++i) {
        clmgk_error error = {0};
        assert_int_equal(mgk_fail_cl(&error, cases[i].code, "clTest"), cases[i].status);
        assert_int_equal(error.opencl_code, cases[i].code);
        assert_string_equal(error.message, cases[i].message);
    }
}

TH_HOST_TEST(test_names)
{
    assert_string_equal(clmgk_status_text(CLMGK_ERROR_NO_DEVICE), "no usable OpenCL device, or none matches");
#define HAS_TEXT(name, value, text)                                                                                    \
    assert_string_equal(clmgk_status_name(CLMGK_##name), #name);                                                       \
    assert_string_equal(clmgk_status_text(CLMGK_##name), text);
    CLMGK_STATUS_LIST(HAS_TEXT)
#undef HAS_TEXT
    assert_string_equal(clmgk_status_name((clmgk_status)1000), "unknown");
    assert_string_equal(clmgk_status_text((clmgk_status)1000), "unknown status");
    assert_string_equal(clmgk_variant_name(CLMGK_VARIANT_SMGK), "smgk");
    assert_null(clmgk_variant_name((clmgk_variant)1000));
    assert_string_equal(clmgk_dtype_name(CLMGK_DTYPE_BF16), "bf16");
    assert_null(clmgk_dtype_name((clmgk_dtype)CLMGK_ALL_DTYPES));
    assert_string_equal(clmgk_engine_name(CLMGK_ENGINE_SIMT), "simt");
    assert_string_equal(clmgk_engine_name(CLMGK_ENGINE_MATRIX), "matrix");
    assert_null(clmgk_engine_name((clmgk_engine)4));
    assert_string_equal(clmgk_array_name(CLMGK_ARRAY_GRAD_Q), "grad_q");
    assert_null(clmgk_array_name(CLMGK_ARRAYS));
    assert_null(clmgk_pass_name(CLMGK_PASSES));
    assert_null(clmgk_tuning_source_name((clmgk_tuning_source)1));
    assert_string_equal(clmgk_version(), CLMGK_VERSION);
}

TH_HOST_TEST(test_numbers_of_storage_types)
{
    static const float numbers[] = {0.0f, 1.0f, -1.5f, 0.375f, 240.0f, -0x1.2p-6f};
    for (int dtype = 0; dtype < CLMGK_DTYPES; dtype++) {
        const clmgk_dtype_info type = clmgk_dtype_get_info((clmgk_dtype)dtype);
        uint32_t array[2 * TH_COUNT(numbers)] = {0};
        for (size_t i = 0; i < TH_COUNT(numbers); i++)
            mgk_put_number(array, i, numbers[i], &type);
        for (size_t i = 0; i < TH_COUNT(numbers); i++)
            assert_true(mgk_number(array, i, &type) == (double)numbers[i]);
    }
}

/* Every value's name gives the value again. */
TH_HOST_TEST(test_values_from_names)
{
#define EXPECT_NAMES(type, last)                                                                                       \
    for (int i = 0; i <= (int)(last); ++i) {                                                                           \
        clmgk_##type value = (clmgk_##type)99;                                                                         \
        const char *const name = clmgk_##type##_name((clmgk_##type)i);                                                 \
        assert_int_equal(clmgk_##type##_from_name(name, &value, NULL), name ? CLMGK_OK : CLMGK_ERROR_INVALID_VALUE);   \
        assert_int_equal(value, name ? i : 99);                                                                        \
        assert_true(name != NULL || strcmp(#type, "tuning_source") == 0);                                              \
    }                                                                                                                  \
    assert_null(clmgk_##type##_name((clmgk_##type)((last) + 1)))
#define PLACE(NAME, ...) PLACE_OF_##NAME,
    enum { CLMGK_VARIANT_LIST(PLACE) VARIANTS };
    EXPECT_NAMES(variant, VARIANTS - 1);
    EXPECT_NAMES(dtype, CLMGK_DTYPE_Q4_0);
    EXPECT_NAMES(score, CLMGK_SCORE_GAUSSIAN);
    EXPECT_NAMES(estep, CLMGK_ESTEP_HARD);
    EXPECT_NAMES(alignment, CLMGK_ALIGN_LENGTHS);
    EXPECT_NAMES(precision, CLMGK_PRECISION_BF16);
    EXPECT_NAMES(feature, CLMGK_FEATURE_FAVOR);
    EXPECT_NAMES(engine, CLMGK_ENGINE_MATRIX);
    EXPECT_NAMES(array, CLMGK_ARRAYS - 1);
    EXPECT_NAMES(pass, CLMGK_PASSES - 1);
    EXPECT_NAMES(device_class, CLMGK_DEVICE_OTHER);
    EXPECT_NAMES(program_origin, CLMGK_PROGRAM_BUILT);
    EXPECT_NAMES(program_keeper, CLMGK_KEEPER_DRIVER);
    EXPECT_NAMES(tuning_source, CLMGK_TUNING_CALLER);
    clmgk_status status = CLMGK_OK;
    th_expect_ok(clmgk_status_from_name("ERROR_IO", &status, &th_error));
    assert_int_equal(status, CLMGK_ERROR_IO);

    clmgk_dtype dtype = CLMGK_DTYPE_F16;
    th_expect_error(clmgk_dtype_from_name("f8", &dtype, &th_error), CLMGK_ERROR_INVALID_VALUE,
                    "dtype: \"f8\": expected one of f32, f16, bf16, e4m3");
    assert_int_equal(dtype, CLMGK_DTYPE_F16);
    th_expect_error(clmgk_dtype_from_name(NULL, &dtype, &th_error), CLMGK_ERROR_INVALID_VALUE, "name: NULL");
    th_expect_error(clmgk_dtype_from_name("f32", NULL, &th_error), CLMGK_ERROR_INVALID_VALUE, "dtype: NULL");
}

/* ---- memory and text --------------------------------------------------------------------------------------- */

/* An allocator that counts, and fails from the `budget`-th allocation on. */
typedef struct counting {
    int live, budget;
} counting;

static void *count_allocate(size_t bytes, void *user)
{
    counting *const counts = user;
    if (counts->budget <= 0)
        return NULL;
    --counts->budget;
    void *const memory = malloc(bytes);
    memset(memory, 0xa5, bytes);
    ++counts->live;
    return memory;
}

static void count_release(void *memory, void *user)
{
    counting *const counts = user;
    counts->live -= memory != NULL;
    free(memory);
}

TH_HOST_TEST(test_allocator)
{
    counting counts = {.budget = 2};
    const clmgk_allocator allocator = {.allocate = count_allocate, .release = count_release, .user = &counts};
    unsigned char *const bytes = mgk_alloc(&allocator, 3, 5);
    assert_non_null(bytes);
    for (int i = 0; i < 15; ++i)
        assert_int_equal(bytes[i], 0);
    void *const nothing = mgk_alloc(&allocator, 0, 8);
    assert_non_null(nothing);
    assert_null(mgk_alloc(&allocator, 1, 1));
    mgk_free(&allocator, bytes);
    mgk_free(&allocator, nothing);
    mgk_free(&allocator, NULL);
    assert_int_equal(counts.live, 0);

    assert_null(mgk_alloc(NULL, SIZE_MAX / 2, 3));
    char *const copy = mgk_strdup(NULL, "copy");
    assert_string_equal(copy, "copy");
    mgk_free(NULL, copy);
}

TH_HOST_TEST(test_text_grows)
{
    mgk_text text = {0};
    char expected[4096] = "";
    for (int i = 0; i < 300; ++i) {
        const size_t length = strlen(expected);
        snprintf(expected + length, sizeof(expected) - length, "%d,", i);
        mgk_text_printf(&text, "%d", i);
        mgk_text_append(&text, ",", 1);
        assert_int_equal(text.length, strlen(expected));
        assert_string_equal(text.data, expected);
    }
    assert_false(text.failed);
    mgk_text_free(&text);
    assert_null(text.data);
}

TH_HOST_TEST(test_text_fails_once_and_for_all)
{
    for (int budget = 0; budget < 4; ++budget) {
        counting counts = {.budget = budget};
        const clmgk_allocator allocator = {.allocate = count_allocate, .release = count_release, .user = &counts};
        mgk_text text = {.allocator = &allocator};
        for (int i = 0; i < 100; ++i)
            mgk_text_printf(&text, "%08d", i);
        assert_true(text.failed);
        const size_t length = text.length;
        counts.budget = 100;
        mgk_text_append(&text, "more", 4);
        assert_int_equal(text.length, length);
        mgk_text_free(&text);
        assert_int_equal(counts.live, 0);
    }
}

typedef struct sample {
    size_t struct_size;
    int first, second;
} sample;

TH_HOST_TEST(test_structures_of_other_versions)
{
    struct {
        sample known;
        int newer[4];
    } source = {.known = {.first = 1, .second = 2}};
    const size_t least = offsetof(sample, second);
    sample target;
    clmgk_error error = {0};

    source.known.struct_size = sizeof(sample);
    th_expect_ok(mgk_struct_read(&source, "sample", least, &target, sizeof(target), &th_error));
    assert_int_equal(target.second, 2);

    source.known.struct_size = least;
    th_expect_ok(mgk_struct_read(&source, "sample", least, &target, sizeof(target), &th_error));
    assert_int_equal(target.struct_size, sizeof(sample));
    assert_int_equal(target.first, 1);
    assert_int_equal(target.second, 0);

    source.known.struct_size = sizeof(source);
    th_expect_ok(mgk_struct_read(&source, "sample", least, &target, sizeof(target), &th_error));
    source.newer[3] = 1;
    assert_int_equal(mgk_struct_read(&source, "sample", least, &target, sizeof(target), &error),
                     CLMGK_ERROR_INVALID_VALUE);
    assert_non_null(strstr(error.message, "sample.struct_size"));

    static const size_t bad[] = {0, 1, SIZE_MAX};
    for (size_t i = 0; i < MGK_COUNT(bad); ++i) {
        source.known.struct_size = bad[i];
        assert_int_equal(mgk_struct_read(&source, "sample", least, &target, sizeof(target), &error),
                         CLMGK_ERROR_INVALID_VALUE);
    }
}

/* Structures of older and of newer callers, and lists of them. */
TH_HOST_TEST(test_structures_to_the_caller)
{
    typedef struct newer_sample {
        sample known;
        int third;
    } newer_sample;
    enum { LEAST = MGK_SIZE_WITH(sample, first) };
    const sample source = {sizeof(source), 1, 2};
    newer_sample newer = {{sizeof(newer), 0, 0}, 3};
    mgk_struct_write(&newer, 0, &source, sizeof(source));
    assert_true(newer.known.struct_size == sizeof(newer) && newer.known.second == 2 && newer.third == 0);

    sample older = {LEAST, 0, 9};
    th_expect_ok(mgk_struct_room(&older, "older", LEAST, &th_error));
    mgk_struct_write(&older, 0, &source, sizeof(source));
    assert_true(older.struct_size == LEAST && older.first == 1 && older.second == 9);

    newer_sample list[3] = {{{sizeof(newer_sample), 0, 0}, 3}, {{0, 0, 0}, 3}, {{0, 0, 0}, 3}};
    mgk_struct_write(list, 1, &source, sizeof(source));
    assert_true(list[1].known.struct_size == sizeof(list[1]) && list[1].known.first == 1 && list[1].third == 0);
    assert_true(list[0].third == 3 && list[2].known.struct_size == 0 && list[2].third == 3);

    static const size_t bad[] = {0, LEAST - 1, SIZE_MAX};
    for (size_t i = 0; i < MGK_COUNT(bad); ++i) {
        older.struct_size = bad[i];
        th_expect_error(mgk_struct_room(&older, "older", LEAST, &th_error), CLMGK_ERROR_INVALID_VALUE,
                        "older.struct_size");
    }
    th_expect_error(mgk_struct_room(NULL, "older", LEAST, &th_error), CLMGK_ERROR_INVALID_VALUE, "older: NULL");
}

TH_HOST_TEST(test_arithmetic)
{
    int64_t out = -1;
    assert_true(mgk_mul_i64(INT64_C(3037000499), INT64_C(3037000499), &out));
    assert_true(out == INT64_C(9223372030926249001));
    out = -1;
    assert_false(mgk_mul_i64(INT64_C(3037000500), INT64_C(3037000500), &out));
    assert_false(mgk_mul_i64(-1, 2, &out));
    assert_false(mgk_mul_i64(2, -1, &out));
    assert_false(mgk_add_i64(INT64_MAX, 1, &out));
    assert_false(mgk_add_i64(-1, 1, &out));
    assert_true(out == -1);
    assert_true(mgk_mul_i64(INT64_MAX, 0, &out) && out == 0);
    assert_true(mgk_mul_i64(0, INT64_MAX, &out) && out == 0);
    assert_true(mgk_add_i64(INT64_MAX - 1, 1, &out) && out == INT64_MAX);
}

/* The published value: an update of the hash's header must not change the names of the cache's entries. */
TH_HOST_TEST(test_hash)
{
    const mgk_hash empty = mgk_hash_bytes("", 0);
    assert_true(empty.high == UINT64_C(0x99aa06d3014798d8));
    assert_true(empty.low == UINT64_C(0x6001c324468d497f));
}

TH_HOST_TEST(test_clock_and_environment)
{
    const double start = mgk_now_ms();
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    assert_true(mgk_now_ms() - start >= 2.0);
    assert_int_equal(setenv("CLMGK_TEST_VARIABLE", "value", 1), 0);
    assert_string_equal(mgk_environment("CLMGK_TEST_VARIABLE"), "value");
    assert_int_equal(unsetenv("CLMGK_TEST_VARIABLE"), 0);
    assert_null(mgk_environment("CLMGK_TEST_VARIABLE"));
}

/* ---- files -------------------------------------------------------------------------------------------------- */

TH_HOST_TEST(test_file_read)
{
    char folder[SCRATCH_PATH];
    char path[SCRATCH_PATH];
    char *data = NULL;
    size_t length = 0;
    clmgk_error error = {0};
    scratch_create(folder);
    scratch_join(path, folder, "file");

    assert_int_equal(mgk_file_read(NULL, path, 100, &data, &length, &error), CLMGK_ERROR_IO);
    assert_non_null(strstr(error.message, path));
    scratch_write(path, "a\0b", 3);
    th_expect_ok(mgk_file_read(NULL, path, 3, &data, &length, &th_error));
    assert_int_equal(length, 3);
    assert_memory_equal(data, "a\0b", 3);
    mgk_free(NULL, data);

    assert_int_equal(mgk_file_read(NULL, path, 2, &data, &length, &error), CLMGK_ERROR_IO);
    assert_non_null(strstr(error.message, "expected at most 2"));
    assert_int_equal(mgk_file_read(NULL, folder, 100, &data, &length, &error), CLMGK_ERROR_IO);
    assert_non_null(strstr(error.message, "not a regular file"));

    counting counts = {0};
    const clmgk_allocator none = {.allocate = count_allocate, .release = count_release, .user = &counts};
    assert_int_equal(mgk_file_read(&none, path, 100, &data, &length, &error), CLMGK_ERROR_OUT_OF_HOST_MEMORY);

    static const char shorter[] = "/sys/devices/system/cpu/online"; /* than it says: it has a page */
    if (access(shorter, R_OK) == 0)
        th_expect_error(mgk_file_read(NULL, shorter, (size_t)1 << 20, &data, &length, &th_error), CLMGK_ERROR_IO,
                        "online: could not be read");

    scratch_remove(path);
    assert_int_equal(mkfifo(path, S_IRUSR | S_IWUSR), 0);
    assert_int_equal(mgk_file_read(NULL, path, 100, &data, &length, &error), CLMGK_ERROR_IO);
    scratch_remove(folder);
}

static bool any_name(const char *name)
{
    return name[0] != '.';
}

TH_HOST_TEST(test_folder_life)
{
    char root[SCRATCH_PATH];
    char path[SCRATCH_PATH];
    mgk_folder folder;
    mgk_folder_entry *entries = NULL;
    size_t count = 1;
    char *data = NULL;
    size_t length = 0;
    struct stat facts;
    scratch_create(root);
    scratch_join(path, root, "a/b/private");

    assert_int_equal(mgk_folder_open(path, false, &folder, NULL), CLMGK_OK);
    assert_int_equal(folder.handle, -1);
    th_expect_ok(mgk_folder_load(&folder, NULL, "name", 100, true, &data, &length, &th_error));
    assert_null(data);
    th_expect_error(mgk_folder_write(&folder, "name", "x", 1, &th_error), CLMGK_ERROR_IO, path);
    assert_int_equal(mgk_folder_list(&folder, NULL, any_name, &entries, &count, NULL), CLMGK_OK);
    assert_int_equal(count, 0);
    assert_int_equal(mgk_folder_lock(&folder, 50, NULL), -1);

    assert_int_equal(mgk_folder_open(path, true, &folder, NULL), CLMGK_OK);
    assert_int_equal(stat(path, &facts), 0);
    assert_int_equal(facts.st_mode & 07777, 0700);
    th_expect_ok(mgk_folder_write(&folder, "name", "first", 5, &th_error));
    th_expect_ok(mgk_folder_write(&folder, "name", "second", 6, &th_error));
    th_expect_ok(mgk_folder_load(&folder, NULL, "name", 6, true, &data, &length, &th_error));
    assert_int_equal(length, 6);
    assert_memory_equal(data, "second", 6);
    mgk_free(NULL, data);
    assert_int_equal(mgk_folder_load(&folder, NULL, "name", 5, true, &data, &length, NULL), CLMGK_ERROR_IO);
    assert_null(data);

    assert_int_equal(mgk_folder_list(&folder, NULL, any_name, &entries, &count, NULL), CLMGK_OK);
    assert_int_equal(count, 1);
    assert_string_equal(entries[0].name, "name");
    assert_int_equal(entries[0].bytes, 6);
    mgk_free(NULL, entries);

    th_expect_ok(mgk_folder_remove(&folder, "name", &th_error));
    th_expect_ok(mgk_folder_remove(&folder, "name", &th_error));
    assert_int_equal(scratch_count(path, "", NULL), 0);
    mgk_folder_close(&folder);
    scratch_remove(root);
}

/* The message has the path and the system's reason of the obstacle, not of the last attempt. */
TH_HOST_TEST(test_folder_failures_name_path_and_cause)
{
    static const char unmakeable[] = "/proc/clmgk-none/a/b";
    char root[SCRATCH_PATH], file[SCRATCH_PATH], below[SCRATCH_PATH], expected[2 * SCRATCH_PATH];
    char long_name[300];
    char *data = NULL;
    size_t length = 0;
    mgk_folder folder;
    scratch_create(root);
    scratch_join(file, root, "file");
    scratch_join(below, root, "file/folder");
    memset(long_name, 'x', sizeof(long_name));
    long_name[sizeof(long_name) - 1] = '\0';
    assert_int_equal(mgk_folder_open(root, false, &folder, NULL), CLMGK_OK);
    th_expect_ok(mgk_folder_write(&folder, "file", "x", 1, &th_error));

    (void)snprintf(expected, sizeof(expected), "%s/%s: File name too long", root, long_name);
    th_expect_error(mgk_folder_write(&folder, long_name, "x", 1, &th_error), CLMGK_ERROR_IO, expected);
    assert_int_equal(scratch_count(root, "", NULL), 1);
    th_expect_error(mgk_folder_load(&folder, NULL, long_name, 1, false, &data, &length, &th_error), CLMGK_ERROR_IO,
                    expected);
    th_expect_error(mgk_folder_remove(&folder, long_name, &th_error), CLMGK_ERROR_IO, expected);

    struct rlimit files, none;
    mgk_folder_entry *entries = NULL;
    size_t count = 0;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    none = (struct rlimit){.rlim_cur = 0, .rlim_max = files.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    const clmgk_status status = mgk_folder_list(&folder, NULL, any_name, &entries, &count, &th_error);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
    th_expect_error(status, CLMGK_ERROR_IO, "can't be listed: Too many open files");
    assert_null(entries);
    mgk_folder_close(&folder);

    (void)snprintf(expected, sizeof(expected), "%s: Not a directory", below);
    th_expect_error(mgk_folder_open(below, true, &folder, &th_error), CLMGK_ERROR_IO, expected);
    th_expect_error(mgk_folder_check_writable(below, true, &th_error), CLMGK_ERROR_IO, expected);
    (void)snprintf(expected, sizeof(expected), "%s: /proc/clmgk-none can't be made: ", unmakeable);
    th_expect_error(mgk_folder_open(unmakeable, true, &folder, &th_error), CLMGK_ERROR_IO, expected);
    th_expect_error(mgk_folder_check_writable(unmakeable, false, &th_error), CLMGK_ERROR_IO, unmakeable);
    th_expect_ok(mgk_folder_check_writable(root, false, &th_error));
    scratch_join(below, root, "a/b");
    th_expect_ok(mgk_folder_check_writable(below, true, &th_error));
    scratch_join(below, root, "a/b/");
    th_expect_ok(mgk_folder_check_writable(below, true, &th_error));
    th_expect_ok(mgk_folder_check_writable("clmgk-none", true, &th_error));
    th_expect_error(mgk_folder_check_writable("clmgk-none/b", false, &th_error), CLMGK_ERROR_IO, "No such file");
    th_expect_error(mgk_folder_check_writable(below, false, &th_error), CLMGK_ERROR_IO, "No such file or directory");
    scratch_remove(root);
}

TH_HOST_TEST(test_folder_lock_excludes_and_gives_up)
{
    char root[SCRATCH_PATH];
    mgk_folder folder;
    scratch_create(root);
    assert_int_equal(mgk_folder_open(root, false, &folder, NULL), CLMGK_OK);
    const int lock = mgk_folder_lock(&folder, 50, &th_error);
    assert_true(lock >= 0);
    const double start = mgk_now_ms();
    assert_int_equal(mgk_folder_lock(&folder, 50, &th_error), -1);
    assert_non_null(strstr(th_error.message, "another process holds the lock"));
    assert_true(mgk_now_ms() - start < 5000.0);
    mgk_folder_unlock(lock);
    const int again = mgk_folder_lock(&folder, 50, &th_error);
    assert_true(again >= 0);
    mgk_folder_unlock(again);
    mgk_folder_close(&folder);
    scratch_remove(root);
}

/* ---- kernel sources ----------------------------------------------------------------------------------------- */

static void write_kernel(const char *folder, const char *name, const char *text)
{
    char path[SCRATCH_PATH];
    scratch_join(path, folder, name);
    scratch_write(path, text, strlen(text));
}

static void expect_no_source(const char *folder, const char *name, const char *options, clmgk_status status,
                             const char *words)
{
    mgk_text source = {0};
    th_expect_error(mgk_source_expand(folder, name, options, NULL, &source, &th_error), status, words);
    mgk_text_free(&source);
}

TH_HOST_TEST(test_source_expansion)
{
    char folder[SCRATCH_PATH];
    mgk_text source = {0};
    scratch_create(folder);
    write_kernel(folder, "main.cl", "first\n #\tinclude \"a.clh\" // why\n#include \"b.clh\"\n#include <c.h>\nlast");
    write_kernel(folder, "a.clh", "in a\n#include \"b.clh\"\n");
    write_kernel(folder, "b.clh", "in b\n#include \"a.clh\"\n#include \"main.cl\"\n");
    assert_int_equal(mgk_source_expand(folder, "main.cl", "", NULL, &source, NULL), CLMGK_OK);
    assert_string_equal(source.data, "#line 1 \"main.cl\"\nfirst\n"
                                     "#line 1 \"a.clh\"\nin a\n"
                                     "#line 1 \"b.clh\"\nin b\n"
                                     "#line 3 \"b.clh\"\n#line 4 \"b.clh\"\n"
                                     "#line 3 \"a.clh\"\n"
                                     "#line 3 \"main.cl\"\n#line 4 \"main.cl\"\n"
                                     "#include <c.h>\nlast\n");
    mgk_text_free(&source);
    scratch_remove(folder);
}

/* The texts of a score and mask stand in place of one file, and of its includes. */
TH_HOST_TEST(test_source_texts)
{
    char folder[SCRATCH_PATH];
    mgk_text source = {0};
    scratch_create(folder);
    write_kernel(folder, "main.cl", "#include \"" MGK_MODS_FILE "\"\nlast\n");
    write_kernel(folder, MGK_MODS_FILE, "in the file\n");
    assert_int_equal(mgk_source_expand(folder, "main.cl", "", NULL, &source, NULL), CLMGK_OK);
    assert_non_null(strstr(source.data, "in the file"));
    mgk_text_free(&source);
    assert_int_equal(mgk_source_expand(folder, "main.cl", "", "one\ntwo\n", &source, NULL), CLMGK_OK);
    assert_string_equal(source.data, "#line 1 \"main.cl\"\n#line 1 \"" MGK_MODS_FILE "\"\none\ntwo\n"
                                     "#line 2 \"main.cl\"\nlast\n");
    mgk_text_free(&source);
    scratch_remove(folder);
}

TH_HOST_TEST(test_source_engine_files)
{
    static const char included[] = "#line 1 \"main.cl\"\n#line 1 \"engine/two/a.clh\"\n2\n#line 2 \"main.cl\"\n"
                                   "#line 3 \"main.cl\"\n#line 4 \"main.cl\"\n";
    char folder[SCRATCH_PATH];
    mgk_text source = {0};
    scratch_create(folder);
    write_kernel(folder, "engine/two/a.clh", "2\n");
    write_kernel(folder, "main.cl",
                 "#include ENGINE_FILE(a.clh)\n #  include ENGINE_FILE(a.clh)\n"
                 "#include \"engine/two/a.clh\"\n");
    assert_int_equal(mgk_source_expand(folder, "main.cl", "-DX=1 -DENGINE=two -DY=1", NULL, &source, NULL), CLMGK_OK);
    assert_string_equal(source.data, included);
    mgk_text_free(&source);
    expect_no_source(folder, "main.cl", "-DENGINE=tw", CLMGK_ERROR_IO, "engine/tw/a.clh");
    expect_no_source(folder, "main.cl", "-DENGINE=..", CLMGK_ERROR_COMPILE, "");
    expect_no_source(folder, "main.cl", "-DX=1", CLMGK_ERROR_COMPILE, "-DENGINE=");
    scratch_remove(folder);
}

TH_HOST_TEST(test_source_failures)
{
    char folder[SCRATCH_PATH];
    scratch_create(folder);
    write_kernel(folder, "outside.cl", "#include \"../secret\"\n");
    write_kernel(folder, "absent.cl", "#include \"absent.clh\"\n");
    expect_no_source(folder, "outside.cl", "", CLMGK_ERROR_COMPILE, "../secret");
    expect_no_source(folder, "absent.cl", "", CLMGK_ERROR_IO, "absent.clh");
    expect_no_source(NULL, "absent.cl", "", CLMGK_ERROR_COMPILE, "absent.cl");
    scratch_remove(folder);
}

TH_HOST_TEST(test_source_without_memory)
{
    clmgk_status status = CLMGK_ERROR_OUT_OF_HOST_MEMORY;
    int budget = 0;
    char folder[SCRATCH_PATH];
    scratch_create(folder);
    write_kernel(folder, "main.cl", "#include \"a.clh\"\nlast\n");
    write_kernel(folder, "a.clh", "in a\n");
    for (; status != CLMGK_OK && budget < 1000; ++budget) {
        counting counts = {.budget = budget};
        const clmgk_allocator allocator = {.allocate = count_allocate, .release = count_release, .user = &counts};
        mgk_text source = {.allocator = &allocator};
        status = mgk_source_expand(folder, "main.cl", "", NULL, &source, NULL);
        assert_true(status == CLMGK_OK || status == CLMGK_ERROR_OUT_OF_HOST_MEMORY);
        mgk_text_free(&source);
        assert_int_equal(counts.live, 0);
    }
    assert_int_equal(status, CLMGK_OK);
    assert_true(budget > 5);
    scratch_remove(folder);
}
