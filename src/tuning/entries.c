/* SPDX-License-Identifier: Apache-2.0 */
#include "tuning/entries.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VERSION_WORD "clmgk-tuning"

enum { MAX_LINE = 4096, MAX_WORDS = 12, MAX_AXIS = 62 };

void mgk_tuning_set_free(mgk_tuning_set *set)
{
    mgk_free(set->allocator, set->devices);
    mgk_free(set->allocator, set->entries);
    *set = (mgk_tuning_set){.allocator = set->allocator};
}

/* ---- devices ------------------------------------------------------------------------------------------------- */

/* Bytes of the character that a text begins with; 0: it is not UTF-8. */
static size_t character_size(const char *text)
{
    const unsigned char *const c = (const unsigned char *)text;
    const bool lead = c[0] >= 0xc2 && c[0] < 0xf5;
    const size_t size = c[0] < 0x80 ? 1 : !lead ? 0 : c[0] < 0xe0 ? 2 : c[0] < 0xf0 ? 3 : 4;
    for (size_t i = 1; i < size; ++i)
        if ((c[i] & 0xc0) != 0x80)
            return 0;
    const bool overlong = (c[0] == 0xe0 && c[1] < 0xa0) || (c[0] == 0xf0 && c[1] < 0x90);
    const bool beyond = (c[0] == 0xed && c[1] >= 0xa0) || (c[0] == 0xf4 && c[1] >= 0x90);
    return overlong || beyond ? 0 : size;
}

static bool is_control(char c)
{
    return (unsigned char)c < ' ' || c == 0x7f;
}

/* A copy that fits in a line of the file: spaces replace control characters, and ? what is not UTF-8. */
static void copy_text(char *target, size_t size, const char *source)
{
    size_t used = 0;
    while (*source != '\0') {
        const size_t whole = character_size(source), step = whole > 0 ? whole : 1;
        if (used + step >= size)
            break;
        if (whole == 0)
            target[used] = '?';
        else if (is_control(*source))
            target[used] = ' ';
        else
            memcpy(target + used, source, whole);
        source += step;
        used += step;
    }
    target[used] = '\0';
}

mgk_tuning_device mgk_tuning_device_of(const mgk_device_facts *facts)
{
    mgk_tuning_device device = {.device_class = facts->info.device_class, .compute_units = facts->info.compute_units};
    copy_text(device.name, sizeof(device.name), facts->info.name);
    copy_text(device.platform, sizeof(device.platform), facts->info.platform);
    copy_text(device.driver, sizeof(device.driver), facts->info.driver);
    copy_text(device.vendor, sizeof(device.vendor), facts->info.vendor);
    copy_text(device.architecture, sizeof(device.architecture), facts->info.architecture);
    return device;
}

bool mgk_tuning_same_device(const mgk_tuning_device *a, const mgk_tuning_device *b)
{
    return a->compute_units == b->compute_units && strcmp(a->name, b->name) == 0 &&
           strcmp(a->platform, b->platform) == 0 && strcmp(a->driver, b->driver) == 0 &&
           strcmp(a->architecture, b->architecture) == 0;
}

static clmgk_status put_device(mgk_tuning_set *set, const mgk_tuning_device *device, size_t *index, clmgk_error *error)
{
    for (*index = 0; *index < set->device_count; ++*index)
        if (mgk_tuning_same_device(&set->devices[*index], device))
            return CLMGK_OK;
    void *list = set->devices;
    if (!mgk_grow(set->allocator, &list, &set->device_capacity, set->device_count, sizeof(*device)))
        return mgk_fail_memory(error, "the devices of the tuning cache");
    set->devices = list;
    set->devices[set->device_count++] = *device;
    return CLMGK_OK;
}

/* ---- entries ------------------------------------------------------------------------------------------------- */

static void hash_entry(const mgk_tuning_set *set, mgk_tuning_entry *entry)
{
    mgk_text text = {0};
    const mgk_tuning_device *const device = &set->devices[entry->device];
    mgk_text_printf(&text, "%s\n%s\n%s\n%" PRIu32 "\n%s\n", device->name, device->platform, device->driver,
                    device->compute_units, entry->operation);
    mgk_tuning_print_bucket(entry, &text);
    /* without memory all hashes are 0 and entries are compared in full */
    entry->hash = text.failed ? 0 : mgk_hash_bytes(text.data, text.length).low;
    mgk_text_free(&text);
}

