/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of kernel parameters and their values. */
#include "tuning/tunables.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

mgk_tunables mgk_tunables_of(const mgk_tunable_table *table)
{
    return (mgk_tunables){.name = table->name, .table = table};
}

size_t mgk_tunables_count(const mgk_tunables *tunables)
{
    return tunables->table->count + (tunables->added != NULL ? tunables->added->count : 0);
}

const mgk_tunable *mgk_tunables_at(const mgk_tunables *tunables, size_t i)
{
    const size_t of_table = tunables->table->count;
    return i < of_table ? &tunables->table->tunables[i] : &tunables->added->tunables[i - of_table];
}

static const clmgk_tunable *tunable_at(const mgk_tunables *tunables, size_t i)
{
    return &mgk_tunables_at(tunables, i)->shown;
}

bool mgk_tunable_is_unused(const mgk_tunables *tunables, size_t index)
{
    const char *const *const unused = tunables->added != NULL ? tunables->added->unused : NULL;
    bool found = false;
    for (size_t i = 0; unused != NULL && unused[i] != NULL; ++i)
        found = found || strcmp(unused[i], tunable_at(tunables, index)->name) == 0;
    return found;
}

/* True if `given`, of an identifier or a name, stands for `shown`, of a name. */
static bool is_same(char given, char shown)
{
    return given == shown || (given == '_' && shown == '-');
}

static bool has_name(const clmgk_tunable *tunable, mgk_tunable_name name)
{
    const char *const shown = tunable->name;
    size_t i = 0;
    while (shown[i] != '\0' && is_same(name.text[i], shown[i]))
        ++i;
    return shown[i] == '\0' && name.text[i] == '\0';
}

size_t mgk_tunable_index(const mgk_tunables *tunables, mgk_tunable_name name)
{
    const size_t count = mgk_tunables_count(tunables);
    size_t i = 0;
    while (i < count && !has_name(tunable_at(tunables, i), name))
        ++i;
    return i < count ? i : MGK_MAX_TUNABLES;
}

int mgk_tunable_get(const mgk_tunables *tunables, mgk_tunable_name name)
{
    return tunables->value[mgk_tunable_index(tunables, name)];
}

bool mgk_tunable_is_default(const mgk_tunables *tunables, mgk_tunable_name name)
{
    return tunables->origin[mgk_tunable_index(tunables, name)] == MGK_ORIGIN_DEFAULT;
}

static int base_of(const clmgk_tunable *tunable, clmgk_device_class device_class)
{
    return device_class == CLMGK_DEVICE_CPU ? tunable->cpu_default : tunable->gpu_default;
}

int mgk_tunable_base(const mgk_tunables *tunables, mgk_tunable_name name, clmgk_device_class device_class)
{
    const size_t i = mgk_tunable_index(tunables, name);
    return i < MGK_MAX_TUNABLES ? base_of(tunable_at(tunables, i), device_class) : 0;
}

void mgk_tunables_begin(mgk_tunables *tunables, clmgk_device_class device_class)
{
    for (size_t i = 0; i < mgk_tunables_count(tunables); ++i)
        if (tunables->origin[i] == MGK_ORIGIN_DEFAULT)
            tunables->value[i] = base_of(tunable_at(tunables, i), device_class);
}

void mgk_tunable_default(mgk_tunables *tunables, mgk_tunable_name name, int value)
{
    const size_t i = mgk_tunable_index(tunables, name);
    if (i < MGK_MAX_TUNABLES && tunables->origin[i] == MGK_ORIGIN_DEFAULT)
        tunables->value[i] = value;
}

void mgk_tunable_at_most(mgk_tunables *tunables, mgk_tunable_name name, int value)
{
    const size_t i = mgk_tunable_index(tunables, name);
    if (tunables->origin[i] == MGK_ORIGIN_NEAR && tunables->value[i] > value)
        tunables->value[i] = value;
}

static bool allowed(const clmgk_tunable *tunable, long value)
{
    for (size_t i = 0; i < tunable->value_count; ++i)
        if (tunable->values[i] == value)
            return true;
    return false;
}

/* Fails with a message that lists the tunable's values. */
static clmgk_status fail_value(const clmgk_tunable *tunable, const char *item, size_t length, clmgk_error *error)
{
    mgk_text values = {0};
    for (size_t i = 0; i < tunable->value_count; ++i)
        mgk_text_printf(&values, "%s%d", i == 0 ? "" : ", ", (int)tunable->values[i]);
    const clmgk_status status = mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "parameters: \"%.*s\": expected one of %s",
                                         (int)length, item, values.data != NULL ? values.data : "its values");
    mgk_text_free(&values);
    return status;
}

/* Fails with a message that lists the tunables. */
static clmgk_status fail_name(const mgk_tunables *tunables, const char *item, size_t length, clmgk_error *error)
{
    mgk_text names = {0};
    for (size_t i = 0; i < mgk_tunables_count(tunables); ++i)
        mgk_text_printf(&names, "%s%s", i == 0 ? "" : ", ", tunable_at(tunables, i)->name);
    const clmgk_status status = mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                                         "parameters: \"%.*s\": expected name=value with a name of \"%s\": %s",
                                         (int)length, item, tunables->name, names.data != NULL ? names.data : "");
    mgk_text_free(&names);
    return status;
}

