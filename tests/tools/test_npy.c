/* SPDX-License-Identifier: Apache-2.0 */
/* The .npy reader and writer from inside: damaged headers by the thousand, round trips. */
#include "harness/harness.h"
#include "npy.h"

#include <stdlib.h>
#include <string.h>

static const char good[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n";

/* A version 1 header with `text`. */
static size_t make_header(const char *text, unsigned char bytes[256])
{
    static const unsigned char version_1[] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0};
    const int length = snprintf((char *)bytes + 10, 246, "%s", text);
    memcpy(bytes, version_1, sizeof version_1);
    bytes[8] = (unsigned char)length;
    bytes[9] = 0;
    return (size_t)length + 10;
}

TH_HOST_TEST(parses_what_numpy_writes)
{
    unsigned char bytes[256];
    npy_header header;
    const size_t length = make_header(good, bytes);
    assert_null(npy_parse_header(bytes, length, &header));
    assert_int_equal(header.type, NPY_F32);
    assert_false(header.big_endian);
    assert_false(header.fortran_order);
    assert_int_equal(header.axes, 2);
    assert_int_equal(header.shape[0], 2);
    assert_int_equal(header.shape[1], 3);
    assert_int_equal(header.count, 6);
    assert_int_equal(header.start, length);
}

TH_HOST_TEST(parses_other_orders_and_spaces)
{
    unsigned char bytes[256];
    npy_header header;
    const size_t length = make_header("{\"shape\":(7,),'fortran_order' :True ,\t'descr':'>i8'}   \n", bytes);
    assert_null(npy_parse_header(bytes, length, &header));
    assert_int_equal(header.type, NPY_I64);
    assert_true(header.big_endian);
    assert_true(header.fortran_order);
    assert_int_equal(header.axes, 1);
    assert_int_equal(header.count, 7);

    const size_t of_python_2 = make_header("{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 3L), }\n", bytes);
    assert_null(npy_parse_header(bytes, of_python_2, &header));
    assert_int_equal(header.axes, 2);
    assert_int_equal(header.count, 6);
}

/* Every beginning of a header is refused, and nothing beyond the given bytes is read. */
TH_HOST_TEST(refuses_every_beginning)
{
    unsigned char bytes[256];
    npy_header header;
    const size_t length = make_header(good, bytes);
    for (size_t part = 0; part < length; part++) {
        unsigned char *const exact = malloc(part + 1); /* at its very end: a sanitizer sees overruns */
        assert_non_null(exact);
        memcpy(exact + 1, bytes, part);
        assert_non_null(npy_parse_header(exact + 1, part, &header));
        free(exact);
    }
}

/* A small generator: equal numbers everywhere. */
static uint32_t draw(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33);
}

/* Whatever passes describes an array that a file can hold. */
TH_HOST_TEST(survives_damage)
{
    static const char alphabet[] = "{}()'\",: <>=|fiO0123456789TrueFals\0\\[]descrshape";
    uint64_t seed = 1;
    int accepted = 0;
    for (int trial = 0; trial < 200000; trial++) {
        unsigned char bytes[256];
        npy_header header;
        const size_t length = make_header(good, bytes);
        const uint32_t changes = 1 + draw(&seed) % 4;
        for (uint32_t change = 0; change < changes; change++)
            bytes[draw(&seed) % length] = (unsigned char)alphabet[draw(&seed) % (sizeof alphabet - 1)];
        if (npy_parse_header(bytes, length, &header))
            continue;
        accepted++;
        assert_in_range(header.axes, 0, NPY_MAX_AXES);
        assert_true(header.start <= length);
        uint64_t count = 1;
        for (int axis = 0; axis < header.axes; axis++) {
            assert_true(header.shape[axis] >= 0);
            count *= (uint64_t)header.shape[axis];
        }
        assert_int_equal(header.count, count);
        assert_true(header.count <= (uint64_t)INT64_MAX / npy_type_size(header.type));
    }
    assert_in_range(accepted, 1, 199999); /* both happen */
}

/* Eight axes of two write a header and elements that read back the same. */
TH_HOST_TEST(round_trip)
{
    char path[] = "test_npy_XXXXXX";
    const int64_t shape[NPY_MAX_AXES] = {2, 2, 2, 2, 2, 2, 2, 2};
    float values[256];
    float back[256] = {0};
    tool_error error = {.message = ""};
    npy_file file;
    for (int i = 0; i < 256; i++)
        values[i] = (float)i / 3.0f;
    const int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    FILE *const stream = fdopen(descriptor, "wb");
    assert_non_null(stream);
    assert_int_equal(npy_write_header(stream, path, NPY_MAX_AXES, shape, &error), TOOL_DONE);
    assert_int_equal(npy_write(stream, path, CLMGK_DTYPE_F32, values, 256, &error), TOOL_DONE);
    assert_int_equal(fclose(stream), 0);
    assert_int_equal(npy_open("q", path, &file, &error), TOOL_DONE);
    assert_int_equal(file.header.axes, NPY_MAX_AXES);
    assert_int_equal(npy_read(&file, CLMGK_DTYPE_F32, back, &error), TOOL_DONE);
    npy_close(&file);
    assert_int_equal(remove(path), 0);
    assert_memory_equal(values, back, sizeof values);
}