static bool same_axes(const mgk_tuning_entry *a, const mgk_tuning_entry *b)
{
    bool same = a->axes == b->axes;
    for (size_t i = 0; same && i < a->axes; ++i)
        same = a->axis[i].value == b->axis[i].value && strcmp(a->axis[i].name, b->axis[i].name) == 0;
    return same;
}

static bool same_place(const mgk_tuning_entry *a, const mgk_tuning_entry *b)
{
    const bool hashes = a->hash == b->hash || a->hash == 0 || b->hash == 0;
    return hashes && a->device == b->device && a->shipped == b->shipped && strcmp(a->operation, b->operation) == 0 &&
           strcmp(a->exact, b->exact) == 0 && same_axes(a, b);
}

static bool is_line(const char *text)
{
    for (size_t size; *text != '\0'; text += size) {
        size = character_size(text);
        if (size == 0 || is_control(*text))
            return false;
    }
    return true;
}

static clmgk_status take_text(char *target, size_t size, const char *source, const char *name, clmgk_error *error)
{
    if (strlen(source) >= size || !is_line(source))
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: \"%.64s\": expected a line of less than %zu bytes", name,
                        source, size);
    memcpy(target, source, strlen(source) + 1);
    return CLMGK_OK;
}

static clmgk_status take_time(uint64_t *nanoseconds, double milliseconds, const char *name, clmgk_error *error)
{
    if (!(milliseconds > 0.0 && milliseconds < 1e11))
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: %g: expected a time above 0", name, milliseconds);
    *nanoseconds = milliseconds < 1e-6 ? 1 : (uint64_t)(milliseconds * 1e6 + 0.5);
    return CLMGK_OK;
}

clmgk_status mgk_tuning_entry_of(const mgk_tuning_key *key, const clmgk_tuned *tuned, mgk_tuning_entry *entry,
                                 clmgk_error *error)
{
    *entry = (mgk_tuning_entry){.axes = key->axes};
    MGK_TRY(take_text(entry->operation, sizeof(entry->operation), key->operation, "operation", error));
    MGK_TRY(take_text(entry->exact, sizeof(entry->exact), key->exact, "bucket", error));
    for (size_t i = 0; i < key->axes; ++i) {
        MGK_TRY(take_text(entry->axis[i].name, sizeof(entry->axis[i].name), key->axis[i].name, "axis", error));
        entry->axis[i].value = key->axis[i].value;
    }
    const char *const parameters = tuned->parameters != NULL ? tuned->parameters : "";
    MGK_TRY(take_text(entry->choice, sizeof(entry->choice), tuned->choice, "choice", error));
    MGK_TRY(take_text(entry->parameters, sizeof(entry->parameters), parameters, "parameters", error));
    MGK_TRY(take_time(&entry->time_ns, tuned->time_ms, "time_ms", error));
    return take_time(&entry->default_ns, tuned->default_ms, "default_ms", error);
}

clmgk_status mgk_tuning_set_put(mgk_tuning_set *set, const mgk_tuning_device *device, const mgk_tuning_entry *entry,
                                bool replace, bool *taken, clmgk_error *error)
{
    mgk_tuning_entry placed = *entry;
    bool ignored, *const changed = taken != NULL ? taken : &ignored;
    *changed = false;
    MGK_TRY(put_device(set, device, &placed.device, error));
    hash_entry(set, &placed);
    for (size_t i = 0; i < set->count; ++i) {
        if (!same_place(&set->entries[i], &placed))
            continue;
        *changed = replace || strcmp(placed.date, set->entries[i].date) > 0;
        if (*changed)
            set->entries[i] = placed;
        return CLMGK_OK;
    }
    void *list = set->entries;
    if (!mgk_grow(set->allocator, &list, &set->capacity, set->count, sizeof(placed)))
        return mgk_fail_memory(error, "the entries of the tuning cache");
    set->entries = list;
    set->entries[set->count++] = placed;
    *changed = true;
    return CLMGK_OK;
}

/* ---- words of a line ----------------------------------------------------------------------------------------- */

typedef struct word {
    const char *name;
    const char *value;
    bool used;
} word;

/* A line during reading: its text is changed in place. */
typedef struct line_words {
    word words[MAX_WORDS];
    size_t count;
    const char *wrong; /* why the line is invalid; NULL: valid so far */
} line_words;

