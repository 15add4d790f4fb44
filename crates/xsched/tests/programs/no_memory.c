/*
 * Preloaded: the allocations of libxsched.so fail, all after the first NO_MEMORY_AFTER. Those of all other code succeed. Where there is
 * memory for a large block there is memory for small ones after it, as in a real allocator: the large one fails if they would.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

enum { LARGE = 1 << 20, SMALL_ONES = 64 };

static _Atomic long done;

static int fails(void *caller, size_t size) {
    Dl_info info;
    const char *after = getenv("NO_MEMORY_AFTER");
    if (!after || !dladdr(caller, &info) || !strstr(info.dli_fname, "libxsched.so")) return 0;
    if (size >= LARGE ? done + SMALL_ONES < atol(after) : done++ < atol(after)) return 0;
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t size) {
    return fails(__builtin_return_address(0), size) ? NULL : __libc_malloc(size);
}

void *calloc(size_t count, size_t size) {
    return fails(__builtin_return_address(0), count * size) ? NULL : __libc_calloc(count, size);
}

void *realloc(void *block, size_t size) {
    return fails(__builtin_return_address(0), size) ? NULL : __libc_realloc(block, size);
}

int posix_memalign(void **block, size_t alignment, size_t size) {
    if (fails(__builtin_return_address(0), size)) return ENOMEM;
    return (*block = __libc_memalign(alignment, size)) ? 0 : ENOMEM;
}

void *aligned_alloc(size_t alignment, size_t size) {
    return fails(__builtin_return_address(0), size) ? NULL : __libc_memalign(alignment, size);
}
