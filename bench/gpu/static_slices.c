// Preloaded: replaces the time slice that the CUDA driver sets when it creates a context by STATIC_SLICE_US microseconds.
// The baseline of busy_cpus.py: hardware time slices without a scheduler.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

struct control { uint32_t client, object, command, flags; uint64_t parameters; uint32_t size, status; };

#define RM_CONTROL 0xc020462aUL
#define SET_TIMESLICE 0xa06c0103U

int ioctl(int fd, unsigned long request, ...) {
    static int (*real)(int, unsigned long, ...);
    va_list arguments;
    va_start(arguments, request);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    if (!real) real = (int (*)(int, unsigned long, ...))dlsym(RTLD_NEXT, "ioctl");
    const char *slice = getenv("STATIC_SLICE_US");
    struct control *control = argument;
    if (slice && request == RM_CONTROL && control->command == SET_TIMESLICE && control->parameters)
        *(uint64_t *)(uintptr_t)control->parameters = strtoull(slice, NULL, 10);
    return real(fd, request, argument);
}