/* Removes a value's quotes and backslashes and moves *at behind the value; false if the closing quote is missing. */
static bool unquote(char **at, const char **value)
{
    const char *from = *at + 1;
    char *to = *at;
    *value = to;
    while (*from != '\0' && *from != '"') {
        if (*from == '\\' && from[1] != '\0')
            ++from;
        *to++ = *from++;
    }
    if (*from != '"')
        return false;
    *at = (char *)from + 1;
    *to = '\0';
    return true;
}

/* "name=value", the value with or without quotes. */
static bool read_word(char **at, word *read)
{
    char *const equals = *at + strcspn(*at, "= \"");
    if (*equals != '=' || equals == *at)
        return false;
    *equals = '\0';
    read->name = *at;
    *at = equals + 1;
    if (**at == '"')
        return unquote(at, &read->value) && (**at == ' ' || **at == '\0');
    char *const end = *at + strcspn(*at, " \"");
    const bool good = end != *at && *end != '"';
    read->value = *at;
    *at = end;
    return good;
}

static void read_words(char *at, line_words *line)
{
    while (line->wrong == NULL && *at != '\0') {
        if (line->count == MAX_WORDS) {
            line->wrong = "too many words";
        } else if (!read_word(&at, &line->words[line->count])) {
            line->wrong = "expected name=value words";
        } else {
            ++line->count;
            if (*at == ' ')
                *at++ = '\0';
        }
    }
}

/* The value of a word; a missing or repeated word makes the line invalid. */
static const char *take_word(line_words *line, const char *name)
{
    const char *found = NULL;
    for (size_t i = 0; i < line->count; ++i) {
        if (strcmp(line->words[i].name, name) != 0)
            continue;
        if (found != NULL)
            line->wrong = "a word is given twice";
        found = line->words[i].value;
        line->words[i].used = true;
    }
    if (found == NULL && line->wrong == NULL)
        line->wrong = "a word is missing";
    return found != NULL ? found : "";
}

static void word_text(line_words *line, const char *name, char *target, size_t size)
{
    const char *const value = take_word(line, name);
    if (line->wrong == NULL && strlen(value) >= size)
        line->wrong = "a text is too long";
    else if (line->wrong == NULL)
        memcpy(target, value, strlen(value) + 1);
}

static uint64_t word_number(line_words *line, const char *name, uint64_t least, uint64_t most)
{
    const char *const value = take_word(line, name);
    const size_t digits = strspn(value, "0123456789");
    const uint64_t number = digits > 0 && digits < 19 ? strtoull(value, NULL, 10) : UINT64_MAX;
    if (line->wrong == NULL && (value[digits] != '\0' || number < least || number > most))
        line->wrong = "a number is out of range";
    return number;
}

static void no_other_word(line_words *line)
{
    for (size_t i = 0; i < line->count; ++i)
        if (line->wrong == NULL && !line->words[i].used)
            line->wrong = "a word is unknown";
}

/* ---- reading ------------------------------------------------------------------------------------------------- */

static const char *const class_names[] = {"cpu", "gpu", "other"};

/* A device line's number and its device. */
typedef struct numbered_device {
    uint64_t id;
    mgk_tuning_device device;
} numbered_device;

typedef struct reader {
    mgk_tuning_set *set;
    bool shipped;
    bool versioned;
    mgk_tuning_reading *reading;
    numbered_device *devices;
    size_t count;
    size_t capacity;
    size_t line; /* number of the current line, from 1 */
} reader;

static void word_class(line_words *line, mgk_tuning_device *device)
{
    const char *const name = take_word(line, "class");
    size_t i = 0;
    while (i < MGK_COUNT(class_names) && strcmp(class_names[i], name) != 0)
        ++i;
    if (i < MGK_COUNT(class_names))
        device->device_class = (clmgk_device_class)i;
    else if (line->wrong == NULL)
        line->wrong = "the class is unknown";
}

