/* A driver of which functions have versions, and one of them two: each says which it is. */
#define _GNU_SOURCE
#include <dlfcn.h>

__asm__(".symver first_launch, cuLaunchKernel@DRIVER_1");
__asm__(".symver second_launch, cuLaunchKernel@@DRIVER_2");

int first_launch(void) { return 101; }
int second_launch(void) { return 102; }
int cuStreamSynchronize(void *stream) { return stream == 0 ? 103 : 0; }

/* Whatever comes after this library, by name and version. */
void *next_of(const char *name, const char *version) { return dlvsym(RTLD_NEXT, name, version); }