/* Reads "name=value" from the `length` characters at `item`. */
static clmgk_status read_item(mgk_tunables *tunables, const char *item, size_t length, mgk_origin origin,
                              clmgk_error *error)
{
    const char *const equals = memchr(item, '=', length);
    for (size_t i = 0; equals != NULL && i < mgk_tunables_count(tunables); ++i) {
        const clmgk_tunable *const tunable = tunable_at(tunables, i);
        const size_t name_length = (size_t)(equals - item);
        if (strlen(tunable->name) != name_length || memcmp(tunable->name, item, name_length) != 0)
            continue;
        char *end = NULL;
        const long value = strtol(equals + 1, &end, 10);
        if (end != item + length || end == equals + 1 || !allowed(tunable, value))
            return fail_value(tunable, item, length, error);
        const bool by_shape = tunable->cpu_default == 0 && tunable->gpu_default == 0;
        if (by_shape && origin == MGK_ORIGIN_NEAR)
            return CLMGK_OK;
        tunables->value[i] = (int32_t)value;
        tunables->origin[i] = origin;
        return CLMGK_OK;
    }
    return fail_name(tunables, item, length, error);
}

/* True if an item before `item` in the list has the name of the `length` characters there. */
static bool is_repeated(const char *text, const char *item, size_t length)
{
    const char *const equals = memchr(item, '=', length);
    for (const char *at = text; equals != NULL && at < item; at += strcspn(at, ",") + 1)
        if (strncmp(at, item, (size_t)(equals - item) + 1) == 0)
            return true;
    return false;
}

static clmgk_status read_text(mgk_tunables *tunables, const char *text, mgk_origin origin, clmgk_error *error)
{
    for (const char *item = text; item != NULL && *item != '\0';) {
        const size_t length = strcspn(item, ",");
        MGK_TRY(read_item(tunables, item, length, origin, error));
        if (is_repeated(text, item, length))
            return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "parameters: \"%.*s\": expected each name once",
                            (int)length, item);
        item += length + (item[length] == ',' ? 1 : 0);
    }
    return CLMGK_OK;
}

clmgk_status mgk_tunables_read(mgk_tunables *tunables, const mgk_parameters *parameters, clmgk_error *error)
{
    MGK_TRY(read_text(tunables, parameters->followed, MGK_ORIGIN_TUNED, error));
    return read_text(tunables, parameters->text, parameters->origin, error);
}

void mgk_tunables_options(const mgk_tunables *tunables, mgk_text *text)
{
    for (size_t i = 0; i < mgk_tunables_count(tunables); ++i)
        if (mgk_tunables_at(tunables, i)->macro != NULL)
            mgk_text_printf(text, " -D%s=%d", mgk_tunables_at(tunables, i)->macro, (int)tunables->value[i]);
}

void mgk_tunables_print(const mgk_tunables *tunables, mgk_text *text)
{
    for (size_t i = 0; i < mgk_tunables_count(tunables); ++i)
        mgk_text_printf(text, "%s%s=%d", i == 0 ? "" : ",", tunable_at(tunables, i)->name, (int)tunables->value[i]);
}

/* ---- constraints --------------------------------------------------------------------------------------------- */

static bool is_word(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

/* True if the expression contains the tunable's name (with _ for -). */
static bool mentions(const char *expression, const char *name)
{
    const size_t length = strlen(name);
    for (const char *at = expression; *at != '\0';) {
        size_t word = 0;
        while (is_word(at[word]))
            ++word;
        size_t same = 0;
        while (same < word && same < length && is_same(at[same], name[same]))
            ++same;
        if (word > 0 && word == length && same == length)
            return true;
        at += word > 0 ? word : 1;
    }
    return false;
}

/* True if no tunable of the constraint has its default. */
static bool is_given(const mgk_tunables *tunables, const char *constraint)
{
    for (size_t i = 0; i < mgk_tunables_count(tunables); ++i)
        if (tunables->origin[i] == MGK_ORIGIN_DEFAULT && mentions(constraint, tunable_at(tunables, i)->name))
            return false;
    return true;
}

static clmgk_status fail_constraint(const mgk_tunables *tunables, const char *constraint, clmgk_error *error)
{
    mgk_text values = {0};
    for (size_t i = 0; i < mgk_tunables_count(tunables); ++i)
        if (mentions(constraint, tunable_at(tunables, i)->name))
            mgk_text_printf(&values, "%s%s=%d", values.length == 0 ? "" : ",", tunable_at(tunables, i)->name,
                            (int)tunables->value[i]);
    const clmgk_status status = mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "parameters: \"%s\": expected %s",
                                         values.data != NULL ? values.data : "", constraint);
    mgk_text_free(&values);
    return status;
}

clmgk_status mgk_tunables_check(const mgk_tunables *tunables, bool complete, clmgk_error *error)
{
    const mgk_tunable_table *const table = tunables->table;
    int32_t values[MGK_MAX_TUNABLES];
    /* expressions may divide by values that are not given */
    for (size_t i = 0; i < table->count; ++i) {
        const bool given = complete || tunables->origin[i] != MGK_ORIGIN_DEFAULT;
        values[i] =
            given ? tunables->value[i] : table->tunables[i].shown.values[table->tunables[i].shown.value_count - 1];
    }
    for (size_t i = 0; i < table->constraint_count; ++i)
        if ((complete || is_given(tunables, table->constraints[i])) && !table->holds(i, values))
            return fail_constraint(tunables, table->constraints[i], error);
    return CLMGK_OK;
}