static clmgk_status read_device(reader *r, line_words *line, clmgk_error *error)
{
    numbered_device read = {.id = word_number(line, "id", 0, UINT32_MAX)};
    mgk_tuning_device *const device = &read.device;
    word_text(line, "name", device->name, sizeof(device->name));
    word_text(line, "platform", device->platform, sizeof(device->platform));
    word_text(line, "driver", device->driver, sizeof(device->driver));
    word_text(line, "vendor", device->vendor, sizeof(device->vendor));
    word_class(line, device);
    device->compute_units = (uint32_t)word_number(line, "units", 0, UINT32_MAX);
    word_text(line, "architecture", device->architecture, sizeof(device->architecture));
    no_other_word(line);
    for (size_t i = 0; i < r->count; ++i)
        if (line->wrong == NULL && r->devices[i].id == read.id)
            line->wrong = "the id is given twice";
    if (line->wrong != NULL)
        return CLMGK_OK;
    void *list = r->devices;
    if (!mgk_grow(r->set->allocator, &list, &r->capacity, r->count, sizeof(read)))
        return mgk_fail_memory(error, "the devices of the tuning cache");
    r->devices = list;
    r->devices[r->count++] = read;
    return CLMGK_OK;
}

/* Takes a key's next word, "name=value", from *at, which moves behind the following space, or to the end; returns the
 * length of its name. 0: there is no word. */
static size_t take_key_word(const char **at, const char **value)
{
    const size_t name = strspn(*at, "abcdefghijklmnopqrstuvwxyz_-0123456789");
    if (name == 0 || (*at)[name] != '=')
        return 0;
    *value = *at + name + 1;
    const size_t length = strcspn(*value, "= ");
    const char *const end = *value + length;
    const bool last = end[0] == '\0', more = end[0] == ' ' && end[1] != '\0';
    *at = more ? end + 1 : end;
    return length > 0 && (last || more) ? name : 0;
}

/* True if a word of this name stands in a key before `end`. */
static bool has_key_word(const char *key, const char *end, const char *name, size_t length)
{
    for (const char *at = key, *value; at < end;)
        if (take_key_word(&at, &value) == length && strncmp(value - length - 1, name, length) == 0)
            return true;
    return false;
}

/* "variant=mgk dtype=f32 ...": words, each once. */
static void check_exact(line_words *line, const char *exact)
{
    const char *at = exact, *value;
    bool good = *at != '\0';
    while (good && *at != '\0') {
        const char *const first = at;
        const size_t name = take_key_word(&at, &value);
        good = name > 0 && !has_key_word(exact, first, first, name);
    }
    if (line->wrong == NULL && !good)
        line->wrong = "bucket: expected \"name=value ...\", each name once";
}

/* The value of an axis; -1: it is none. */
static int axis_value(const char *text)
{
    const size_t digits = strspn(text, "0123456789");
    const int value = digits > 0 && digits < 4 ? (int)strtol(text, NULL, 10) : -1;
    return (text[digits] == ' ' || text[digits] == '\0') && value <= MAX_AXIS ? value : -1;
}

/* "rows=12 keys=12 tasks=3"; "*": none. */
static void read_axes(line_words *line, const char *near, mgk_tuning_entry *entry)
{
    const char *at = near, *value = "";
    bool good = *near != '\0';
    while (good && strcmp(near, "*") != 0 && *at != '\0') {
        const char *const first = at;
        const size_t name = take_key_word(&at, &value);
        good = name > 0 && name < sizeof(entry->axis[0].name) && entry->axes < MGK_TUNING_AXES &&
               axis_value(value) >= 0 && !has_key_word(near, first, first, name);
        if (!good)
            break;
        memcpy(entry->axis[entry->axes].name, first, name);
        entry->axis[entry->axes++].value = axis_value(value);
    }
    if (line->wrong == NULL && !good)
        line->wrong = "near: expected \"axis=number ...\", each axis once, or \"*\"";
}

/* True if a text of the form YYYY-MM-DDThh:mm:ssZ is a time of the calendar; some systems count leap seconds. */
static bool is_time(const char *text)
{
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    enum { MONTH = 5, DAY = 8, HOUR = 11, MINUTE = 14, SECOND = 17 }; /* where they begin */
    const long year = strtol(text, NULL, 10), month = strtol(text + MONTH, NULL, 10);
    const long day = strtol(text + DAY, NULL, 10), hour = strtol(text + HOUR, NULL, 10);
    const long minute = strtol(text + MINUTE, NULL, 10), second = strtol(text + SECOND, NULL, 10);
    const bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    if (month < 1 || month > 12 || day < 1 || day > days[month - 1] + (leap && month == 2))
        return false;
    return hour < 24 && minute < 60 && second <= 60;
}

