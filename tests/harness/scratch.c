/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void scratch_join(char path[SCRATCH_PATH], const char *folder, const char *name)
{
    const int length = snprintf(path, SCRATCH_PATH, "%s/%s", folder, name);
    assert_in_range(length, 1, SCRATCH_PATH - 1);
}

void scratch_create(char path[SCRATCH_PATH])
{
    const char *const root = getenv("TMPDIR");
    scratch_join(path, root != NULL && root[0] == '/' ? root : "/tmp", "clmgk-test-XXXXXX");
    assert_non_null(mkdtemp(path));
}

static int is_dots(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

void scratch_remove(const char *path)
{
    struct stat facts;
    if (lstat(path, &facts) != 0)
        return;
    if (!S_ISDIR(facts.st_mode)) {
        assert_int_equal(unlink(path), 0);
        return;
    }
    assert_int_equal(chmod(path, S_IRWXU), 0);
    DIR *const folder = opendir(path);
    assert_non_null(folder);
    for (const struct dirent *item = readdir(folder); item != NULL; item = readdir(folder)) {
        char inner[SCRATCH_PATH];
        if (is_dots(item->d_name))
            continue;
        scratch_join(inner, path, item->d_name);
        scratch_remove(inner);
    }
    closedir(folder);
    assert_int_equal(rmdir(path), 0);
}

int scratch_tear_down(void **state)
{
    char *const root = *state;
    scratch_remove(root);
    free(root);
    return 0;
}

void scratch_write(const char *path, const void *data, size_t length)
{
    char folder[SCRATCH_PATH];
    scratch_join(folder, path, "");
    for (char *slash = strchr(folder + 1, '/'); slash && slash[1] != '\0'; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(folder, S_IRWXU);
        *slash = '/';
    }
    FILE *const file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
}

char *scratch_read(const char *path, size_t *length)
{
    struct stat facts;
    assert_int_equal(stat(path, &facts), 0);
    char *const data = malloc((size_t)facts.st_size + 1);
    FILE *const file = fopen(path, "rb");
    assert_non_null(data);
    assert_non_null(file);
    *length = fread(data, 1, (size_t)facts.st_size, file);
    assert_int_equal(*length, facts.st_size);
    fclose(file);
    data[*length] = '\0';
    return data;
}

size_t scratch_count(const char *folder, const char *part, char first[SCRATCH_PATH])
{
    size_t count = 0;
    DIR *const stream = opendir(folder);
    assert_non_null(stream);
    for (const struct dirent *item = readdir(stream); item != NULL; item = readdir(stream)) {
        if (is_dots(item->d_name) || strstr(item->d_name, part) == NULL)
            continue;
        if (count++ == 0 && first != NULL)
            scratch_join(first, folder, item->d_name);
    }
    closedir(stream);
    return count;
}
