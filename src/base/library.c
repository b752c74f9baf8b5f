/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries loaded on demand, because some start threads when loaded. */
#include "base/base.h"

#include <dlfcn.h>
#include <string.h>

void *mgk_library_open(const char *name)
{
    return dlopen(name, RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
}

void mgk_library_close(void *library)
{
    if (library != NULL)
        (void)dlclose(library);
}

bool mgk_library_function(void *library, const char *name, void *function, size_t size)
{
    void *const symbol = dlsym(library, name);
    if (symbol == NULL || size != sizeof(symbol))
        return false;
    memcpy(function, &symbol, size); /* C has no conversion from object to function pointers */
    return true;
}