static void word_date(line_words *line, char *target, size_t size)
{
    static const char form[] = "dddd-dd-ddTdd:dd:ddZ";
    word_text(line, "date", target, size);
    bool good = line->wrong == NULL && strlen(target) == sizeof(form) - 1;
    for (size_t i = 0; good && form[i] != '\0'; ++i)
        good = form[i] == 'd' ? target[i] >= '0' && target[i] <= '9' : target[i] == form[i];
    if (line->wrong == NULL && !(good && is_time(target)))
        line->wrong = "date: expected YYYY-MM-DDThh:mm:ssZ";
}

static clmgk_status read_entry(reader *r, line_words *line, clmgk_error *error)
{
    mgk_tuning_entry entry = {.shipped = r->shipped, .line = r->line};
    const uint64_t id = word_number(line, "device", 0, UINT32_MAX);
    const mgk_tuning_device *device = NULL;
    for (size_t i = 0; i < r->count; ++i)
        if (r->devices[i].id == id)
            device = &r->devices[i].device;
    word_date(line, entry.date, sizeof(entry.date));
    word_text(line, "operation", entry.operation, sizeof(entry.operation));
    word_text(line, "choice", entry.choice, sizeof(entry.choice));
    word_text(line, "parameters", entry.parameters, sizeof(entry.parameters));
    entry.time_ns = word_number(line, "time_ns", 1, UINT64_MAX / 2);
    entry.default_ns = word_number(line, "default_ns", 1, UINT64_MAX / 2);
    word_text(line, "bucket", entry.exact, sizeof(entry.exact));
    check_exact(line, entry.exact);
    read_axes(line, take_word(line, "near"), &entry);
    no_other_word(line);
    if (line->wrong == NULL && device == NULL)
        line->wrong = "no device line has this number";
    return line->wrong != NULL ? CLMGK_OK : mgk_tuning_set_put(r->set, device, &entry, false, NULL, error);
}

/* True if the line begins with the word `kind`; *rest is the text after it. */
static bool begins(char *text, const char *kind, char **rest)
{
    const size_t length = strlen(kind);
    *rest = text + length + 1;
    return strncmp(text, kind, length) == 0 && text[length] == ' ';
}

static void read_version(reader *r, const char *number, line_words *line)
{
    const size_t digits = strspn(number, "0123456789");
    if (digits == 0 || digits > 9 || number[digits] != '\0' || r->versioned)
        line->wrong = "expected \"" VERSION_WORD " 1\", once";
    else if (strtol(number, NULL, 10) != MGK_TUNING_FORMAT)
        r->reading->newer = true;
    r->versioned = true;
}

static clmgk_status read_line(reader *r, char *text, line_words *line, clmgk_error *error)
{
    char *rest = NULL;
    if (text[0] == '\0' || text[0] == '#')
        return CLMGK_OK;
    if (!is_line(text)) {
        line->wrong = "a character is not printable, or not UTF-8";
        return CLMGK_OK;
    }
    if (begins(text, VERSION_WORD, &rest)) {
        read_version(r, rest, line);
        return CLMGK_OK;
    }
    const bool device = begins(text, "device", &rest);
    if (!device && !begins(text, "entry", &rest)) {
        line->wrong = "expected \"" VERSION_WORD "\", \"device\" or \"entry\"";
        return CLMGK_OK;
    }
    read_words(rest, line);
    return device ? read_device(r, line, error) : read_entry(r, line, error);
}

static void note_damage(const reader *r, const char *wrong)
{
    mgk_tuning_reading *const reading = r->reading;
    if (reading->damaged++ == 0)
        snprintf(reading->message, sizeof(reading->message), "line %zu: %s", r->line, wrong);
}

