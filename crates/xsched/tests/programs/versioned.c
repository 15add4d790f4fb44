/* A driver whose functions have versions, one of them two. Each version returns its own number. */
#define _GNU_SOURCE
#include <dlfcn.h>

__asm__(".symver first_launch, cuLaunchKernel@DRIVER_1");
__asm__(".symver second_launch, cuLaunchKernel@@DRIVER_2");

int first_launch(void) { return 101; }
int second_launch(void) { return 102; }
int cuStreamSynchronize(void *stream) { return stream == 0 ? 103 : 0; }

/* Looks up a function after this library, by name and version. */
void *next_of(const char *name, const char *version) { return dlvsym(RTLD_NEXT, name, version); }