static clmgk_status read_lines(reader *r, const char *text, size_t length, clmgk_error *error)
{
    char copy[MAX_LINE];
    for (size_t at = 0; at < length && !r->reading->newer;) {
        ++r->line;
        const char *const end = memchr(text + at, '\n', length - at);
        const size_t size = end != NULL ? (size_t)(end - text) - at : length - at;
        line_words line = {.wrong = size >= sizeof(copy) ? "the line is too long" : NULL};
        if (line.wrong == NULL && memchr(text + at, '\0', size) != NULL)
            line.wrong = "a character is not printable";
        if (line.wrong == NULL) {
            memcpy(copy, text + at, size);
            copy[size] = '\0';
            MGK_TRY(read_line(r, copy, &line, error));
        }
        if (r->line == 1 && !r->versioned && line.wrong == NULL)
            line.wrong = "expected \"" VERSION_WORD " 1\"";
        if (line.wrong != NULL)
            note_damage(r, line.wrong);
        at += size + 1;
    }
    return CLMGK_OK;
}

clmgk_status mgk_tuning_parse(mgk_tuning_set *set, const char *text, size_t length, bool shipped,
                              mgk_tuning_reading *reading, clmgk_error *error)
{
    *reading = (mgk_tuning_reading){0};
    reader r = {.set = set, .shipped = shipped, .reading = reading};
    const clmgk_status status = read_lines(&r, text, length, error);
    if (reading->newer)
        snprintf(reading->message, sizeof(reading->message), "a format other than %d, that of this library",
                 MGK_TUNING_FORMAT);
    mgk_free(set->allocator, r.devices);
    return status;
}

/* ---- writing ------------------------------------------------------------------------------------------------- */

static void print_quoted(mgk_text *text, const char *name, const char *value)
{
    mgk_text_printf(text, " %s=\"", name);
    for (; *value != '\0'; ++value)
        mgk_text_printf(text, "%s%c", *value == '"' || *value == '\\' ? "\\" : "", *value);
    mgk_text_append(text, "\"", 1);
}

static void print_device(const mgk_tuning_device *device, size_t id, mgk_text *text)
{
    mgk_text_printf(text, "device id=%zu", id);
    print_quoted(text, "name", device->name);
    print_quoted(text, "platform", device->platform);
    print_quoted(text, "driver", device->driver);
    print_quoted(text, "vendor", device->vendor);
    mgk_text_printf(text, " class=%s units=%" PRIu32, class_names[device->device_class], device->compute_units);
    print_quoted(text, "architecture", device->architecture);
    mgk_text_append(text, "\n", 1);
}

/* The quoted words come last: a truncated line then lacks its final quote. */
static void print_entry(const mgk_tuning_entry *entry, size_t id, mgk_text *text)
{
    mgk_text near = {.allocator = text->allocator};
    for (size_t i = 0; i < entry->axes; ++i)
        mgk_text_printf(&near, "%s%s=%d", i == 0 ? "" : " ", entry->axis[i].name, entry->axis[i].value);
    mgk_text_printf(text, "entry device=%zu date=%s", id, entry->date);
    print_quoted(text, "operation", entry->operation);
    print_quoted(text, "choice", entry->choice);
    print_quoted(text, "parameters", entry->parameters);
    mgk_text_printf(text, " time_ns=%" PRIu64 " default_ns=%" PRIu64, entry->time_ns, entry->default_ns);
    print_quoted(text, "bucket", entry->exact);
    print_quoted(text, "near", near.data != NULL ? near.data : "*");
    mgk_text_append(text, "\n", 1);
    text->failed = text->failed || near.failed;
    mgk_text_free(&near);
}

void mgk_tuning_print(const mgk_tuning_set *set, bool (*wanted)(const mgk_tuning_device *device, const void *user),
                      const void *user, mgk_text *text)
{
    mgk_text_printf(text, VERSION_WORD " %d\n", MGK_TUNING_FORMAT);
    for (size_t d = 0; d < set->device_count; ++d) {
        size_t entries = 0;
        for (size_t i = 0; i < set->count; ++i)
            entries += set->entries[i].device == d;
        if (entries == 0 || (wanted != NULL && !wanted(&set->devices[d], user)))
            continue;
        print_device(&set->devices[d], d + 1, text);
        for (size_t i = 0; i < set->count; ++i)
            if (set->entries[i].device == d)
                print_entry(&set->entries[i], d + 1, text);
    }
}

void mgk_tuning_print_bucket(const mgk_tuning_entry *entry, mgk_text *text)
{
    mgk_text_printf(text, "%s", entry->exact);
    for (size_t i = 0; i < entry->axes; ++i)
        mgk_text_printf(text, " %s=%d", entry->axis[i].name, entry->axis[i].value);
    if (entry->axes == 0)
        mgk_text_printf(text, " *");
}
